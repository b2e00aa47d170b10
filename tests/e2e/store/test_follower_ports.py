"""Forwarded ports and terminals at followers: they go to jobs past the leader, and outlast it."""

from __future__ import annotations

import asyncio
import pwd
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import aiohttp
import asyncssh
import pytest

from fairlead.rest import ControllerClient, decode
from tests.e2e.store.test_follower_services import add_node, controllers
from tests.e2e.store.test_leaders import Controllers
from tests.support.processes import ControllerProcess
from tests.support.ssh_daemon import GATEWAY_USER, SshDaemon, free_port
from tests.support.terminals import shown
from tests.support.testbed import ShimFactory
from tests.support.waiting import LONG, wait_until

__all__ = ["controllers"]
pytestmark = pytest.mark.e2e
_ECHO = """
import asyncio, sys
async def echo(reader, writer):
    while data := await reader.read(1 << 16):
        writer.write(data.upper())
        await writer.drain()
    writer.close()
async def main():
    async with await asyncio.start_server(echo, "127.0.0.1", int(sys.argv[1])) as server:
        await server.serve_forever()
asyncio.run(main())
"""
Socket = aiohttp.ClientWebSocketResponse[bool]


class Users:
    """Ada has a job that echoes at `port`; Eve has nothing."""

    def __init__(self, controllers: Controllers) -> None:
        self.controllers = controllers
        self.admin = ControllerClient(controllers.all[0].url, controllers.token)
        self.ada, self.eve = (self._add(name) for name in ("ada", "eve"))
        self.port = free_port()
        body = {
            "type": "task",
            "name": "echo",
            "commands": [f"exec {sys.executable} -c '{_ECHO}' {self.port}"],
            "ssh": "embedded",
            "resources": {"cpu": 0.1, "memory": "64MB"},
        }
        own = ControllerClient(controllers.all[0].url, self.ada)
        own.post("/v1/runs", {"configuration": body})
        wait_until(lambda: _listens(self.port), what="the job")

    def _add(self, name: str) -> str:
        return str(
            decode(self.admin.post("/v1/users", {"name": name}), dict[str, Any])["token"]["token"]
        )

    def revoke(self, at: ControllerProcess) -> None:
        """Revoke all tokens of Ada."""
        client = ControllerClient(at.url, self.controllers.token)
        tokens = decode(client.get("/v1/tokens?user=ada"), dict[str, Any])["tokens"]
        for one in tokens:
            client.delete(f"/v1/tokens/{one['id']}")


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


@asynccontextmanager
async def _opened(at: ControllerProcess, path: str, token: str) -> AsyncIterator[Socket]:
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.ws_connect(f"{at.url}/v1/runs/echo/{path}") as opened,
    ):
        yield opened


async def _talk(opened: Socket) -> None:
    await opened.send_bytes(b"hello")
    assert await opened.receive_bytes() == b"HELLO"


async def _type(opened: Socket, number: int) -> None:
    """Have the shell work something out."""
    await opened.send_bytes(f"echo typed-$(({number} + 1))\n".encode())
    await shown(opened, f"typed-{number + 1}")


async def _status(at: ControllerProcess, path: str, token: str) -> int:
    try:
        async with _opened(at, path, token):
            return 101
    except aiohttp.WSServerHandshakeError as error:
        return error.status


async def test_ports_and_terminals_at_a_follower_outlast_the_leader_and_end_with_their_token(
    controllers: Controllers,
) -> None:
    first, follower, _ = controllers.all
    users = await asyncio.to_thread(Users, controllers)
    port = f"ports/{users.port}"
    async with (
        _opened(follower, port, users.ada) as forwarded,
        _opened(follower, "terminal", users.ada) as terminal,
    ):
        await _talk(forwarded)
        await _type(terminal, 1)
        await asyncio.to_thread(first.kill9)
        # New ones begin while nobody leads, for those alone who may.
        assert await _status(follower, port, users.eve) == 404
        assert await _status(follower, "terminal", users.eve) == 404
        async with _opened(follower, port, users.ada) as another:
            await _talk(another)
        number = 2
        while not await asyncio.to_thread(controllers.has_successor):
            await _talk(forwarded)
            await _type(terminal, number)
            number += 1
        await _talk(forwarded)
        await _type(terminal, number)

        leader = await asyncio.to_thread(controllers.leader, follower)
        await asyncio.to_thread(users.revoke, leader)
        assert await _have_ended(forwarded, terminal)
    assert await _status(follower, port, users.ada) == 401


async def test_who_logs_in_as_gateways_do_finds_no_way_to_a_job(
    controllers: Controllers, sshd: SshDaemon, testbed_folder: Path
) -> None:
    _, follower, _ = controllers.all
    users = await asyncio.to_thread(Users, controllers)
    before = await asyncio.to_thread(_sockets, testbed_folder)
    async with _opened(follower, f"ports/{users.port}", users.ada) as forwarded:
        await _talk(forwarded)
        (way,) = await asyncio.to_thread(_sockets, testbed_folder) - before
        view = await asyncio.to_thread(users.admin.get, "/v1/runs/echo")
        (job,) = decode(view, dict[str, Any])["jobs"]
        task = job["attempts"][-1]["id"]
        key = asyncssh.generate_private_key("ssh-ed25519")
        with sshd.gateway_keys.open("a") as keys:
            keys.write(f"restrict,port-forwarding {key.export_public_key().decode()}\n")
        async with asyncssh.connect(
            "127.0.0.1",
            sshd.port,
            username=GATEWAY_USER,
            client_keys=[key],
            known_hosts=None,
            config=None,
        ) as ssh:
            for guess in (f"{task}-{users.port}.sock", f"{task}-0.sock", f"{task}.sock", ""):
                with pytest.raises(asyncssh.ChannelOpenError):
                    await ssh.open_unix_connection(str(way.parent / guess))
            # Its name is all that it lacks.
            reader, writer = await ssh.open_unix_connection(str(way))
            writer.write(b"%d\n" % users.port)
            assert await reader.readline() == b"ok\n"
            writer.close()
        account = pwd.getpwnam(GATEWAY_USER)
        listed = await asyncio.to_thread(
            subprocess.run,
            ["ls", str(way.parent)],
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=[],
            capture_output=True,
        )
        assert (listed.returncode, listed.stdout) == (2, b"")
        assert way.stem not in await asyncio.to_thread(Path("/proc/net/unix").read_text)


def _sockets(folder: Path) -> set[Path]:
    """Return those that shims expose or have exposed."""
    return set(folder.glob("exposed*/*.sock"))


@pytest.fixture
def unexposing(
    database_url: str, tmp_path: Path, shim_process: ShimFactory, sshd: SshDaemon
) -> Iterator[Controllers]:
    """With a node whose shim exposes nothing."""
    made = Controllers(tmp_path, database_url)
    with closing(made):
        made.start()
        add_node(made, sshd, shim_process("process", "--cpus", "2"))
        yield made


async def test_on_a_node_that_exposes_nothing_the_leader_carries_ports_and_terminals(
    unexposing: Controllers,
) -> None:
    first, follower, _ = unexposing.all
    users = await asyncio.to_thread(Users, unexposing)
    async with (
        _opened(follower, f"ports/{users.port}", users.ada) as forwarded,
        _opened(follower, "terminal", users.ada) as terminal,
    ):
        await _talk(forwarded)
        await _type(terminal, 1)
        await asyncio.to_thread(first.kill9)
        assert await _have_ended(forwarded, terminal)


async def _have_ended(*sockets: Socket) -> bool:
    """Read what still comes. Raises TimeoutError."""
    async with asyncio.timeout(LONG):
        for opened in sockets:
            while not opened.closed:
                await opened.receive()
    return all(opened.closed for opened in sockets)
