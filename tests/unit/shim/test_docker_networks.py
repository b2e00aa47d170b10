"""A network has an owner at any time: one without an owner would never be removed."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from ipaddress import IPv4Network
from typing import Any

import pytest

from shim.engines.base import NodeFault, NodeFull
from shim.engines.docker import subnets
from shim.engines.docker.api import DockerRefused, NotFound
from shim.engines.docker.networks import RunNetworks
from shim.engines.docker.subnets import Subnets
from shim.errors import EngineError
from shim.settings import SubnetRange
from shim.wires.bridges import Bridges
from shim.wires.namespace import Namespace
from tests.support.waiting import LONG, eventually

DEADLINE = LONG


INSTALL = {"fairlead.install": "i"}
MANY = SubnetRange.parse("10.80.0.0/16")


class Api:
    """Networks as the engine has them: it refuses subnets that overlap."""

    def __init__(self) -> None:
        self.existing: dict[str, dict[str, Any]] = {}
        self.made: list[str] = []
        self.attached: set[str] = set()
        """Those that containers use: they cannot be removed."""
        self.looks = 0

    def add(self, name: str, subnet: str, labels: dict[str, str], **more: object) -> None:
        wanted = IPv4Network(subnet)
        if any(wanted.overlaps(self.subnet_of(other)) for other in self.existing):
            raise DockerRefused("Pool overlaps with other one on this address space", 403)
        config = [{"Subnet": subnet}]
        found = {"Name": name, "Labels": labels, "IPAM": {"Config": config}, "Containers": {}}
        self.existing[name] = {**found, **more}
        self.made.append(name)

    def subnet_of(self, name: str) -> IPv4Network:
        return IPv4Network(self.existing[name]["IPAM"]["Config"][0]["Subnet"])

    def networks(self) -> list[dict[str, Any]]:
        self.looks += 1
        return list(self.existing.values())

    def inspect_network(self, name: str) -> dict[str, Any]:
        if name not in self.existing:
            raise NotFound(f"network {name} not found")
        return self.existing[name]

    def create_network(
        self, name: str, driver: str, labels: dict[str, str], ipam: Any, options: dict[str, str]
    ) -> None:
        self.add(name, ipam["Config"][0]["Subnet"], labels, Options=options)

    def remove_network(self, name: str) -> None:
        if name not in self.existing:
            raise NotFound(f"network {name} not found")
        if name in self.attached:
            raise EngineError(f"{name} has active endpoints")
        del self.existing[name]


class KeptBridges(Bridges):
    """Notes at which networks the table was written and removed."""

    def __init__(self, api: Api) -> None:
        super().__init__("i", Namespace())
        self._api = api
        self.kept: list[int] = []
        self.left: list[int] = []

    def keep_apart(self) -> None:
        self.kept.append(len(self._api.existing))

    def leave(self) -> None:
        self.left.append(len(self._api.existing))


class World:
    def __init__(self, *ranges: SubnetRange, tidy_every: float = 0.01) -> None:
        self.api = Api()
        self.bridges = KeptBridges(self.api)
        self.subnets = Subnets(ranges or (MANY,))
        self.networks = RunNetworks(
            self._call,
            "fairlead.install=i",
            tidy_every=tidy_every,
            patience=0.0,
            bridges=self.bridges,
        )
        self.engine_goes_on = asyncio.Event()
        self.engine_goes_on.set()
        self.broken = False
        self.loses_answers = False
        """The answers about networks that it has made."""

    async def open(self, *used: tuple[str, str]) -> None:
        await self.networks.open(self.api, used, self.subnets)

    async def _call(self, act: Callable[[], Any]) -> Any:
        """An act that has been given to a thread is done, whether or not anybody still waits. What
        is listed is told at once."""
        before, looks = set(self.api.existing), self.api.looks
        answer = act()
        if self.api.looks == looks:
            await self.engine_goes_on.wait()
        if self.broken or (self.loses_answers and set(self.api.existing) - before):
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


@pytest.fixture(autouse=True)
def nothing_else_has_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subnets, "of_node", lambda _: frozenset())


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.open()
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


async def test_networks_are_kept_apart_before_each_is_made_and_until_the_last_is_gone() -> None:
    """The engine opens all of them for a moment while it makes one."""
    world = World(tidy_every=LONG)
    await world.open()
    await world.networks.ensure("run")
    await eventually(lambda: len(world.api.existing) == 2, DEADLINE)
    assert world.bridges.kept == [0, 1]
    await world.networks.close()
    assert world.bridges.left == []
    again = RunNetworks(world._call, "fairlead.install=i", bridges=world.bridges, spares=False)
    await again.open(world.api, [("run", world.networks.name_of("run"))], world.subnets)
    assert world.bridges.kept == [0, 1, 1]
    await again.remove("run")
    await eventually(lambda: not world.api.existing, DEADLINE)
    await again.close()
    assert world.bridges.left == [0]


async def test_the_table_is_written_again_now_and_then_while_there_is_a_network(
    world: World,
) -> None:
    await world.networks.ensure("run")
    await eventually(lambda: len(world.bridges.kept) > 4, DEADLINE)


async def test_its_end_leaves_the_networks_of_runs_and_no_other(world: World) -> None:
    await world.networks.ensure("run")
    await eventually(lambda: len(world.api.existing) == 2, DEADLINE)
    await world.networks.close()
    assert set(world.api.existing) == {world.networks.name_of("run")}


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
    made = len(world.api.made)
    world.loses_answers = True
    with pytest.raises(EngineError, match="ill"):
        await world.networks.ensure("run")
    # On a busy machine it may be gone by now.
    (lost,) = world.api.made[made:]
    world.loses_answers = False
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
    assert names <= set(world.api.existing)


async def test_a_network_that_exists_is_the_runs_own() -> None:
    """One was pruned from under a container that had ended, and a later task got another one."""
    for used in ([("run", "pruned"), ("run", "later")], [("run", "later"), ("run", "pruned")]):
        world = World()
        world.api.add("later", "172.18.0.0/16", INSTALL)
        world.api.attached.add("later")
        await world.open(*used)
        await world.networks.ensure("other")
        assert world.networks.name_of("run") == "later"
        assert world.networks.name_of("other") != "later"
        await world.networks.close()


async def test_a_leftover_that_cannot_be_removed_does_not_keep_the_shim_from_starting() -> None:
    world = World()
    for number, name in enumerate("abc"):
        subnet = f"10.80.{number * 4}.0/22"
        world.api.add(name, subnet, {**INSTALL, "fairlead.subnet": subnet})
    world.api.attached |= {"b", "c"}
    await world.open()
    await world.networks.ensure("run")
    assert world.networks.name_of("run") == "a"
    await world.networks.close()


async def test_a_network_that_cannot_be_made_for_a_cancelled_start_is_told_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody waits for its error any more, which asyncio would report as never retrieved."""
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unheard.append(context))
    world.broken = True
    await world.cancel_in_the_middle("run")
    await eventually(lambda: "run run has no network: the engine is ill" in caplog.text, DEADLINE)
    gc.collect()
    assert unheard == []


async def test_a_network_has_a_small_subnet_of_the_range_beside_all_that_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(SubnetRange.parse("10.80.0.0/20:22"))
    world.api.add("compose_default", "10.80.14.0/24", {})
    route = IPv4Network("10.80.8.0/23")
    monkeypatch.setattr(subnets, "of_node", lambda _: frozenset({route}))
    await world.open()
    assert world.networks.capacity == 2
    for run in ("one", "two"):
        await world.networks.ensure(run)
    made = {str(world.api.subnet_of(world.networks.name_of(run))) for run in ("one", "two")}
    assert made == {"10.80.4.0/22", "10.80.0.0/22"}
    await world.networks.close()


async def test_a_run_without_a_free_subnet_is_told_so_and_gets_the_next_that_comes_free() -> None:
    world = World(SubnetRange.parse("10.80.0.0/21:22"))
    await world.open()
    for run in ("one", "two"):
        await world.networks.ensure(run)
    with pytest.raises(NodeFull, match="all 2 networks for runs on this node are in use") as full:
        await world.networks.ensure("three")
    assert full.value.reason == "interrupted_by_no_capacity"
    freed = world.networks.name_of("one")
    await world.networks.remove("one")
    await eventually(lambda: freed not in world.api.existing, DEADLINE)
    await world.networks.ensure("three")
    assert world.networks.name_of("three") in world.api.existing
    await world.networks.close()


async def test_a_range_that_is_all_in_use_by_others_is_told_with_its_name() -> None:
    world = World(SubnetRange.parse("10.80.0.0/22"))
    world.api.add("vpn", "10.80.0.0/16", {})
    await world.open()
    assert world.networks.capacity == 0
    with pytest.raises(NodeFull, match=r"all of 10\.80\.0\.0/22 is used by its routes"):
        await world.networks.ensure("run")
    await world.networks.close()


async def test_a_subnet_that_the_engine_finds_taken_is_passed_over() -> None:
    """By a network that appears between the look and the making."""
    world = World(SubnetRange.parse("10.80.0.0/21:22"))
    shown = world.api.networks
    await world.open()
    await eventually(lambda: len(world.api.existing) == 1, DEADLINE)
    world.api.existing.clear()
    world.api.add("theirs", "10.80.4.0/22", {})
    world.api.networks = lambda: [one for one in shown() if one["Name"] != "theirs"]  # type: ignore[method-assign]
    await world.networks.ensure("run")
    assert str(world.api.subnet_of(world.networks.name_of("run"))) == "10.80.0.0/22"
    await world.networks.close()


async def test_the_tasks_of_a_run_have_different_addresses_in_its_network(world: World) -> None:
    first = await world.networks.ensure("run")
    assert first is not None
    second = await world.networks.ensure("run", {first})
    name = world.networks.name_of("run")
    subnet = world.api.subnet_of(name)
    assert [first, second] == [str(subnet[2]), str(subnet[3])]
    ends = world.api.existing[name]["Containers"]
    ends["a container that the shim does not know"] = {"IPv4Address": f"{subnet[2]}/16"}
    assert await world.networks.ensure("run", {second or ""}) == str(subnet[4])
    assert await world.networks.ensure("run", {second or ""}, first) == first


async def test_a_run_with_more_tasks_than_addresses_is_told_so() -> None:
    world = World(SubnetRange.parse("10.80.0.0/28:29"))
    await world.open()
    taken = {str(IPv4Network("10.80.0.8/29")[n]) for n in range(2, 7)}
    with pytest.raises(NodeFull, match="5 tasks on this node, which is all that its network"):
        await world.networks.ensure("run", taken)
    await world.networks.close()


async def test_a_network_of_an_earlier_version_goes_on_with_the_engines_addresses() -> None:
    world = World()
    world.api.add("old", "172.18.0.0/16", INSTALL)
    world.api.add("old-spare", "172.19.0.0/16", INSTALL)
    await world.open(("run", "old"))
    assert await world.networks.ensure("run") is None
    assert world.networks.name_of("run") == "old"
    assert "old-spare" not in world.api.existing
    await world.networks.close()


async def test_the_bridges_of_runs_are_known_by_their_names(world: World) -> None:
    await world.networks.ensure("run")
    name = world.networks.name_of("run")
    bridge = world.api.existing[name]["Options"]["com.docker.network.bridge.name"]
    assert bridge == f"fl-{name.removeprefix('fairlead-')}"
    assert len(bridge) <= 15
