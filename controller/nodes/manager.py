"""NodeManager holds a session for each node and hands out its live connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from controller.clock import Chance, Clock
from controller.lifecycle.model import Node, NodeStatus
from controller.links.base import NodeConnection, NodeLink
from controller.nodes.session import Handshakes, NodeSession, Settings
from controller.nodes.sync import SessionListener
from controller.pipelines.run_pipeline import ANY_NODE, RunPipeline

log = logging.getLogger(__name__)


class NodeManager:
    """Keeps the sessions. All other parts reach a node through `connection(node_id)`."""

    def __init__(
        self,
        pipeline: RunPipeline,
        make_link: Callable[[Node], NodeLink],
        clock: Clock,
        chance: Chance,
        settings: Settings | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._make_link = make_link
        self._clock = clock
        self._chance = chance
        self._settings = settings or Settings()
        self._handshakes = Handshakes()
        self._sessions: dict[str, NodeSession] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._matched: int | None = None
        """The pipeline's `membership` for which the sessions are right."""

    async def run(self, listener: SessionListener) -> None:
        """Keep one session for each node until cancelled.

        A node that was connected when the former controller ended counts as silent from now; one
        that was not goes on counting.
        """
        for node in list(self._pipeline.nodes.values()):
            if node.status is NodeStatus.CONNECTED:
                fresh = msgspec.structs.replace(
                    node, status=NodeStatus.CONNECTING, last_seen_at=self._clock.now()
                )
                self._pipeline.set_node(fresh, node.id)
        self._matched = None
        try:
            async with self._pipeline.watch(ANY_NODE) as changed:
                while True:
                    changed.clear()
                    await self._match(listener)
                    await changed.wait()
        finally:
            await self._end(list(self._tasks))

    async def connection(self, node_id: str) -> NodeConnection:
        """Return the live connection; waits for it as long as necessary."""
        while True:
            session = self._sessions.get(node_id)
            if session is None:
                async with self._pipeline.watch(None) as changed:
                    await changed.wait()
                continue
            await session.up.wait()
            # The connection can be lost between the event and this task's next step.
            if session.connection is not None:
                return session.connection

    def look(self, node_id: str) -> None:
        """Have the node's session look again at what the node is to be told."""
        session = self._sessions.get(node_id)
        if session is not None:
            session.look()

    async def _match(self, listener: SessionListener) -> None:
        # Each commit about any node wakes it, and most change nobody's membership.
        if self._matched == self._pipeline.membership:
            return
        self._matched = self._pipeline.membership
        wanted = {
            node_id
            for node_id, node in self._pipeline.nodes.items()
            if node.status is not NodeStatus.EXPECTED
        }
        if wanted == self._sessions.keys():
            return
        for node_id in wanted - self._sessions.keys():
            session = NodeSession(
                node_id,
                self._make_link,
                self._pipeline,
                listener,
                self._clock,
                self._chance,
                self._handshakes,
                self._settings,
            )
            self._sessions[node_id] = session
            self._tasks[node_id] = asyncio.create_task(session.run(), name=f"node-{node_id}")
        await self._end(list(self._sessions.keys() - wanted))

    async def _end(self, node_ids: list[str]) -> None:
        # Taken out before they are awaited: `connection` must hand out no session that is ending.
        tasks = [self._tasks.pop(node_id) for node_id in node_ids]
        for node_id in node_ids:
            del self._sessions[node_id]
        for task in tasks:
            task.cancel()
        # gather with return_exceptions: a session that fails at its end must not keep the others
        # open.
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                log.error("a node's session failed", exc_info=result)
