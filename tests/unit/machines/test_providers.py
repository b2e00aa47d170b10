"""Checks of a provider: what is tried, what is told, and that nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from common.refusals import Conflict, Forbidden, Invalid, NotFound, Unavailable
from controller.clock import system_chance
from controller.clouds.base import CloudAway, NoCapacity, Throttled, Unauthorized
from controller.lifecycle.machines.life import Place
from controller.machines.manager import MachineManager, MachineSettings
from controller.machines.trial import Trial
from controller.pipelines.rentals import Pinned
from controller.scheduling.index import CapacityIndex
from controller.service.machines.providers import ProviderService
from controller.store.accounts import User
from fairlead.model.spec import Role
from tests.doubles.clock import ManualClock
from tests.doubles.clouds import MemoryCloud
from tests.support.waiting import eventually
from tests.unit.machines.parts import offer, rentals_of

ADMIN = User(name="root", role=Role.ADMIN, created_at=0.0)
USER = User(name="ada", role=Role.USER, created_at=0.0)


def cheap_and_dear() -> MemoryCloud:
    return MemoryCloud(
        offer("dear", price=9.0), offer("cheap", price=2.0), offer("spot", price=1.0, spot=True)
    )


def service_of(cloud: MemoryCloud) -> tuple[ProviderService, MachineManager]:
    settings = MachineSettings(
        clouds={"lab": cloud},
        boot_data=lambda one: one.name,
        pin=lambda one: Pinned(host_key=one, token_digest=one),
    )

    async def is_empty(machine_id: str) -> bool:
        return True

    manager = MachineManager(
        rentals_of(CapacityIndex()),
        {},
        settings,
        ManualClock(),
        installation="here",
        is_empty=is_empty,
    )
    return ProviderService(system_chance(), manager), manager


def trial_of(cloud: MemoryCloud, **more: Any) -> Trial:
    return Trial(cloud, offer(), "here", "0123456789abcdef", look_every=0.01, **more)


@pytest.fixture
async def sshd() -> AsyncIterator[int]:
    """A port that greets as an SSH server does."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()


async def test_a_check_tells_what_works() -> None:
    service, _ = service_of(cheap_and_dear())
    found = await service.check("lab", ADMIN)
    assert [one.fault for one in found] == [None, None]
    assert found[0].what == "credentials and 3 offers"


async def test_a_check_tells_what_does_not() -> None:
    cloud = cheap_and_dear()
    service, _ = service_of(cloud)
    cloud.fails["offers"] = [Unauthorized("the key is not valid")]
    (only,) = await service.check("lab", ADMIN)
    assert only.fault == "the key is not valid"
    cloud.fails["list"] = [CloudAway("a page is missing")]
    assert [one.fault for one in await service.check("lab", ADMIN)] == [None, "a page is missing"]
    cloud.fails["list"] = [ValueError("canary")]
    (_, fault) = await service.check("lab", ADMIN)
    assert fault.fault == "internal error (ValueError); see the log"
    (_, none) = await service_of(MemoryCloud())[0].check("lab", ADMIN)
    assert none.fault is not None


async def test_only_an_admin_checks_and_only_what_is_there() -> None:
    service, _ = service_of(cheap_and_dear())
    for work in (service.check("lab", USER), service.try_one("lab", None, USER)):
        with pytest.raises(Forbidden):
            await work
    with pytest.raises(NotFound, match="this controller has lab"):
        await service.check("labb", ADMIN)
    with pytest.raises(NotFound):
        service.trial("lab", ADMIN)
    with pytest.raises(Invalid, match="no offer of the type none"):
        await service.try_one("lab", "none", ADMIN)
    with pytest.raises(Unavailable):
        await ProviderService(system_chance(), None).check("lab", ADMIN)


async def test_one_machine_is_made_and_ended(sshd: int) -> None:
    cloud = cheap_and_dear()
    cloud.place = Place(host="127.0.0.1", port=sshd)
    service, _ = service_of(cloud)
    await service.try_one("lab", None, ADMIN)
    await eventually(lambda: service.trial("lab", ADMIN).is_over)
    trial = service.trial("lab", ADMIN)
    assert trial.fault is None
    assert "cheap" in trial.steps[0]
    assert trial.steps[1:] == [
        "it is at 127.0.0.1",
        f"it booted: port {sshd} says SSH-2.0-OpenSSH_9.2",
        "it is gone",
    ]
    assert cloud.instances == {}


async def test_one_check_at_a_time_makes_a_machine() -> None:
    cloud = cheap_and_dear()
    service, manager = service_of(cloud)
    await service.try_one("lab", "dear", ADMIN)
    await eventually(lambda: cloud.instances)
    with pytest.raises(Conflict):
        await service.try_one("lab", None, ADMIN)
    running = asyncio.create_task(manager.run())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert service.trial("lab", ADMIN).is_over
    assert cloud.instances == {}


async def test_a_machine_that_nobody_reaches_is_ended_and_told() -> None:
    cloud = cheap_and_dear()
    trial = trial_of(cloud, boot_seconds=0.05)
    await trial.run()
    assert trial.fault is not None
    assert "may the controller reach port 22" in trial.fault
    assert trial.steps[-1] == "it is gone"
    assert cloud.instances == {}


async def test_a_question_that_fails_is_asked_again(sshd: int) -> None:
    cloud = cheap_and_dear()
    trial = trial_of(cloud)
    cloud.fails["describe"] = [CloudAway("no answer"), Throttled("too many")]
    running = asyncio.create_task(trial.run())
    await eventually(lambda: not cloud.fails.get("describe"))
    for one in cloud.instances.values():
        one.place = Place(host="127.0.0.1", port=sshd)
    await running
    assert (trial.fault, trial.steps[-1]) == (None, "it is gone")


async def test_an_end_that_fails_is_asked_for_again() -> None:
    cloud = cheap_and_dear()
    cloud.fails["terminate"] = [CloudAway("no answer"), CloudAway("no answer")]
    trial = trial_of(cloud, boot_seconds=0.0)
    await trial.run()
    assert trial.steps[1:] == ["its end: no answer", "it is gone"]


async def test_a_machine_at_a_socket_is_reached_once_its_shim_listens(tmp_path: Path) -> None:
    cloud = cheap_and_dear()
    path = tmp_path / "shim.sock"
    cloud.place = Place(socket=str(path))
    trial = trial_of(cloud)
    running = asyncio.create_task(trial.run())
    await eventually(lambda: trial.steps[1:] == [f"it is at {path}"])
    server = await asyncio.start_unix_server(lambda reader, writer: writer.close(), path)
    await running
    server.close()
    assert (trial.fault, trial.steps[2:]) == (
        None,
        ["its shim accepts connections", "it is gone"],
    )


async def test_an_address_that_cannot_be_read_is_asked_for_again(sshd: int) -> None:
    cloud = cheap_and_dear()
    cloud.place = Place(host="127.0.0.1", port=sshd)
    cloud.fails["describe"] = [CloudAway("no answer"), CloudAway("no answer")]
    trial = trial_of(cloud)
    await trial.run()
    assert (trial.fault, cloud.instances) == (None, {})
    assert trial.steps[1:3] == ["its address: no answer", "it is at 127.0.0.1"]


async def test_a_controller_that_stops_asks_for_the_end_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cloud = cheap_and_dear()
    cloud.fails["terminate"] = [CloudAway("no answer")]
    trial = trial_of(cloud)
    running = asyncio.create_task(trial.run())
    await eventually(lambda: "describe" in cloud.calls)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert cloud.calls.count("terminate") == 1
    assert trial.is_over
    assert str(trial.fault).startswith("the controller stopped")


async def test_of_two_requests_at_once_one_makes_a_machine() -> None:
    service, manager = service_of(cheap_and_dear())
    both = await asyncio.gather(
        service.try_one("lab", None, ADMIN),
        service.try_one("lab", None, ADMIN),
        return_exceptions=True,
    )
    assert sorted(type(one).__name__ for one in both) == ["Conflict", "Trial"]
    await eventually(lambda: service.trial("lab", ADMIN).steps != [])
    running = asyncio.create_task(manager.run())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (NoCapacity("sold out"), "sold out"),
        (CloudAway("no answer"), "no answer; if a machine was made, it ends as an orphan"),
        (
            ValueError("canary"),
            "internal error (ValueError); see the log; if a machine was made, it ends as an orphan",
        ),
    ],
)
async def test_a_machine_that_is_not_made_is_told(error: Exception, told: str) -> None:
    cloud = cheap_and_dear()
    cloud.fails["create"] = [error]
    trial = trial_of(cloud)
    await trial.run()
    assert (trial.fault, trial.steps, trial.is_over) == (told, [], True)
