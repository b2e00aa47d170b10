"""Ports of the job, reached through the runner's socket."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from common.streams import PortStream
from runner.client import RunnerClient, RunnerError, RunnerUnavailable
from tests.support.ssh_daemon import free_port
from tests.unit.runner.harness import DEADLINE, a_runner, a_session

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def listening(serve: Serve, host: str = "127.0.0.1") -> AsyncIterator[int]:
    """A server of the job's; gives its port."""
    server = await asyncio.start_server(serve, host, 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def answer_after_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reads to the end before it says a word: only a half-closed stream gets its answer."""
    digest = hashlib.sha256()
    while data := await reader.read(1 << 16):
        digest.update(data)
    writer.write(digest.hexdigest().encode())
    writer.close()


async def rest_of(stream: PortStream) -> bytes:
    data = stream.first
    async with asyncio.timeout(DEADLINE):
        while piece := await stream.reader.read(1 << 16):
            data += piece
    stream.writer.close()
    return data


async def test_sent_bytes_arrive_and_the_end_of_one_direction_is_handed_over(
    tmp_path: Path,
) -> None:
    sent = bytes(range(256)) * (64 << 10)
    async with a_runner(tmp_path) as (_, client), listening(answer_after_the_end) as port:
        stream = await client.connect_port(port)
        stream.writer.write(sent)
        await stream.writer.drain()
        stream.writer.write_eof()
        assert await rest_of(stream) == hashlib.sha256(sent).hexdigest().encode()


async def test_a_job_that_speaks_first_and_ends_first_is_heard_and_answered(
    tmp_path: Path,
) -> None:
    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.write_eof()
        heard.set_result(await reader.read())
        writer.close()

    async with a_runner(tmp_path) as (_, client), listening(greet) as port:
        stream = await client.connect_port(port)
        greeting = stream.first + await stream.reader.read()
        stream.writer.write(b"and goodbye")
        stream.writer.write_eof()
        assert await asyncio.wait_for(heard, DEADLINE) == b"and goodbye"
        stream.writer.close()
    assert greeting == b"hello"


async def test_a_slow_reader_gets_everything(tmp_path: Path) -> None:
    size = 32 << 20

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(size >> 20):
            writer.write(bytes(1 << 20))
            await writer.drain()
        writer.close()

    async with a_runner(tmp_path) as (_, client), listening(pour) as port:
        stream = await client.connect_port(port)
        got = len(stream.first)
        async with asyncio.timeout(DEADLINE):
            while data := await stream.reader.read(4096):
                got += len(data)
        stream.writer.close()
    assert got == size


async def test_many_connections_are_apart(tmp_path: Path) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())
        writer.close()

    async def ask(client: RunnerClient, port: int, text: bytes) -> bytes:
        stream = await client.connect_port(port)
        stream.writer.write(text)
        stream.writer.write_eof()
        return await rest_of(stream)

    texts = [b"%d" % number for number in range(50)]
    async with a_runner(tmp_path) as (_, client), listening(echo) as port:
        answers = await asyncio.gather(*(ask(client, port, text) for text in texts))
    assert answers == texts


async def test_a_server_that_listens_on_ipv6_only_is_reached(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client), listening(answer_after_the_end, "::1") as port:
        stream = await client.connect_port(port)
        stream.writer.write_eof()
        assert await rest_of(stream) == hashlib.sha256(b"").hexdigest().encode()


async def test_a_port_that_nobody_listens_on_is_a_clear_502(tmp_path: Path) -> None:
    port = free_port()
    async with a_runner(tmp_path) as (_, client):
        with pytest.raises(RunnerError) as caught:
            await client.connect_port(port)
    error = caught.value
    assert (error.status, error.code, error.field) == (502, "port_refused", "port")
    assert error.message == f"nothing listens on port {port} of the job (127.0.0.1 or ::1)"


@pytest.mark.parametrize("port", [0, 65536, 123456789])
async def test_a_number_that_is_no_port_is_refused(tmp_path: Path, port: int) -> None:
    async with a_runner(tmp_path) as (_, client):
        with pytest.raises(RunnerError) as caught:
            await client.connect_port(port)
    assert (caught.value.status, caught.value.field) == (400, "port")


@pytest.mark.parametrize(
    "head",
    [
        b"CONNECT /v1/health HTTP/1.1\r\n\r\n",
        b"CONNECT /v1/ports/80 SPDY/3\r\n\r\n",
        b"CONNECT " + b"x" * 9000,
    ],
)
async def test_nonsense_is_refused_and_the_connection_closed(tmp_path: Path, head: bytes) -> None:
    async with a_runner(tmp_path):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "runner.sock")
        for byte in head:
            writer.write(bytes([byte]))
        answer = await asyncio.wait_for(reader.read(), DEADLINE)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")


async def test_a_request_that_begins_like_a_connect_is_still_answered(tmp_path: Path) -> None:
    async with a_runner(tmp_path):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "runner.sock")
        writer.write(b"CO")
        await writer.drain()
        writer.write(b"PY /v1/health HTTP/1.1\r\nHost: runner\r\nConnection: close\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), DEADLINE)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 405 ")


async def test_relayed_connections_count_until_they_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.metrics.count_visitors", lambda *_, **__: 0)
    async with a_runner(tmp_path) as (_, client), listening(answer_after_the_end) as port:
        stream = await client.connect_port(port)
        during = (await client.metrics()).connections
        stream.writer.close()

        async with asyncio.timeout(DEADLINE):
            while after := (await client.metrics()).connections:
                pass
    assert (during, after) == (1, 0)


async def test_a_caller_that_vanishes_ends_the_jobs_side(tmp_path: Path) -> None:
    ended: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended.set_result(await reader.read())
        writer.close()

    async with a_runner(tmp_path) as (_, client), listening(wait) as port:
        stream = await client.connect_port(port)
        stream.writer.write(b"last words")
        stream.writer.close()
        assert await asyncio.wait_for(ended, DEADLINE) == b"last words"


async def test_a_runner_that_ends_closes_what_it_relays(tmp_path: Path) -> None:
    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    async with listening(wait) as port:
        async with a_runner(tmp_path) as (_, client):
            stream = await client.connect_port(port)
        assert await asyncio.wait_for(stream.reader.read(), DEADLINE) == b""
        stream.writer.close()


async def test_http_goes_through(tmp_path: Path) -> None:
    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
        writer.close()

    async with a_runner(tmp_path) as (_, client), listening(page) as port:
        stream = await client.connect_port(port)
        stream.writer.write(b"GET / HTTP/1.1\r\nHost: job\r\n\r\n")
        assert (await rest_of(stream)).endswith(b"\r\n\r\nhi")


async def test_without_a_way_to_the_socket_there_are_no_ports(tmp_path: Path) -> None:
    async with a_session(tmp_path / "runner.sock") as session:
        with pytest.raises(RunnerUnavailable, match="cannot reach the ports"):
            await RunnerClient(session).connect_port(80)


async def test_a_runner_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "runner.sock"
    async with aiohttp.ClientSession() as session:
        client = RunnerClient(session, dial=lambda: asyncio.open_unix_connection(path))
        with pytest.raises(RunnerUnavailable):
            await client.connect_port(80)


async def test_something_else_behind_the_socket_is_a_bad_answer(tmp_path: Path) -> None:
    async def babble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * 100_000)
        writer.close()

    path = tmp_path / "other.sock"
    server = await asyncio.start_unix_server(babble, path)
    async with server, aiohttp.ClientSession() as session:
        client = RunnerClient(session, dial=lambda: asyncio.open_unix_connection(path))
        with pytest.raises(RunnerError, match="not an answer of a runner"):
            await client.connect_port(80)
