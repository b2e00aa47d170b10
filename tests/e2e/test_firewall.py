"""The firewall by owner that nodes get, on a machine with a real sshd: the controller's key reaches
the shim's socket and opens no TCP connection, neither by IPv4 nor by IPv6."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncssh
import pytest

from tests.support.daemons import Daemon, run
from tests.support.machines import Host, hosts
from tests.support.ssh_daemon import CHECKOUT, GATEWAY_USER, JUMP_USER, TUNNEL_USER, free_port

pytestmark = pytest.mark.e2e

RULES = CHECKOUT / "packer/firewall.nft"
UNIT = CHECKOUT / "packer/systemd/fairlead-firewall.service"
INSTALLED_RULES = "/etc/fairlead/firewall.nft"
_USER = 'define tunnel_user = "fairlead"\n'
_SERVER = """
import asyncio, sys

async def greet(reader, writer):
    writer.write(b"hello")
    writer.close()

async def main():
    server = await asyncio.start_server(greet, sys.argv[2:], int(sys.argv[1]))
    await server.serve_forever()

asyncio.run(main())
"""
ADDRESSES = ("127.0.0.1", "::1", "localhost", "of the host")


class Firewall:
    """Obeys the unit's commands on one host, with the rules for the tests' own tunnel user."""

    def __init__(self, host: Host, folder: Path) -> None:
        self._host = host
        self._rules = folder / "firewall.nft"
        text = RULES.read_text()
        assert _USER in text
        self._rules.write_text(text.replace(_USER, f'define tunnel_user = "{TUNNEL_USER}"\n'))

    def do(self, setting: str) -> None:
        """`ExecStart`, `ExecReload` or `ExecStop`."""
        for line in UNIT.read_text().splitlines():
            name, _, command = line.partition("=")
            if name == setting and not command.startswith("-"):
                command = command.replace(INSTALLED_RULES, str(self._rules))
                run(self._host.in_its_network(*shlex.split(command)))


class FirewallByHand:
    """Obeys the guide."""

    def __init__(self, host: Host) -> None:
        self._host = host
        guide = (CHECKOUT / "docs/nodes.md").read_text()
        (loop,) = re.findall(r"^for tables in .*?^done$", guide, re.MULTILINE | re.DOTALL)
        self._loop = loop.replace("--uid-owner fairlead", f"--uid-owner {TUNNEL_USER}")

    def load(self) -> None:
        self._do(self._loop)

    def unload(self) -> None:
        self._do(self._loop.replace(" -A ", " -D "))

    def _do(self, script: str) -> None:
        run(self._host.in_its_network("sh", "-ec", script))


@pytest.fixture(scope="module")
def host(testbed_folder: Path) -> Iterator[Host]:
    with hosts(testbed_folder / "firewall", 1) as (made,):
        yield made


@pytest.fixture(scope="module")
def port(host: Host, testbed_folder: Path) -> Iterator[int]:
    """Of a server on all of the host's addresses, which greets."""
    port = free_port()
    argv = [sys.executable, "-c", _SERVER, str(port), "127.0.0.1", "::1", host.address]
    server = Daemon(host.in_its_network(*argv), testbed_folder / "greeter.log", outlasts_tests=True)
    server.spawn()
    ask = ["bash", "-c", f"read -rN5 words </dev/tcp/::1/{port} && echo $words"]
    server.wait_ready(lambda: _says_hello(host, ask))
    yield port
    server.stop()


def _says_hello(host: Host, ask: list[str]) -> bool:
    return run(["sh", "-c", '"$@" || true', "sh", *host.in_its_network(*ask)]).strip() == "hello"


@pytest.fixture
def firewall(host: Host, tmp_path: Path) -> Iterator[None]:
    made = Firewall(host, tmp_path)
    made.do("ExecStart")
    yield
    made.do("ExecStop")


@asynccontextmanager
async def logged_in(
    host: Host, user: str, key: asyncssh.SSHKey
) -> AsyncIterator[asyncssh.SSHClientConnection]:
    known = f"[{host.address}]:{host.sshd.port} {host.sshd.host_key}\n"
    async with asyncssh.connect(
        host.address,
        host.sshd.port,
        username=user,
        client_keys=[key],
        known_hosts=asyncssh.import_known_hosts(known),
        config=None,
        agent_path=None,
    ) as connection:
        yield connection


@pytest.fixture
async def tunnel(host: Host) -> AsyncIterator[asyncssh.SSHClientConnection]:
    """As the controller logs in."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    await asyncio.to_thread(host.sshd.authorize, key.export_public_key().decode())
    async with logged_in(host, TUNNEL_USER, key) as connection:
        yield connection


async def greeting(connection: asyncssh.SSHClientConnection, address: str, port: int) -> bytes:
    reader, writer = await connection.open_connection(address, port)
    words: bytes = await reader.read()
    writer.close()
    return words


@pytest.mark.parametrize("address", ADDRESSES)
async def test_the_tunnel_user_opens_no_tcp_connection(
    host: Host, port: int, tunnel: asyncssh.SSHClientConnection, tmp_path: Path, address: str
) -> None:
    """sshd alone would let it: that is what the firewall is for."""
    firewall = Firewall(host, tmp_path)
    target = host.address if address == "of the host" else address
    assert await greeting(tunnel, target, port) == b"hello"
    for loads_it in ("ExecStart", "ExecStart", "ExecReload"):
        await asyncio.to_thread(firewall.do, loads_it)
        with pytest.raises(asyncssh.ChannelOpenError):
            await greeting(tunnel, target, port)
    await asyncio.to_thread(firewall.do, "ExecStop")
    assert await greeting(tunnel, target, port) == b"hello"


@pytest.mark.parametrize("address", ADDRESSES)
async def test_a_gateways_key_opens_no_tcp_connection(
    host: Host, port: int, tmp_path: Path, address: str
) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519")
    public = key.export_public_key().decode()
    host.sshd.gateway_keys.write_text(f"restrict,port-forwarding {public}")
    firewall = Firewall(host, tmp_path)
    target = host.address if address == "of the host" else address
    async with logged_in(host, GATEWAY_USER, key) as connection:
        assert await greeting(connection, target, port) == b"hello"
        await asyncio.to_thread(firewall.do, "ExecStart")
        with pytest.raises(asyncssh.ChannelOpenError):
            await greeting(connection, target, port)
        await asyncio.to_thread(firewall.do, "ExecStop")


@pytest.mark.parametrize("address", ADDRESSES)
async def test_the_rules_by_hand_refuse_the_same(
    host: Host, port: int, tunnel: asyncssh.SSHClientConnection, address: str
) -> None:
    firewall = FirewallByHand(host)
    target = host.address if address == "of the host" else address
    await asyncio.to_thread(firewall.load)
    with pytest.raises(asyncssh.ChannelOpenError):
        await greeting(tunnel, target, port)
    await asyncio.to_thread(firewall.unload)
    assert await greeting(tunnel, target, port) == b"hello"


@pytest.mark.usefixtures("firewall")
async def test_the_controllers_connection_and_the_shims_socket_are_left_alone(
    host: Host, tunnel: asyncssh.SSHClientConnection
) -> None:
    reader, writer = await tunnel.open_unix_connection(str(host.shim.socket))
    writer.write(b"GET /v1/health HTTP/1.0\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.0 200")
    writer.close()


@pytest.mark.usefixtures("firewall")
async def test_users_reach_the_ports_of_their_jobs_as_before(host: Host, port: int) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519")
    public = key.export_public_key().decode()
    lent = f'restrict,port-forwarding,permitopen="127.0.0.1:{port}" {public}'
    host.sshd.jump_keys.write_text(lent)
    async with logged_in(host, JUMP_USER, key) as connection:
        assert await greeting(connection, "127.0.0.1", port) == b"hello"
