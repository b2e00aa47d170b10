"""A request that ends while its channel opens leaves none behind, here or at the node's socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import asyncssh
import pytest
from asyncssh.channel import SSHChannel

from common.links.ssh_http import SshUnixConnector, connect_protocol, open_stream
from controller.links.clients import SshConnection
from tests.support.waiting import eventually
from tests.unit.links.linked import ssh_linked
from tests.unit.links.sshd import listening, sshd


class Ends:
    """A socket of the node, with how many of its connections have ended."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.ended = 0

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        self.ended += 1
        writer.close()


@contextlib.asynccontextmanager
async def node(folder: Path) -> AsyncIterator[tuple[SshConnection, Ends]]:
    ends = Ends(str(folder / "s"))
    async with listening() as sockets, sshd() as server, ssh_linked(sockets, server) as connection:
        listener = await asyncio.start_unix_server(ends.take, ends.path)
        try:
            yield connection, ends
        finally:
            listener.close()


class Untouched(asyncio.Protocol):
    """What is connected for somebody who has left says nothing."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        raise AssertionError("nobody waits for this connection any more")


async def stream(ssh: asyncssh.SSHClientConnection, path: str) -> None:
    await open_stream(ssh, path)


async def protocol(ssh: asyncssh.SSHClientConnection, path: str) -> None:
    await connect_protocol(ssh, path, Untouched)


async def request(ssh: asyncssh.SSHClientConnection, path: str) -> None:
    async with aiohttp.ClientSession("http://n", connector=SshUnixConnector(ssh, path)) as session:
        await session.get("/")


Opens = Callable[[asyncssh.SSHClientConnection, str], Coroutine[Any, Any, None]]


@pytest.mark.parametrize("opens", [stream, protocol, request])
async def test_a_channel_that_opens_after_its_opener_has_left_is_closed(
    opens: Opens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()
    send = SSHChannel._open

    async def note_and_send(channel: Any, *args: Any) -> Any:
        asked.set()
        return await send(channel, *args)

    monkeypatch.setattr(SSHChannel, "_open", note_and_send)
    async with node(tmp_path) as (connection, ends):
        opening = asyncio.create_task(opens(connection.ssh, ends.path))
        await asked.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await eventually(lambda: ends.ended == 1)
        # The connection serves others as before.
        assert (await connection.shim.health()).boot_id == "b"


@pytest.mark.parametrize("opens", [stream, request])
async def test_a_channel_that_opens_in_the_moment_in_which_its_opener_leaves_is_closed(
    opens: Opens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaving: list[asyncio.Task[None]] = []
    confirm = asyncssh.SSHUNIXChannel.process_open_confirmation

    def confirm_and_leave(channel: Any, *args: Any) -> None:
        confirm(channel, *args)
        # Three steps later the opener would go on with the channel: two tasks wake before it.
        for task in leaving:
            asyncio.get_running_loop().call_soon(task.cancel)

    monkeypatch.setattr(asyncssh.SSHUNIXChannel, "process_open_confirmation", confirm_and_leave)
    async with node(tmp_path) as (connection, ends):
        leaving.append(asyncio.create_task(opens(connection.ssh, ends.path)))
        with pytest.raises(asyncio.CancelledError):
            await leaving[0]
        await eventually(lambda: ends.ended == 1)
