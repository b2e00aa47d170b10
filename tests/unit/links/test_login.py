"""A login trusts one key, also later, and leaves nothing when it is given up."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import socket

import asyncssh
import pytest
from msgspec.structs import replace

from common.links.errors import HostKeyRefused
from common.links.host_keys import public_line
from common.links.ssh import _ShortReads
from controller.links.clients import SshConnection, SshLink
from shim.client import ShimUnavailable
from tests.support.waiting import LONG, eventually
from tests.unit.links.linked import http_over_ssh, ssh_linked
from tests.unit.links.sshd import CLIENT_KEY, HEALTH, HOST_KEYS, STRANGER_KEY, Sshd, listening, sshd


async def test_connections_made_together_each_have_their_own_host_and_key() -> None:
    async with (
        listening() as sockets,
        sshd(HOST_KEYS["ed25519"]) as one,
        sshd(HOST_KEYS["ecdsa"]) as other,
    ):
        links = [SshLink(server.address(sockets.path), CLIENT_KEY) for server in (one, other) * 8]
        wrong = SshLink(other.address(sockets.path, HOST_KEYS["ed25519"]), CLIENT_KEY)
        *connections, refused = await asyncio.gather(
            *(link.connect() for link in links), wrong.connect(), return_exceptions=True
        )
        assert isinstance(refused, HostKeyRefused)
        for connection in connections:
            assert not isinstance(connection, BaseException)
            assert await connection.shim.health() == HEALTH
        made = [c for c in connections if not isinstance(c, BaseException)]
        assert (len(one.connections), len(other.connections)) >= (8, 8)
        for connection in made:
            await connection.close()


@pytest.mark.parametrize("served", ["ed25519", "ecdsa"])
async def test_a_second_key_is_accepted_while_a_node_changes_its_own(served: str) -> None:
    async with listening() as sockets, sshd(HOST_KEYS[served]) as server:
        pinned = server.address(sockets.path, HOST_KEYS["ed25519"])
        both = replace(pinned, next_host_key=public_line(HOST_KEYS["ecdsa"]))
        connection = await SshLink(both, CLIENT_KEY).connect()
        assert await connection.shim.health() == HEALTH
        await connection.close()


async def test_a_third_key_is_refused_while_a_node_changes_its_own() -> None:
    async with listening() as sockets, sshd(HOST_KEYS["rsa"]) as server:
        pinned = server.address(sockets.path, HOST_KEYS["ed25519"])
        both = replace(pinned, next_host_key=public_line(HOST_KEYS["ecdsa"]))
        with pytest.raises(HostKeyRefused):
            await SshLink(both, CLIENT_KEY).connect()


async def test_keys_are_exchanged_anew_while_a_body_goes_both_ways(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "asyncssh")
    body = bytes(range(256)) * (4 << 12)
    async with http_over_ssh(rekey_bytes=1 << 20) as (session, _, _):
        caplog.clear()
        response = await session.post("/echo", data=io.BytesIO(body))
        assert await response.read() == body
        assert "Completed key exchange" in caplog.text


async def test_another_host_key_in_a_new_exchange_ends_the_connection(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "asyncssh")
    async with (
        listening() as sockets,
        sshd(rekey_bytes=4096) as server,
        ssh_linked(sockets, server) as connection,
    ):
        (far,) = server.connections
        (stranger,) = asyncssh.load_keypairs([STRANGER_KEY])
        monkeypatch.setattr(far, "get_server_host_key", lambda: stranger)
        with pytest.raises(ShimUnavailable):
            await _ask_often(connection)
        await connection.wait_closed()
    assert "Connection failure: Host key is not trusted" in caplog.text


async def _ask_often(connection: SshConnection) -> None:
    for _ in range(100):
        await connection.shim.health()


async def test_what_comes_is_given_in_short_pieces() -> None:
    sent, taken = os.urandom(1 << 20), list[bytes]()
    near, far = socket.socketpair()
    over = asyncio.get_running_loop().create_future()

    class Taking(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            taken.append(data)

        def connection_lost(self, exc: Exception | None) -> None:
            over.set_result(exc)

    await asyncio.get_running_loop().create_connection(lambda: _ShortReads(Taking()), sock=near)
    with far:
        await asyncio.to_thread(far.sendall, sent)
    assert await over is None
    assert b"".join(taken) == sent
    assert max(map(len, taken)) <= 64 << 10


async def test_a_login_that_is_given_up_leaves_no_connection() -> None:
    came, left = asyncio.Event(), asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        came.set()
        await reader.read()
        left.set()
        writer.close()

    listener = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    async with listener, asyncio.timeout(LONG):
        silent = Sshd(listener.sockets[0].getsockname()[1], HOST_KEYS["ed25519"])
        login = asyncio.create_task(SshLink(silent.address("/shim.sock"), CLIENT_KEY).connect())
        await came.wait()
        login.cancel()
        await asyncio.gather(login, return_exceptions=True)
        await left.wait()
    assert login.cancelled()


async def test_a_channel_that_nobody_uses_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.links.ssh_http.IDLE_SECONDS", 0.5)
    async with listening() as sockets, sshd() as server, ssh_linked(sockets, server) as connection:
        await connection.shim.health()
        assert sockets.connections == 1
        await eventually(lambda: sockets.connections == 0)
        assert await connection.shim.health() == HEALTH
