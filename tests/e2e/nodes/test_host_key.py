"""A real sshd takes the host key that its node has made, while a controller is logged in."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import asyncssh
import pytest

from common.links.errors import LinkError
from common.links.host_keys import fetch, public_line
from controller.lifecycle.inventory import Node, NodeAddress
from controller.links.base import NodeLink, ShimApi
from controller.links.clients import SshLink
from controller.nodes.host_keys import FreshHostKey
from fairlead.wire.node import HostKey
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


class _Machine:
    """The records of one node, and the part of its shim that changes the key of a real sshd."""

    def __init__(self, sshd: SshDaemon) -> None:
        address = NodeAddress(
            host="127.0.0.1",
            port=sshd.port,
            user=sshd.user,
            shim_socket="/run/none",
            host_key=" ".join(sshd.host_key.split()[:2]),
        )
        self.nodes = {"n1": Node(id="n1", name="slow", address=address, created_at=0.0)}
        self.uses = 0
        self._key = NodeHostKey(sshd.host_key_file(), sshd.reload)

    async def save_node(self, node: Node | None, node_id: str) -> None:
        assert node is not None
        self.nodes[node_id] = node

    async def prepare_host_key(self) -> HostKey:
        return await self._key.prepare()

    async def use_host_key(self, key: str) -> None:
        self.uses += 1
        await self._key.use(key)


async def test_a_slow_sshd_reads_its_own_key_once_and_the_controller_waits_for_it(
    testbed_folder: Path,
) -> None:
    """Each reload makes sshd begin again. One before each login would make each login too early."""
    folder = testbed_folder / "slow"
    folder.mkdir()
    sshd = SshDaemon(folder, begins_in=3.0)
    mine = asyncssh.generate_private_key("ssh-ed25519")
    sshd.authorize(public_line(mine))
    sshd.start()
    try:
        machine = _Machine(sshd)
        sent = machine.nodes["n1"].address.host_key

        def link(node: Node) -> NodeLink:
            return SshLink(node.address, mine)

        await FreshHostKey(
            "n1",
            machine,
            cast(ShimApi, machine),
            link,
            lambda node: node.address.host_key == sent,
        ).run()
        address = machine.nodes["n1"].address
        assert address.next_host_key is None
        assert address.host_key != sent
        assert machine.uses == 1
    finally:
        sshd.stop()
