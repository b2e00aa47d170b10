"""Connections to exposed ports that the shim gives to the runner: one process fewer on the way."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from fairlead.wire.runner import (
    MAX_EARLY,
    SOCKET_NOT_TAKEN,
    SOCKET_OFFERED,
    SOCKET_TAKEN,
    SOCKET_WANTED,
    SOCKETS,
    early_in,
    socket_offer,
)
from shim.access import exposed_connections
from shim.access.exposed_ports import ExposedPorts
from shim.daemon import disk_threads
from tests.support.waiting import eventually
from tests.unit.runner.harness import a_runner
from tests.unit.shim.test_exposed_ports import DEADLINE, Bed, PlayedRunner, only

LARGE = bytes(range(256)) * (12 << 10)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.closing(writer):
        writer.write(b"hello ")
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()


@pytest.fixture
async def path(tmp_path: Path) -> AsyncIterator[str]:
    """The raw socket of a port that greets and sends back what comes, behind a real runner."""
    threads = disk_threads()
    bed = Bed(tmp_path, threads, PlayedRunner(tmp_path / "runner.sock"))
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, a_runner(tmp_path), bed.ports() as ports:
        await ports.expose(bed.tasks["t1"], port)
        path = str(only(bed.access, ".raw"))
        assert await exchange(path, b"first") == b"hello first"
        await eventually(lambda: ports.gives_sockets("t1"), DEADLINE)
        yield path
    threads.shutdown()


async def exchange(path: str, *pieces: bytes) -> bytes:
    """Send the pieces at once, end the own direction, and return all that comes back."""
    async with asyncio.timeout(DEADLINE):
        reader, writer = await asyncio.open_unix_connection(path)
        with contextlib.closing(writer):
            for piece in pieces:
                writer.write(piece)
            writer.write_eof()
            return await reader.read()


async def test_the_shim_sees_no_byte_once_the_runner_has_the_socket(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = await asyncio.open_unix_connection(path)
    assert await asyncio.wait_for(reader.readexactly(6), DEADLINE) == b"hello "
    seen: list[bytes] = []
    for end in (exposed_connections.Caller, exposed_connections.Port):
        monkeypatch.setattr(end, "data_received", lambda self, data: seen.append(data))
    with contextlib.closing(writer):
        writer.write(LARGE)
        assert await asyncio.wait_for(reader.readexactly(len(LARGE)), DEADLINE) == LARGE
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), DEADLINE) == b""
    assert seen == []


@pytest.mark.parametrize("size", [0, 1, MAX_EARLY, MAX_EARLY + 1, len(LARGE)])
async def test_what_a_caller_sends_before_it_is_connected_arrives_once(
    path: str, size: int
) -> None:
    assert await exchange(path, LARGE[:size]) == b"hello " + LARGE[:size]


class Runner:
    """What a test plays in the place of a runner: it wants a socket, uses it if `uses` is set, and
    answers with the next of `answers`. It holds what it got."""

    def __init__(self, path: Path, *answers: bytes, uses: bool) -> None:
        self.path = path
        self.answers = list(answers)
        self.offers: list[bytes] = []
        self.held: list[int] = []
        self._uses = uses

    async def serve(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._serve((await loop.sock_accept(listening))[0]))

    async def _serve(self, connection: socket.socket) -> None:
        loop, head = asyncio.get_running_loop(), b""
        with connection, contextlib.suppress(OSError):
            while not head.endswith(b"\r\n\r\n"):
                head += await loop.sock_recv(connection, 1)
            if SOCKET_OFFERED not in head and SOCKETS.encode() not in head:
                await loop.sock_sendall(connection, b"HTTP/1.1 200 OK\r\n\r\nplain ")
                while piece := await loop.sock_recv(connection, 1 << 16):
                    await loop.sock_sendall(connection, piece)
                return
            wanted = b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % SOCKET_WANTED
            await loop.sock_sendall(connection, wanted)
            offer, numbers = await asyncio.to_thread(received, connection)
            self.offers.append(offer)
            self.held += numbers
            if self._uses:
                os.write(numbers[0], os.read(numbers[0], 1))
                self._uses = False
            await loop.sock_sendall(connection, self.answers.pop(0))


def received(connection: socket.socket) -> tuple[bytes, Sequence[int]]:
    select.select([connection], [], [], DEADLINE)
    data, numbers, _, _ = socket.recv_fds(connection, 1 << 16, 1)
    return data, numbers


@contextlib.asynccontextmanager
async def played(
    folder: Path, *answers: bytes, uses: bool = False
) -> AsyncIterator[tuple[Runner, Bed, ExposedPorts]]:
    threads = disk_threads()
    runner = Runner(folder / "runner.sock", *answers, uses=uses)
    bed = Bed(folder, threads, PlayedRunner(runner.path))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.setblocking(False)
        listening.bind(str(runner.path))
        listening.listen()
        serving = asyncio.create_task(runner.serve(listening))
        async with bed.ports() as ports:
            await ports.expose(bed.tasks["t1"], 8000)
            yield runner, bed, ports
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    for number in runner.held:
        os.close(number)
    threads.shutdown()


@pytest.mark.parametrize("answer", [SOCKET_NOT_TAKEN, SOCKET_TAKEN, b"?"])
async def test_a_runner_that_can_use_no_sockets_is_not_offered_one_again(
    tmp_path: Path, answer: bytes
) -> None:
    """A security module may withhold what comes from outside of a container, or its use."""
    async with played(tmp_path, answer) as (runner, bed, ports):
        raw = str(only(bed.access, ".raw"))
        for number in range(5):
            assert await exchange(raw, b"%d" % number) == b"plain %d" % number
        await eventually(lambda: not runner.answers, DEADLINE)
        assert await exchange(raw, b"5") == b"plain 5"
        assert not ports.gives_sockets("t1")
        assert runner.offers == [socket_offer(b"")]


async def test_a_job_that_keeps_a_socket_and_says_no_ends_its_connection_alone(
    tmp_path: Path,
) -> None:
    """It may have made the socket block: the shim neither reads nor writes there any more. What the
    job holds must not keep the gateway waiting."""
    answers = SOCKET_TAKEN, SOCKET_NOT_TAKEN
    async with played(tmp_path, *answers, uses=True) as (runner, bed, ports):
        raw = str(only(bed.access, ".raw"))
        assert await exchange(raw, b"first") == b"plain first"
        await eventually(lambda: ports.gives_sockets("t1"), DEADLINE)
        with contextlib.suppress(ConnectionError):
            reader, writer = await asyncio.open_unix_connection(raw)
            with contextlib.closing(writer):
                assert await asyncio.wait_for(reader.read(), DEADLINE) == b""
        assert len(runner.held) == 2
        telling = only(bed.access, ".sock")
        assert await exchange(str(telling), b"next") == b"ok\nplain next"


async def test_an_app_that_takes_one_connection_gets_the_first_request(tmp_path: Path) -> None:
    """Such as `nc -l`. The question whether the runner takes sockets must not be that one."""
    threads, taken = disk_threads(), 0
    bed = Bed(tmp_path, threads, PlayedRunner(tmp_path / "runner.sock"))
    listening = socket.create_server(("127.0.0.1", 0), backlog=100)
    listening.setblocking(False)

    async def app() -> None:
        nonlocal taken
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(listening)
            taken += 1
            with connection:
                await loop.sock_sendall(connection, b"hello")

    port = listening.getsockname()[1]
    async with a_runner(tmp_path), bed.ports() as ports:
        await ports.expose(bed.tasks["t1"], port)
        path, serving = str(only(bed.access, ".raw")), asyncio.create_task(app())
        assert await exchange(path) == b"hello"
        await eventually(lambda: ports.gives_sockets("t1"), DEADLINE)
        assert await exchange(path) == b"hello"
        assert taken == 2
        serving.cancel()
    listening.close()
    threads.shutdown()


async def test_a_kernel_that_lets_no_more_sockets_be_sent_costs_no_connection(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that never reads the offers it got can use up what the shim's user may send."""

    def send_fds(*_: object) -> int:
        raise OSError(errno.ETOOMANYREFS, "too many references")

    monkeypatch.setattr(socket, "send_fds", send_fds)
    assert await exchange(path, b"early ", b"data") == b"hello early data"


async def test_a_shim_that_ends_before_it_gives_the_socket_ends_the_jobs_side(
    tmp_path: Path,
) -> None:
    ended = asyncio.Event()

    async def job(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        ended.set()

    server = await asyncio.start_server(job, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, a_runner(tmp_path), asyncio.timeout(DEADLINE):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "runner.sock")
        writer.write(b"CONNECT /v1/ports/%d HTTP/1.1\r\n%b\r\n\r\n" % (port, SOCKET_OFFERED))
        assert SOCKET_WANTED in await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await ended.wait()


async def test_an_offer_without_a_socket_is_the_callers_stream(tmp_path: Path) -> None:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, a_runner(tmp_path), asyncio.timeout(DEADLINE):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "runner.sock")
        with contextlib.closing(writer):
            writer.write(b"CONNECT /v1/ports/%d HTTP/1.1\r\n%b\r\n\r\n" % (port, SOCKET_OFFERED))
            assert SOCKET_WANTED in await reader.readuntil(b"\r\n\r\n")
            writer.write(socket_offer(b"early "))
            writer.write_eof()
            assert await reader.read() == SOCKET_NOT_TAKEN + b"hello early "


@pytest.mark.parametrize("message", [b"", b"\0", b"\0\5abc", b"\0\1abc"])
def test_what_is_no_offer_is_refused(message: bytes) -> None:
    with pytest.raises(ValueError, match="not an offer"):
        early_in(message)
