"""A rented machine gets a host key that only it knows (docs/rules.md 12.23).

The machine makes the key, a commit pins it next to the one of the user-data, the machine takes it
into use, and once a login with the new key alone has succeeded, a commit ends the trust in the
first. Each step can be repeated by the next connection, or the next controller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec.structs import replace

from common.links.errors import LinkError
from common.links.host_keys import BadHostKey, normalise
from controller.lifecycle.inventory import Node, NodeAddress
from controller.links.base import NodeLink, ShimApi
from controller.store.errors import StoreRefused, StoreUnavailable
from fairlead.wire.shim import RefusalCode
from shim.client import ShimError

log = logging.getLogger(__name__)
_FIRST_RETRY_SECONDS = 2.0
_MAX_RETRY_SECONDS = 300.0
_SSHD_SECONDS = 60.0
"""For so long sshd may take to have the new key."""
_SSHD_LOOK_SECONDS = 1.0


class NodeRecords(Protocol):
    """The records of nodes, as RunPipeline keeps them."""

    @property
    def nodes(self) -> Mapping[str, Node]: ...
    async def save_node(self, node: Node | None, node_id: str) -> None:
        """Return after the commit. Raises StoreError."""


class FreshHostKey:
    """Replaces one node's host key over its connection. `was_sent`: whether the node's key was in
    the user-data of its machine."""

    def __init__(
        self,
        node_id: str,
        records: NodeRecords,
        shim: ShimApi,
        make_link: Callable[[Node], NodeLink],
        was_sent: Callable[[Node], bool],
    ) -> None:
        self._node_id = node_id
        self._records = records
        self._shim = shim
        self._make_link = make_link
        self._was_sent = was_sent

    async def run(self) -> None:
        """Work until the node has a key of its own, or its shim leaves the key alone.

        Raises ShimUnavailable, LeaseLost.
        """
        wait = _FIRST_RETRY_SECONDS
        while (node := self._records.nodes.get(self._node_id)) is not None:
            if node.address.next_host_key is None and not self._was_sent(node):
                return
            try:
                await self._replace(node)
            # A store that refuses the record, or is away, ends no session: its jobs go on.
            except (ShimError, LinkError, BadHostKey, StoreRefused, StoreUnavailable) as error:
                if isinstance(error, ShimError) and error.code == RefusalCode.NOT_FOUND:
                    log.info("node %s keeps its first host key: %s", node.name, error)
                    return
                log.warning("node %s has no host key of its own yet: %s", node.name, error)
                await asyncio.sleep(wait)
                wait = min(_MAX_RETRY_SECONDS, 2 * wait)

    async def _replace(self, node: Node) -> None:
        address = node.address
        if address.next_host_key is None:
            fresh = normalise((await self._shim.prepare_host_key()).key)
            address = replace(address, next_host_key=fresh)
        # Also where the record has the key already: a connection that was cut leaves it there
        # before its commit, and a controller that dies now would be locked out.
        if not await self._save(node.address, address):
            return
        assert address.next_host_key is not None
        await self._shim.use_host_key(address.next_host_key)
        alone = replace(address, host_key=address.next_host_key, next_host_key=None)
        # Only then is it known that the node is not locked out.
        await self._log_in(replace(node, address=alone))
        await self._save(address, alone)

    async def _log_in(self, node: Node) -> None:
        """Log in once sshd has read the key. Raises LinkError.

        To read it sshd starts itself again, and until it listens it refuses connections. Another
        request to use the key would start it once more, and on a slow machine each login would
        come too early.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + _SSHD_SECONDS
        while True:
            try:
                tried = await self._make_link(node).connect()
            except LinkError:
                if loop.time() >= until:
                    raise
                await asyncio.sleep(_SSHD_LOOK_SECONDS)
            else:
                await tried.close()
                return

    async def _save(self, before: NodeAddress, after: NodeAddress) -> bool:
        """Commit the address; return False if somebody has changed it meanwhile."""
        node = self._records.nodes.get(self._node_id)
        if node is None or node.address != before:
            return False
        await self._records.save_node(replace(node, address=after), node.id)
        return True
