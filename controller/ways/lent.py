"""The ways to jobs that the leader lends this follower, for terminals and forwarded ports.

A way is a socket on the job's node, whose name only the leader and the follower know. It opens all
ports of that job for as long as the job runs, whoever leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncssh
import msgspec

from common.links.errors import LinkError
from common.proxy.headers import CLIENT, head_of
from common.proxy.upstream import UpstreamError
from common.streams import PortStream
from controller.api.http.holding import HELD_SECONDS
from controller.forwarding.follower_links import BY_ITSELF, JOB_WAY_PATH
from controller.forwarding.leader_links import LeaderLinks, NoLink
from controller.relay import while_it_leads
from controller.replica.alone import NeedsLeader
from controller.ways.messages import JobWay
from controller.ways.nodes import Nodes

ASK_SECONDS = 5.0
"""The time in which the leader must lend a way: it may still be connecting to the node."""
IDLE_SECONDS = 600.0
"""Seconds after its last use at which a way is forgotten, and with its last way a node."""
MAX_BYTES = 64 << 10


class _Kept(msgspec.Struct):
    """A way and the number of requests that use it. If it has `failed`, the next request asks the
    leader for another one."""

    way: JobWay
    users: int = 0
    failed: bool = False
    left_at: float = 0.0


class LentWay:
    """A way that one request holds."""

    def __init__(self, kept: _Kept, nodes: Nodes) -> None:
        self._kept = kept
        self._nodes = nodes

    async def connect(self, port: int) -> PortStream:
        """Connect to this port of the job. Raises LinkError, AgentError."""
        try:
            return await self._nodes.connect(self._kept.way, b"%d\n" % port)
        except LinkError:
            self._kept.failed = True
            raise


class LentWays:
    """The ways that this follower holds, one for each attempt, with connections of their own to
    nodes. `identity`: the key that opens exposed ports on nodes alone."""

    def __init__(self, links: LeaderLinks, identity: asyncssh.SSHKey) -> None:
        self._links = links
        # Its own connections: what a forwarded port carries holds up no request of a service.
        self._nodes = Nodes(identity)
        self._kept: dict[str, _Kept] = {}

    async def close(self) -> None:
        await self._nodes.links.close()

    @asynccontextmanager
    async def held(self, run_id: str, attempt_id: str) -> AsyncIterator[LentWay]:
        """Hold the way to this attempt. Raises NeedsLeader, NobodyLeads."""
        kept = self._kept.get(attempt_id)
        if kept is None or kept.failed:
            way = await self._ask(run_id, attempt_id)
            # Another request may have asked as well.
            kept = self._kept.setdefault(attempt_id, _Kept(way))
            kept.way, kept.failed = way, False
            self._update_nodes()
        kept.users += 1
        try:
            yield LentWay(kept, self._nodes)
        finally:
            kept.users -= 1
            loop = asyncio.get_running_loop()
            kept.left_at = loop.time()
            loop.call_later(IDLE_SECONDS, self._forget_idle, attempt_id)

    def _forget_idle(self, attempt_id: str) -> None:
        kept = self._kept.get(attempt_id)
        since = asyncio.get_running_loop().time() - IDLE_SECONDS
        if kept is not None and not kept.users and kept.left_at <= since:
            del self._kept[attempt_id]
            self._update_nodes()

    def _update_nodes(self) -> None:
        nodes = {one.way.node.id: one.way.node for one in self._kept.values()}
        self._nodes.links.update(nodes.values())

    async def _ask(self, run_id: str, attempt_id: str) -> JobWay:
        """Raises NeedsLeader, NobodyLeads."""
        try:
            link = await self._links.get(HELD_SECONDS)
        except NoLink as error:
            raise NeedsLeader from error
        path = JOB_WAY_PATH.format(run=run_id, attempt=attempt_id)
        asked = [("Host", link.host), (CLIENT, BY_ITSELF)]
        connection, body = link.connection, b""
        try:
            async with asyncio.timeout(ASK_SECONDS):
                await connection.send(head_of("GET", path, asked))
                head = await while_it_leads(connection.answer("GET"), link.over)
                while data := await while_it_leads(connection.read(), link.over):
                    body += data[: MAX_BYTES - len(body)]
            if head.status == 200:
                return msgspec.json.decode(body, type=JobWay)
        except (UpstreamError, ConnectionError, TimeoutError, msgspec.MsgspecError) as error:
            raise NeedsLeader from error
        finally:
            link.give_back()
        # One of an earlier version; or the node's shim is.
        raise NeedsLeader
