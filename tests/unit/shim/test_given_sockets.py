"""Connections to exposed ports that the shim gives to the runner: one process fewer on the way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairlead.wire.runner import (
    MAX_EARLY,
    SOCKET_NOT_TAKEN,
    SOCKET_OFFERED,
    SOCKET_TAKEN,
    SOCKET_WANTED,
    early_in,
    socket_offer,
)
from shim.access import exposed_ports
from shim.access.exposed_ports import ExposedPorts
from shim.daemon import disk_threads
from tests.support.waiting import eventually
from tests.unit.runner.harness import a_runner
from tests.unit.shim.test_exposed_ports import DEADLINE, Bed, PlayedRunner

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
        path = str(bed.access.raw_socket("t1", port))
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
    for end in (exposed_ports._Caller, exposed_ports._Port):
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
    """What a test plays in the place of a runner: it wants a socket, and answers with `answer`."""

    def __init__(self, path: Path, *answers: bytes) -> None:
        self.path = path
        self.answers = list(answers)
        self.offers: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            head = await reader.readuntil(b"\r\n\r\n")
            if SOCKET_OFFERED not in head:
                writer.write(b"HTTP/1.1 200 OK\r\n\r\nplain ")
                writer.write(await reader.read())
                return
            writer.write(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % SOCKET_WANTED)
            # A stream's reader leaves the socket that comes with the message, as the kernel may.
            self.offers.append(await reader.read(1 << 16))
            writer.write(self.answers.pop(0))


@contextlib.asynccontextmanager
async def played(folder: Path, *answers: bytes) -> AsyncIterator[tuple[Runner, Bed, ExposedPorts]]:
    threads = disk_threads()
    runner = Runner(folder / "runner.sock", *answers)
    server = await asyncio.start_unix_server(runner.serve, runner.path)
    bed = Bed(folder, threads, PlayedRunner(runner.path))
    async with server, bed.ports() as ports:
        await ports.expose(bed.tasks["t1"], 8000)
        yield runner, bed, ports
    threads.shutdown()


async def test_a_runner_that_gets_no_sockets_is_not_offered_one_again(tmp_path: Path) -> None:
    """A security module may withhold what comes from outside of a container."""
    async with played(tmp_path, SOCKET_NOT_TAKEN) as (runner, bed, ports):
        raw = str(bed.access.raw_socket("t1", 8000))
        for number in range(5):
            assert await exchange(raw, b"%d" % number) == b"plain %d" % number
        await eventually(lambda: not runner.answers, DEADLINE)
        assert await exchange(raw, b"5") == b"plain 5"
        assert not ports.gives_sockets("t1")
        assert runner.offers == [socket_offer(b"")]


async def test_a_job_that_keeps_a_socket_and_says_no_ends_its_connection_alone(
    tmp_path: Path,
) -> None:
    """It may have made the socket block: the shim neither reads nor writes there any more."""
    async with played(tmp_path, SOCKET_TAKEN, SOCKET_NOT_TAKEN) as (_, bed, ports):
        raw = str(bed.access.raw_socket("t1", 8000))
        assert await exchange(raw, b"first") == b"plain first"
        await eventually(lambda: ports.gives_sockets("t1"), DEADLINE)
        with contextlib.suppress(ConnectionError):
            reader, writer = await asyncio.open_unix_connection(raw)
            with contextlib.closing(writer):
                assert await asyncio.wait_for(reader.read(), DEADLINE) == b""
        telling = bed.access.socket("t1", 8000)
        assert await exchange(str(telling), b"next") == b"ok\nplain next"


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
