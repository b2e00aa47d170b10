"""A stolen key of the controller opens the sockets of its group, and nothing else.

sshd cannot refuse TCP from the node without refusing unix sockets too: that is left to the firewall
by owner, see tests/e2e/test_firewall.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import asyncssh
import pytest

from tests.support.docker_daemon import DockerDaemon
from tests.support.lab import RunLab

pytestmark = pytest.mark.e2e


@pytest.fixture
async def tunnel(lab: RunLab) -> AsyncIterator[asyncssh.SSHClientConnection]:
    """A connection as the controller makes them."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    await asyncio.to_thread(lab.sshd.authorize, key.export_public_key().decode())
    known = asyncssh.import_known_hosts(f"[127.0.0.1]:{lab.sshd.port} {lab.sshd.host_key}\n")
    async with asyncssh.connect(
        "127.0.0.1",
        lab.sshd.port,
        username=lab.sshd.user,
        client_keys=[key],
        known_hosts=known,
        config=None,
        agent_path=None,
    ) as connection:
        yield connection


async def test_it_reaches_the_shim(lab: RunLab, tunnel: asyncssh.SSHClientConnection) -> None:
    reader, writer = await tunnel.open_unix_connection(str(lab.shim.socket))
    writer.write(b"GET /v1/health HTTP/1.0\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.0 200")
    writer.close()


async def test_it_runs_no_command(tunnel: asyncssh.SSHClientConnection) -> None:
    result = await tunnel.run("id", check=False)
    assert result.exit_status != 0
    assert "uid=" not in str(result.stdout)


async def test_it_gets_no_shell_and_no_terminal(tunnel: asyncssh.SSHClientConnection) -> None:
    process = await tunnel.create_process(None)
    with contextlib.suppress(BrokenPipeError):  # it may be gone before it is asked anything
        process.stdin.write("id\n")
    result = await process.wait()
    assert result.exit_status != 0
    assert "uid=" not in str(result.stdout)
    with pytest.raises(asyncssh.ChannelOpenError):
        await tunnel.run("id", term_type="xterm")


async def test_it_gets_no_files(tunnel: asyncssh.SSHClientConnection) -> None:
    with pytest.raises((asyncssh.SFTPError, asyncssh.ChannelOpenError)):
        await tunnel.start_sftp_client()


async def test_it_does_not_reach_the_docker_engine(
    dockerd: DockerDaemon, tunnel: asyncssh.SSHClientConnection
) -> None:
    with pytest.raises(asyncssh.ChannelOpenError):
        await tunnel.open_unix_connection(str(dockerd.socket))


async def test_it_may_not_listen_on_the_node(
    lab: RunLab, tunnel: asyncssh.SSHClientConnection
) -> None:
    with pytest.raises(asyncssh.ChannelListenError):
        await tunnel.forward_remote_port("127.0.0.1", 0, "127.0.0.1", 9)
    with pytest.raises(asyncssh.ChannelListenError):
        await tunnel.forward_remote_path(str(lab.shim.socket.parent / "mine"), "/nowhere")
