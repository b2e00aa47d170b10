"""Ports of tasks that gateways reach, in front of a runner that a test plays."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
import socket
import stat
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from fairlead.wire.errors import Refused
from fairlead.wire.shim import ANY_PORT, GatewayKeys, TaskInfo, TaskStatus, TaskTimes
from shim.access.exposed_ports import ExposedPorts, ExposureRecord
from shim.access.gateway_keys import render
from shim.daemon import disk_threads
from shim.settings import GatewayAccess
from shim.state.events import EventLog
from shim.state.records import DiskRecords
from tests.support.waiting import LONG, eventually

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGPVyTRMIwzFz9YG3FyO9s0bnv5UZTB8JQcqSMUpLCfq"
DEADLINE = LONG


class PlayedRunner:
    """Answers CONNECT for `port` alone, then sends back in capitals what comes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.port = 8000
        self.heads: list[bytes] = []
        self.ended = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            self.heads.append(await reader.readuntil(b"\r\n\r\n"))
            if b"/v1/ports/" not in self.heads[-1]:
                writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                return
            if f"/{self.port} ".encode() not in self.heads[-1]:
                writer.write(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
                return
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            while piece := await reader.read(1 << 16):
                writer.write(piece.upper())
                await writer.drain()
        self.ended += 1


class Bed:
    """A shim's exposed ports, and one running task."""

    def __init__(self, folder: Path, threads: ThreadPoolExecutor, runner: PlayedRunner) -> None:
        self.access = GatewayAccess(folder=folder / "exposed", keys=folder / "keys")
        self.runner = runner
        self.tasks = {"t1": a_task("t1", runner.path)}
        self.events = EventLog(epoch="e")
        self.records = folder / "records"
        self.threads = threads

    @contextlib.asynccontextmanager
    async def ports(self) -> AsyncIterator[ExposedPorts]:
        """One life of the shim."""
        records = DiskRecords(self.records, ExposureRecord, self.threads)
        made = ExposedPorts(self.access, records, self.tasks.get, self.threads)
        await made.open(self.events)
        try:
            yield made
        finally:
            await made.close()

    def end(self, task_id: str) -> None:
        ended = msgspec.structs.replace(self.tasks[task_id], status=TaskStatus.TERMINATED)
        self.tasks[task_id] = ended
        self.events.task_changed(ended)


class _EarlierRecord(msgspec.Struct, frozen=True, kw_only=True):
    ports: tuple[int, ...]


def a_task(task_id: str, runner_socket: Path) -> TaskInfo:
    return TaskInfo(
        id=task_id,
        run_id="r",
        run_name="r",
        allocation_id="p",
        status=TaskStatus.RUNNING,
        image="i",
        incarnation=0,
        runner_socket=str(runner_socket),
        times=TaskTimes(submitted_at=1.0),
    )


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[Bed]:
    threads = disk_threads()
    runner = PlayedRunner(tmp_path / "runner.sock")
    server = await asyncio.start_unix_server(runner.serve, runner.path, backlog=1000)
    yield Bed(tmp_path, threads, runner)
    server.close()
    threads.shutdown()


def only(access: GatewayAccess, suffix: str) -> Path:
    """Return the one socket of this kind that is exposed."""
    (path,) = access.folder.glob(f"*{suffix}")
    return path


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def ask(path: str, sent: bytes) -> bytes:
    """Send, end the own direction, and return all that comes back."""
    async with asyncio.timeout(DEADLINE):
        reader, writer = await asyncio.open_unix_connection(path)
        with contextlib.closing(writer):
            writer.write(sent)
            writer.write_eof()
            return await reader.read()


async def test_a_gateway_reaches_the_exposed_port_and_each_end_is_passed_on(bed: Bed) -> None:
    async with bed.ports() as ports:
        exposed = await ports.expose(bed.tasks["t1"], 8000)
        large = b"a" * 3_000_000
        assert await ask(exposed.socket, large) == b"ok\n" + large.upper()
    assert bed.runner.heads == [b"CONNECT /v1/ports/8000 HTTP/1.1\r\n\r\n"]


async def test_a_burst_of_connections_waits_at_the_socket(bed: Bed) -> None:
    async with bed.ports() as ports:
        await ports.expose(bed.tasks["t1"], 8000)
        with contextlib.ExitStack() as stack:
            for path in (only(bed.access, ".sock"), only(bed.access, ".raw")):
                for _ in range(150):  # none is accepted meanwhile
                    connection = stack.enter_context(socket.socket(socket.AF_UNIX))
                    connection.setblocking(False)
                    connection.connect(str(path))
            # One more asks whether the runner takes sockets.
            await eventually(lambda: len(bed.runner.heads) == 301, DEADLINE)
        await eventually(lambda: bed.runner.ended == 300, DEADLINE)
    assert len(bed.runner.heads) == 301


async def test_exposing_twice_gives_the_same_socket(bed: Bed) -> None:
    async with bed.ports() as ports:
        first = await ports.expose(bed.tasks["t1"], 8000)
        assert await ports.expose(bed.tasks["t1"], 8000) == first
        assert await ask(first.socket, b"x") == b"ok\nX"


async def test_a_port_without_a_listener_says_so(bed: Bed) -> None:
    async with bed.ports() as ports:
        exposed = await ports.expose(bed.tasks["t1"], 9000)
        assert await ask(exposed.socket, b"x") == b"nothing listens on port 9000\n"


async def test_only_the_gateways_group_may_open_the_socket_and_it_must_know_the_name(
    bed: Bed,
) -> None:
    async with bed.ports() as ports:
        exposed = Path((await ports.expose(bed.tasks["t1"], 8000)).socket)
        assert [mode_of(exposed), mode_of(exposed.parent)] == [0o660, 0o710]
        other = Path((await ports.expose(bed.tasks["t1"], 8001)).socket)
        assert re.fullmatch(r"([\w-]{22}\.sock){2}", exposed.name + other.name)
        assert exposed != other
        # Each process of the node's network reads it, a job's too.
        bound = await asyncio.to_thread(Path("/proc/net/unix").read_text)
        assert f"{exposed.parent}/t1.new" in bound
        assert exposed.stem not in bound


async def test_nobody_connects_by_the_name_that_is_bound(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename, refused = Path.rename, []

    def tried(path: Path, target: Path) -> Path:
        if path.suffix == ".new" and path.is_socket():
            with socket.socket(socket.AF_UNIX) as caller:
                refused.append(caller.connect_ex(str(path)))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", tried)
    async with bed.ports() as ports:
        await ports.expose(bed.tasks["t1"], ANY_PORT)
    assert refused == [errno.ECONNREFUSED]


async def test_a_socket_for_all_ports_of_a_task_is_told_the_port(bed: Bed) -> None:
    async with bed.ports() as ports:
        exposed = await ports.expose(bed.tasks["t1"], ANY_PORT)
        assert [path.suffix for path in bed.access.folder.iterdir()] == [".sock"]
        assert await ask(exposed.socket, b"8000\nhello\n") == b"ok\nHELLO\n"
        assert await ask(exposed.socket, b"9000\nx") == b"nothing listens on port 9000\n"
    async with bed.ports():
        assert await ask(exposed.socket, b"8000\n" + b"a" * 3_000_000) == b"ok\n" + b"A" * 3_000_000
    assert b"/v1/ports/8000 " in bed.runner.heads[0]


@pytest.mark.parametrize("line", [b"0\n", b"65536\n", b"x\n", b"-1\n", b"8000 \n", b"1" * 100])
async def test_a_caller_that_names_no_port_reaches_none(bed: Bed, line: bytes) -> None:
    async with bed.ports() as ports:
        exposed = await ports.expose(bed.tasks["t1"], ANY_PORT)
        told = b"the first line is a port from 1 to 65535\n"
        assert await ask(exposed.socket, line) == told
        assert await ask(exposed.socket, b"80") == b""
    assert bed.runner.heads == []


async def test_a_caller_that_is_silent_is_left(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shim.access.exposed_connections.CONNECT_SECONDS", 0.01)
    async with bed.ports() as ports:
        exposed = await ports.expose(bed.tasks["t1"], ANY_PORT)
        reader, writer = await asyncio.open_unix_connection(exposed.socket)
        with contextlib.closing(writer):
            assert await asyncio.wait_for(reader.read(), DEADLINE) == b""


async def test_what_an_earlier_version_exposed_keeps_its_name(bed: Bed) -> None:
    records = DiskRecords(bed.records, _EarlierRecord, bed.threads)
    await records.load()  # makes its folder
    await records.save("t1", _EarlierRecord(ports=(8000,)))
    async with bed.ports() as ports:
        exposed = await ports.expose(bed.tasks["t1"], 8000)
        assert exposed.socket == str(bed.access.folder / "t1-8000.sock")
        assert await ask(exposed.socket, b"x") == b"ok\nX"
        assert len(Path((await ports.expose(bed.tasks["t1"], 8001)).socket).stem) == 22


async def test_what_is_exposed_is_there_again_after_a_restart(bed: Bed) -> None:
    async with bed.ports() as ports:
        exposed = await ports.expose(bed.tasks["t1"], 8000)
    with pytest.raises(ConnectionRefusedError):
        await ask(exposed.socket, b"x")
    async with bed.ports():
        assert await ask(exposed.socket, b"x") == b"ok\nX"


async def test_the_socket_ends_with_its_task(bed: Bed) -> None:
    async with bed.ports() as ports:
        exposed = Path((await ports.expose(bed.tasks["t1"], 8000)).socket)
        bed.end("t1")
        await eventually(lambda: not exposed.exists())
        with pytest.raises(Refused, match="only a running one"):
            await ports.expose(bed.tasks["t1"], 8000)
    async with bed.ports():
        assert not await asyncio.to_thread(exposed.exists)


async def test_the_keys_are_replaced_as_a_whole(bed: Bed) -> None:
    async with bed.ports() as ports:
        await ports.put_keys(GatewayKeys(keys=(KEY,)))
        assert bed.access.keys is not None
        assert bed.access.keys.read_text() == f"restrict,port-forwarding {KEY} gateway\n"
        await ports.put_keys(GatewayKeys(keys=()))
        assert bed.access.keys.read_text() == ""


def test_what_is_no_key_is_refused_with_its_place() -> None:
    with pytest.raises(Refused) as caught:
        render((KEY, f'command="sh" {KEY}'))
    assert (caught.value.status, caught.value.field) == (400, "keys[1]")


async def test_a_node_without_gateways_says_what_to_do(tmp_path: Path) -> None:
    threads = disk_threads()
    records = DiskRecords(tmp_path, ExposureRecord, threads)
    ports = ExposedPorts(None, records, lambda task_id: None, threads)
    with pytest.raises(Refused) as caught:
        await ports.expose(a_task("t1", tmp_path), 8000)
    assert caught.value.code == "no_gateways"
    threads.shutdown()
