"""A follower's own connections to nodes."""

from __future__ import annotations

import asyncio

import asyncssh

from common.links.errors import LinkError
from common.links.node_links import Exposed, NodeLinks
from common.streams import PortStream

CONNECT_SECONDS = 3.0
"""A node that is not reached in this time is the leader's alone for `AVOIDED_SECONDS`."""
AVOIDED_SECONDS = 30.0


class Nodes:
    """Opens streams to exposed ports. After a node could not be reached, it refuses at once for
    `AVOIDED_SECONDS`. `identity`: the key that opens exposed ports on nodes alone."""

    def __init__(self, identity: asyncssh.SSHKey) -> None:
        self.links = NodeLinks(identity)
        self._now = asyncio.get_running_loop().time
        self._avoided_until: dict[str, float] = {}

    async def connect(self, exposed: Exposed, first: bytes = b"") -> PortStream:
        """Open a stream to the exposed port, which is sent these bytes first. Raises LinkError,
        AgentError."""
        node_id = exposed.node_id
        if self._now() < self._avoided_until.get(node_id, 0.0):
            raise LinkError("its node could not be reached from here just now")
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                stream = await self.links.connect(exposed, first)
        except TimeoutError:
            self._avoid(node_id)
            raise LinkError(f"its node did not answer within {CONNECT_SECONDS:g} s") from None
        except LinkError:
            self._avoid(node_id)
            raise
        self._avoided_until.pop(node_id, None)
        return stream

    def _avoid(self, node_id: str) -> None:
        self._avoided_until[node_id] = self._now() + AVOIDED_SECONDS
