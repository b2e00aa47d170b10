"""The leader has a node expose a port of a job, for followers: they log in there as gateways do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec

from common.links.errors import LinkError
from controller.gateways.snapshots import node_of
from controller.links.base import NodeConnection
from controller.links.gateway_keys import put_keys
from controller.pipelines.run_pipeline import RunPipeline
from controller.pipelines.to_node import AttemptContext, find
from controller.ways.messages import JobWay
from fairlead.wire.shim import ANY_PORT, Fence
from shim.client import ShimError, ShimUnavailable

log = logging.getLogger(__name__)
EXPOSE_SECONDS = 15.0
_FAILURES = (TimeoutError, LinkError, ShimError, ShimUnavailable)


class Exposer(msgspec.Struct, frozen=True, kw_only=True):
    """How the leader commands nodes. `keys`: those by which gateways and followers log in there."""

    pipeline: RunPipeline
    connect: Callable[[str], Awaitable[NodeConnection]]
    keys: Callable[[], tuple[str, ...]]
    fence: Fence

    def can_expose(self, node_id: str) -> bool:
        """Return whether the node's shim exposes ports at all."""
        node = self.pipeline.nodes.get(node_id)
        return node is not None and node.capacity.gateways

    async def expose(self, node_id: str, run_id: str, attempt_id: str, port: int) -> str | None:
        """Return the socket of this port of the attempt, which is on this node; None: there is none
        (yet)."""
        try:
            async with asyncio.timeout(EXPOSE_SECONDS):
                shim = (await self.connect(node_id)).shim
                # Its run may have changed while the node was waited for.
                context = self._find(run_id, attempt_id)
                if context is None:
                    return None
                await put_keys(shim, self.keys)
                exposed = await shim.expose(
                    attempt_id,
                    port,
                    run_id=run_id,
                    fence=self.fence,
                    incarnation=context.run_incarnation,
                )
        except _FAILURES as error:
            log.debug("no way for followers to %s: %s", attempt_id, error)
            return None
        return exposed.socket

    async def lend(self, run_id: str, attempt_id: str) -> bytes | None:
        """Return the way to all ports of this attempt, for a follower that has judged its user;
        None: there is none, as on the node of a shim of an earlier version."""
        context = self._find(run_id, attempt_id)
        node_id = "" if context is None else context.attempt.node_id or ""
        if not self.can_expose(node_id):
            return None
        socket = await self.expose(node_id, run_id, attempt_id, ANY_PORT)
        node = self.pipeline.nodes.get(node_id)
        if socket is None or node is None:
            return None
        return msgspec.json.encode(JobWay(socket=socket, node=node_of(node)))

    def _find(self, run_id: str, attempt_id: str) -> AttemptContext | None:
        state = self.pipeline.known.get(run_id)
        return None if state is None else find(state, attempt_id)
