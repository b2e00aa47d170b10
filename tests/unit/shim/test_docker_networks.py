"""A network has an owner at any time: one without an owner would never be removed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from shim.engines.base import NodeFault
from shim.engines.docker.networks import RunNetworks
from shim.errors import EngineError
from tests.support.waiting import eventually

DEADLINE = 60.0


class Api:
    """Networks as the engine has them."""

    def __init__(self) -> None:
        self.existing: set[str] = set()
        self.attached: set[str] = set()
        """Those that containers use: they cannot be removed."""
        self.looks = 0

    def networks(
        self, names: list[str] | None = None, filters: dict[str, str] | None = None
    ) -> list[dict[str, str]]:
        self.looks += 1
        wanted = None if names is None else {name.strip("^$") for name in names}
        return [{"Name": name} for name in self.existing if wanted is None or name in wanted]

    def create_network(self, name: str, driver: str, labels: dict[str, str]) -> None:
        self.existing.add(name)

    def remove_network(self, name: str) -> None:
        if name in self.attached:
            raise EngineError(f"{name} has active endpoints")
        self.existing.remove(name)


class World:
    def __init__(self) -> None:
        self.api = Api()
        self.networks = RunNetworks(self._call, "fairlead.install=i", tidy_every=0.01)
        self.engine_goes_on = asyncio.Event()
        self.engine_goes_on.set()
        self.broken = False

    async def _call(self, act: Callable[[], Any]) -> Any:
        """An act that has been given to a thread is done, whether or not anybody still waits."""
        answer = act()
        await self.engine_goes_on.wait()
        if self.broken:
            raise EngineError("the engine is ill")
        return answer

    async def cancel_in_the_middle(self, run_id: str) -> None:
        self.engine_goes_on.clear()
        starting = asyncio.create_task(self.networks.ensure(run_id))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait({starting})
        assert starting.cancelled()
        self.engine_goes_on.set()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.networks.open(made.api, ())
    yield made
    await made.networks.close()


@pytest.mark.parametrize("has_spare", [False, True])
async def test_a_start_cancelled_while_it_gets_its_network_leaves_none_behind(
    world: World, has_spare: bool
) -> None:
    if has_spare:
        await eventually(lambda: len(world.api.existing) == 1, DEADLINE)
    for number in range(5):
        await world.cancel_in_the_middle(f"run-{number}")
        await world.networks.remove(f"run-{number}")
    await eventually(lambda: len(world.api.existing) == 1, DEADLINE)


async def test_a_start_after_a_cancelled_one_gets_the_network_that_was_being_made(
    world: World,
) -> None:
    await world.cancel_in_the_middle("run")
    await world.networks.ensure("run")
    name = world.networks.name_of("run")
    await world.networks.ensure("run")
    assert world.networks.name_of("run") == name
    assert name in world.api.existing


async def test_an_engine_that_fails_is_said_and_the_next_start_gets_a_network(
    world: World,
) -> None:
    world.broken = True
    with pytest.raises(NodeFault, match="the run's network cannot be made: the engine is ill"):
        await world.networks.ensure("run")
    world.broken = False
    await world.networks.ensure("run")
    assert world.networks.name_of("run") in world.api.existing


async def test_a_network_that_the_engine_has_lost_is_replaced_for_its_run_alone(
    world: World,
) -> None:
    for run in ("run", "other"):
        await world.networks.ensure(run)
    lost, kept = world.networks.name_of("run"), world.networks.name_of("other")
    world.networks.distrust(f"network {lost} not found")
    with pytest.raises(NodeFault, match="run run has no network"):
        world.networks.name_of("run")
    await world.networks.ensure("run")
    assert world.networks.name_of("run") not in (lost, kept)
    assert world.networks.name_of("other") == kept


async def test_its_end_leaves_the_networks_of_runs_and_no_other(world: World) -> None:
    await world.networks.ensure("run")
    await eventually(lambda: len(world.api.existing) == 2, DEADLINE)
    await world.networks.close()
    assert world.api.existing == {world.networks.name_of("run")}


async def test_an_engine_that_is_away_does_not_keep_it_from_its_end(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.broken = True
    await world.networks.close()
    assert "left behind: the engine is ill" in caplog.text


async def test_a_network_that_could_not_be_removed_goes_later(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await world.networks.ensure("run")
    name = world.networks.name_of("run")
    world.api.attached.add(name)
    await world.networks.remove("run")
    await eventually(lambda: "has active endpoints" in caplog.text, DEADLINE)
    world.api.attached.clear()
    await eventually(lambda: name not in world.api.existing, DEADLINE)


async def test_a_network_of_whose_making_nothing_was_heard_goes_later(world: World) -> None:
    """The engine makes it, and its answer is lost; the run that wanted it gets another one."""
    await eventually(lambda: len(world.api.existing) == 1, DEADLINE)
    await world.networks.ensure("first")
    before = set(world.api.existing)
    world.broken = True
    with pytest.raises(EngineError, match="ill"):
        await world.networks.ensure("run")
    (lost,) = world.api.existing - before
    world.broken = False
    await world.networks.ensure("run")
    await eventually(lambda: lost not in world.api.existing, DEADLINE)
    assert world.networks.name_of("run") in world.api.existing


async def test_networks_that_are_being_made_or_lent_are_no_leftovers(world: World) -> None:
    world.engine_goes_on.clear()
    starting = [asyncio.create_task(world.networks.ensure(f"run-{number}")) for number in range(5)]
    await eventually(lambda: len(world.api.existing) >= 5, DEADLINE)
    world.engine_goes_on.set()
    await asyncio.gather(*starting)
    looked = world.api.looks
    await eventually(lambda: world.api.looks >= looked + 5, DEADLINE)
    names = {world.networks.name_of(f"run-{number}") for number in range(5)}
    assert names <= world.api.existing


async def test_a_network_that_exists_is_the_runs_own() -> None:
    """One was pruned from under a container that had ended, and a later task got another one."""
    for used in ([("run", "pruned"), ("run", "later")], [("run", "later"), ("run", "pruned")]):
        world = World()
        world.api.existing.add("later")
        world.api.attached.add("later")
        await world.networks.open(world.api, used)
        await world.networks.ensure("other")
        assert world.networks.name_of("run") == "later"
        assert world.networks.name_of("other") != "later"
        await world.networks.close()


async def test_a_leftover_that_cannot_be_removed_does_not_keep_the_shim_from_starting() -> None:
    world = World()
    world.api.existing |= {"a", "b", "c"}
    world.api.attached |= {"b", "c"}
    await world.networks.open(world.api, ())
    await world.networks.ensure("run")
    assert world.networks.name_of("run") == "a"
    await world.networks.close()
