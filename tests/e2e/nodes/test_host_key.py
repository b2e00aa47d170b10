"""A real sshd takes the host key that its node has made, while a controller is logged in."""

from __future__ import annotations

from pathlib import Path

import asyncssh
import pytest

from common.links.errors import LinkError
from common.links.host_keys import fetch, public_line
from shim.access.host_key import NodeHostKey
from tests.support.ssh_daemon import SshDaemon
from tests.support.waiting import eventually


async def test_a_reload_changes_the_key_of_new_logins_and_keeps_the_old_ones(
    testbed_folder: Path,
) -> None:
    sshd = SshDaemon(testbed_folder)
    mine = asyncssh.generate_private_key("ssh-ed25519")
    sshd.authorize(public_line(mine))
    sshd.start()

    async def login(pinned: str) -> asyncssh.SSHClientConnection:
        return await asyncssh.connect(
            "127.0.0.1",
            sshd.port,
            username=sshd.user,
            client_keys=[mine],
            known_hosts=([asyncssh.import_public_key(pinned)], [], []),
            server_host_key_algs=["ssh-ed25519"],
            config=None,
        )

    async def shown() -> tuple[str, ...]:
        try:
            return await fetch("127.0.0.1", sshd.port)
        except LinkError:
            return ()  # It executes itself again, and listens in a moment.

    try:
        first = await login(sshd.host_key)
        node = NodeHostKey(sshd.host_key_file(), sshd.reload)
        made = await node.prepare()
        assert sshd.host_key in await shown()
        await node.use(made.key)

        async def is_shown() -> bool:
            return made.key in await shown()

        is_new: bool = await eventually(is_shown)
        assert is_new
        reader, writer = await first.open_connection("127.0.0.1", sshd.port)
        assert await reader.readexactly(4) == b"SSH-"
        writer.close()
        async with await login(made.key):
            pass
        with pytest.raises(asyncssh.HostKeyNotVerifiable):
            await login(sshd.host_key)
        first.close()
        await first.wait_closed()
    finally:
        sshd.stop()
