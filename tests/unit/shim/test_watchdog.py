"""Changes without an event are found out, and systemd hears that the shim is alive."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest

from fairlead.wire.shim import EventType, TaskStatus
from shim.daemon import Daemon
from shim.engines.base import Found
from shim.monitoring.watchdog import ALIVE, READY, Systemd, Watchdog
from tests.doubles.engines import MemoryEngine
from tests.doubles.failing_engines import DeafEngine, MuteEngine, SilentListing, SlowListing
from tests.doubles.records import MemoryRecords
from tests.support.waiting import LONG, eventually
from tests.unit.shim.parts import CALLER, Node, put, request, until


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.setblocking(False)
        yield listener


@asynccontextmanager
async def brisk_watchdog(daemon: Daemon, systemd: Systemd | None = None) -> AsyncIterator[None]:
    watchdog = Watchdog(daemon.supervisor, systemd, pause=0.01)
    try:
        yield
    finally:
        await watchdog.close()


async def heard(manager: socket.socket) -> bytes:
    async with asyncio.timeout(LONG):
        return await asyncio.get_running_loop().sock_recv(manager, 100)


async def test_an_end_that_no_event_told_is_found_out(node: Node) -> None:
    async with node.shim(DeafEngine(node.host)) as daemon, brisk_watchdog(daemon):
        await put(daemon)
        await until(daemon, "t1", TaskStatus.RUNNING)
        node.host.containers["c-t1"].end(3)
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
    assert ended.exit_code == 3


async def test_a_task_that_runs_is_left_alone(node: Node) -> None:
    async with node.shim() as daemon, brisk_watchdog(daemon):
        await put(daemon)
        running = await until(daemon, "t1", TaskStatus.RUNNING)
        for _ in range(3):
            assert await daemon.supervisor.compare(frozenset({"t1"})) == frozenset()
        assert daemon.supervisor.info("t1") == running


async def test_a_task_that_is_removed_while_its_containers_are_listed_is_no_leftover(
    node: Node,
) -> None:
    engine = SlowListing(node.host)
    async with node.shim(engine) as daemon:
        await put(daemon)
        await until(daemon, "t1", TaskStatus.RUNNING)
        node.host.containers["c-t1"].end(0)
        await until(daemon, "t1", TaskStatus.TERMINATED)
        async with asyncio.timeout(LONG):
            comparing = asyncio.create_task(daemon.supervisor.compare(frozenset()))
            await engine.listed.wait()
            await daemon.supervisor.remove("t1", CALLER)
            engine.answers.set()
            await comparing
        await daemon.supervisor.release("place-1", CALLER)
        assert daemon.supervisor.unexplained == ()


async def test_a_leftover_that_somebody_removes_is_reported_no_more(node: Node) -> None:
    async with node.shim() as daemon:
        await put(daemon)
        await until(daemon, "t1", TaskStatus.RUNNING)
    node.task_records.clear()
    assert isinstance(node.books.allocations, MemoryRecords)
    node.books.allocations.kept.clear()
    container = node.host.containers["c-t1"]
    container.spec = msgspec.structs.replace(container.spec, record="unreadable")
    async with node.shim() as daemon, brisk_watchdog(daemon):
        assert [a.id for a in daemon.supervisor.allocations] == ["place-1"]
        node.host.containers.clear()
        await eventually(lambda: daemon.supervisor.allocations == ())
        assert daemon.supervisor.unexplained == ()
        await daemon.supervisor.put("t2", request(), CALLER)


async def test_the_watchdog_is_fed_even_while_the_engine_hangs(
    node: Node, manager: socket.socket, tmp_path: Path
) -> None:
    systemd = Systemd({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "20000"})
    engine = SilentListing(node.host)
    async with node.shim(engine) as daemon, brisk_watchdog(daemon, systemd):
        fed = [await heard(manager) for _ in range(3)]
    assert fed == [ALIVE.encode()] * 3


async def test_systemd_is_told_at_an_abstract_address_too() -> None:
    name = f"fairlead-test-{id(object())}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}")
        Systemd({"NOTIFY_SOCKET": f"@{name}"}).tell(READY)
        assert listener.recv(100) == READY.encode()


def test_without_systemd_nothing_is_told_and_nobody_watches(tmp_path: Path) -> None:
    nobody = Systemd({})
    nobody.tell(READY)
    gone = Systemd({"NOTIFY_SOCKET": str(tmp_path / "gone"), "WATCHDOG_USEC": "30000000"})
    gone.tell(READY)
    assert (nobody.watchdog, gone.watchdog) == (None, 30.0)


async def test_an_engine_that_falls_silent_is_told_and_that_it_answers_again(node: Node) -> None:
    engine = MuteEngine(node.host)
    async with node.shim(engine) as daemon, brisk_watchdog(daemon):
        assert (await daemon.node()).engine_error is None
        for away, error in ((True, "nobody listens"), (False, None)):
            cursor = daemon.events.cursor
            engine.away = away
            async with asyncio.timeout(LONG), aclosing(daemon.events.follow(cursor)) as events:
                async for event in events:
                    if event.type is EventType.NODE:
                        break
            assert (await daemon.node()).engine_error == error


async def test_an_engine_that_was_away_only_when_somebody_asked_is_told_when_it_answers(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when it is started anew between two looks of the watchdog, each of which sees it answer:
    who asked in between would take it for silent for ever."""

    class AnswersEachLook(MuteEngine):
        async def list(self) -> tuple[Found, ...]:
            return await MemoryEngine.list(self)

    engine = AnswersEachLook(node.host)
    monkeypatch.setattr("shim.daemon.Watchdog", partial(Watchdog, pause=0.01))
    async with node.shim(engine) as daemon:
        cursor = daemon.events.cursor
        engine.away = True
        assert (await daemon.node()).engine_error == "nobody listens"
        engine.away = False
        async with asyncio.timeout(LONG), aclosing(daemon.events.follow(cursor)) as events:
            async for event in events:
                if event.type is EventType.NODE:
                    break
        assert (await daemon.node()).engine_error is None


async def test_a_disk_that_fills_is_told_each_time_its_free_space_has_halved(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, looks = 64 << 30, asyncio.Semaphore(0)

    async def free_disk() -> int:
        looks.release()
        return free

    async with node.shim() as daemon:
        monkeypatch.setattr(daemon.supervisor, "free_disk", free_disk)
        async with brisk_watchdog(daemon):
            async with asyncio.timeout(LONG):
                # One may be of the daemon's own watchdog, which takes 10 s to look again.
                await looks.acquire()
                await looks.acquire()
            cursor = daemon.events.cursor
            free = 20 << 30
            async with asyncio.timeout(LONG), aclosing(daemon.events.follow(cursor)) as events:
                async for event in events:
                    if event.type is EventType.NODE:
                        break
            assert (await daemon.node()).disk_free == free
