"""Why a daemon or a node cannot be reached, told without the words of the libraries that asked."""

from __future__ import annotations

import asyncio
import errno
import socket
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from unittest import mock

import aiohttp
import asyncssh
import pytest

from common.links.errors import why_unreachable
from controller.links.clients import LocalConnection
from runner.client import RunnerClient, RunnerUnavailable
from shim.client import ShimClient, ShimUnavailable
from tests.support.waiting import LONG


async def hang_up(reader: Reader, writer: Writer) -> None:
    await reader.readline()
    writer.close()


async def say_half(reader: Reader, writer: Writer) -> None:
    await reader.readline()
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
    writer.close()


async def babble(reader: Reader, writer: Writer) -> None:
    await reader.readline()
    writer.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
    writer.close()


async def say_nothing(reader: Reader, writer: Writer) -> None:
    await reader.read()
    writer.close()


Ask = Callable[[Path, float], Awaitable[None]]


async def by_shim(path: Path, patience: float) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session:
        await ShimClient(session, timeout=patience).health()


async def by_runner(path: Path, patience: float) -> None:
    connector = aiohttp.UnixConnector(str(path))
    async with aiohttp.ClientSession("http://r", connector=connector) as session:
        with mock.patch("runner.client.REQUEST_TIMEOUT", patience):
            await RunnerClient(session).health()


async def by_kept_connections(path: Path, patience: float) -> None:
    clients = LocalConnection(str(path))
    try:
        with mock.patch.object(clients.shim, "_timeout", aiohttp.ClientTimeout(total=patience)):
            await clients.shim.health()
    finally:
        await clients.close()


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Path]]]:
    servers: list[asyncio.Server] = []

    async def serve(answer: Callable[[Reader, Writer], Awaitable[None]]) -> Path:
        servers.append(await asyncio.start_unix_server(answer, tmp_path / "socket"))
        return tmp_path / "socket"

    yield serve
    for server in servers:
        server.close()


@pytest.mark.parametrize("ask", [by_shim, by_runner, by_kept_connections])
async def test_a_socket_that_is_not_there_is_named(ask: Ask, tmp_path: Path) -> None:
    path = tmp_path / "none.sock"
    with pytest.raises((ShimUnavailable, RunnerUnavailable)) as caught:
        await ask(path, LONG)
    assert str(caught.value).endswith(f"nothing answers at {path} (No such file or directory)")


@pytest.mark.parametrize("ask", [by_shim, by_runner, by_kept_connections])
@pytest.mark.parametrize("answer", [hang_up, say_half, babble])
async def test_a_connection_that_breaks_was_lost(
    ask: Ask,
    answer: Callable[[Reader, Writer], Awaitable[None]],
    serve: Callable[..., Awaitable[Path]],
) -> None:
    with pytest.raises((ShimUnavailable, RunnerUnavailable)) as caught:
        await ask(await serve(answer), LONG)
    assert str(caught.value).endswith("the connection was lost")


@pytest.mark.parametrize("ask", [by_shim, by_runner, by_kept_connections])
async def test_silence_is_said_to_be_silence(
    ask: Ask, serve: Callable[..., Awaitable[Path]]
) -> None:
    with pytest.raises((ShimUnavailable, RunnerUnavailable)) as caught:
        await ask(await serve(say_nothing), 0.2)
    assert str(caught.value).endswith("no answer came in time")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ECONNREFUSED, "Connect call failed ('::1', 22)"), "Connection refused"),
        (OSError("Multiple exceptions: [Errno 111] ..."), "none of its addresses answers"),
        # getpass's, of a user without a name.
        (OSError("No username set in the environment"), "No username set in the environment"),
        (socket.gaierror(-2, "Name or service not known"), "the name cannot be looked up"),
        (asyncssh.ConnectionLost("Connection lost"), "Connection lost"),
        (BrokenPipeError(), "the connection was lost"),
    ],
)
def test_each_failure_to_reach_a_node_is_told_in_plain_words(error: Exception, words: str) -> None:
    assert why_unreachable(error) == words
