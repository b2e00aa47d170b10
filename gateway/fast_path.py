"""The fast path: requests that HAProxy sends straight to replicas, past the agent.

A service has it while no request of its own needs a decision: no rate limit, no header to set, and
a replica to send to. Where it asks for a token, a token that was let in passes for some time,
and every other one goes to the agent. So does each request that HAProxy's configuration keeps back
(`gateway.haproxy`). A replica that fails once gets no requests until it has answered the agent
again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Protocol

from common.haproxy_admin import HaproxyAway, HaproxyRefused
from common.links.errors import LinkError
from common.proxy.outliers import Outliers
from common.proxy.reported import ReportedTraffic
from common.proxy.view import Replica
from common.streams import PortStream
from fairlead.wire.errors import AgentError, AgentUnavailable
from fairlead.wire.gateway import GatewayNode
from gateway.direct import DirectWays
from gateway.fast_plan import (
    CloseServer,
    Command,
    DrainServer,
    FastPlan,
    FastService,
    LimitServer,
    OpenServer,
    Server,
    ServerKey,
    SetWay,
    UnsetWay,
)
from gateway.fast_sockets import Sockets
from gateway.haproxy import DirectPlace, Haproxy, Limits
from gateway.preparations import Preparations
from gateway.ssh_forwards import ForwardFailed, SshForwards

log = logging.getLogger(__name__)
LOOK_SECONDS = 1.0
SOON_LOOK_SECONDS = 0.1
AGAIN_SECONDS = 5.0
TRY_SECONDS = 10.0
LEFTOVER_SECONDS = 60.0
"""Requests that a killed agent left with HAProxy may take so long."""


class Links(Protocol):
    """The ways to replicas (`common.links.node_links.NodeLinks`)."""

    def node(self, replica: Replica) -> GatewayNode: ...

    async def has_raw_socket(self, replica: Replica) -> bool: ...

    async def connect(self, replica: Replica) -> PortStream: ...


class FastPath:
    """Keeps HAProxy in step with the services. `emptied` is called when the last request of a
    draining replica has ended; `socket_path` returns the socket of a slot's server."""

    def __init__(
        self,
        haproxy: Haproxy,
        forwards: Callable[[Callable[[str], None]], SshForwards],
        links: Links,
        traffic: ReportedTraffic,
        emptied: Callable[[str], None],
        socket_path: Callable[[str, str], Path],
        outliers: Outliers,
        direct: DirectWays | None = None,
    ) -> None:
        self._haproxy = haproxy
        self._links = links
        self._traffic = traffic
        self._emptied = emptied
        self._outliers = outliers
        self._plan = FastPlan()
        self._sockets = Sockets(forwards(self._lost), socket_path)
        self._replicas = Preparations()
        self._direct = direct
        self._limits = Limits()
        self._life: str | None = None
        """The life of the HAProxy that holds what the plan notes; None: none does."""
        self._is_closing = False
        now = asyncio.get_running_loop().time()
        self._leftovers_until: float | None = now + LEFTOVER_SECONDS
        self._lock = asyncio.Lock()
        self._changed = asyncio.Event()

    # -- what the agent says ----------------------------------------------------------------

    async def update(self, wanted: dict[str, FastService], limits: Limits) -> None:
        """Serve this. When it returns, a replica that is not wanted gets no new requests."""
        if self._is_closing:
            return
        self._plan.wanted = wanted
        async with self._lock:
            before, self._limits = self._limits, limits
            if self._life is not None and before != self._limits:
                await self._guarded(self._haproxy.set_limits(self._limits))
            await self._guarded(self._withdraw())
        self._changed.set()

    def changed(self, wanted: dict[str, FastService]) -> None:
        """Serve this soon."""
        if not self._is_closing:
            self._plan.wanted = wanted
            self._changed.set()

    def admitted(self, run_id: str, proof: str) -> None:
        """Let the token with this SHA-256 into the service for some time."""
        if self._plan.slot_of(run_id) is not None and not self._is_closing:
            self._sockets.in_background(self._admit(run_id, proof))

    def revoked(self, proof: str) -> None:
        """Let the token with this SHA-256 into no service."""
        self._sockets.in_background(self._revoke(proof))

    async def _admit(self, run_id: str, proof: str) -> None:
        async with self._lock:
            slot = self._plan.slot_of(run_id)
            if slot is not None and self._life is not None:
                await self._guarded(self._haproxy.admit(slot, proof))

    async def _revoke(self, proof: str) -> None:
        async with self._lock:
            for slot in self._plan.slots:
                if self._life is not None:
                    await self._guarded(self._haproxy.revoke(slot, proof))

    def in_flight(self) -> dict[str, int]:
        """Return the requests at each replica that has any, or may have while it is drained."""
        return self._plan.in_flight()

    async def run(self) -> None:
        """Keep HAProxy in step until cancelled."""
        while True:
            drains = any(server.is_drained for server in self._plan.servers)
            soon = drains or self._plan.needs_more
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SOON_LOOK_SECONDS if soon else LOOK_SECONDS):
                    await self._changed.wait()
            self._changed.clear()
            async with self._lock:
                await self._guarded(self._match())

    async def close(self, seconds: float) -> None:
        """Send all requests to the agent, and wait up to `seconds` for those in flight."""
        self._plan.wanted, self._is_closing = {}, True
        await self._replicas.close()
        async with self._lock:
            await self._guarded(self._withdraw())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    # HAProxy deletes a server only once it has no connections left (management
                    # guide, `del server`).
                    while self._plan.servers:
                        await self._guarded(self._match())
                        await asyncio.sleep(SOON_LOOK_SECONDS)
        await self._sockets.close()

    # -- HAProxy ----------------------------------------------------------------------------

    async def _guarded(self, doing: Coroutine[None, None, None]) -> None:
        """Do it. Without HAProxy there is no fast path, and nothing of it is in flight."""
        try:
            await doing
        except HaproxyAway as away:
            if self._life is not None:
                log.warning("HAProxy is away: %s", away)
            self._forget()
        except HaproxyRefused as refused:
            log.error("HAProxy is set anew, because it refused: %s", refused)
            self._life = None

    async def _do(self, commands: Iterable[Command]) -> None:
        """Perform the commands, in their order. Raises HaproxyAway, HaproxyRefused."""
        for command in commands:
            match command:
                case OpenServer(key):
                    await self._haproxy.open_server(*key)
                case DrainServer(key):
                    await self._haproxy.drain_server(*key)
                case CloseServer(key):
                    await self._haproxy.close_server(*key)
                case LimitServer(key, requests):
                    await self._haproxy.limit_server(*key, requests)
                case SetWay(way, slot, is_guarded):
                    await self._haproxy.set_way(way, slot, is_guarded=is_guarded)
                case UnsetWay(way, is_guarded):
                    await self._haproxy.unset_way(way, is_guarded=is_guarded)

    def _forget(self) -> None:
        self._life = None
        self._plan.forget()
        for server in self._plan.servers:
            self._drop(server)

    def _drop(self, server: Server) -> None:
        """Forget a server that HAProxy does not use any more."""
        self._plan.drop(server)
        self._count(server, server.requests, server.errors, 0)
        if not server.is_direct:
            self._sockets.take_away(server.key, server.replica, is_local=server.is_local)
        self._emptied(server.replica.id)

    async def _begin(self) -> None:
        """Take away all that HAProxy has from an earlier life of the agent."""
        life = await self._haproxy.life()
        await self._haproxy.forget_ways()
        self._forget()
        for one in await self._haproxy.counts():
            if not one.is_closed:
                await self._haproxy.close_server(one.slot, one.server)
        await self._haproxy.set_limits(self._limits)
        self._life = life

    async def _withdraw(self) -> None:
        if self._life is None:
            await self._begin()
        await self._do(self._plan.withdraw())

    async def _match(self) -> None:
        await self._withdraw()
        await self._look()
        await self._do(self._plan.limit_requests())
        await self._eject()
        for run_id, replica in self._plan.without_server():
            if not self._is_closing and not self._replicas.has(replica):
                self._replicas.start(replica, self._prepare(run_id, replica))
        await self._do(self._plan.open_ways())
        for server in self._plan.servers:
            if server.is_open and not server.is_drained and self._may_be_direct(server):
                self._replicas.start(server.replica, self._promote(server))
        replicas = self._plan.tidy(also=self._replicas.all())
        await self._sockets.keep_nodes({replica.node_id for replica in replicas})
        ids = {replica.id for replica in replicas}
        self._replicas.forget_others(ids)
        if self._direct is not None:
            self._direct.keep(ids, {replica.node_id for replica in replicas})

    async def _look(self) -> None:
        """Read the counts; remove servers that are drained and have no requests left."""
        counts = {(one.slot, one.server): one for one in await self._haproxy.counts()}
        # After the counts: those of another life begin at zero and cannot be compared.
        if await self._haproxy.life() != self._life:
            log.warning("HAProxy was started again; it is set anew")
            await self._begin()
            return
        for server in self._plan.servers:
            found = counts[server.key]
            if self._direct is not None and server.is_direct and found.retries > server.retries:
                # HAProxy has marked it down, or soon does; its requests go to the agent meanwhile.
                self._direct.rest(server.replica)
                self._suspect(server, is_gone=True)
            server.retries = found.retries
            if self._count(server, found.requests, found.errors, found.in_flight):
                self._emptied(server.replica.id)
            if server.is_drained and not server.in_flight:
                server.is_open = False
                await self._haproxy.close_server(*server.key)
                self._drop(server)
        others = {key: one for key, one in counts.items() if self._plan.server_at(key) is None}
        unused = {key for key, one in others.items() if one.is_unused}
        self._plan.set_free(unused - self._sockets.busy)
        if self._leftovers_until is not None:
            in_use = any(one.in_flight for one in others.values())
            if not in_use or asyncio.get_running_loop().time() > self._leftovers_until:
                self._leftovers_until = None
                self._sockets.end_leftovers()

    def _count(self, server: Server, requests: int, errors: int, in_flight: int) -> bool:
        """Note HAProxy's counts. Return whether the server is drained and its last request has
        ended."""
        self._traffic.count_elsewhere(
            server.run_id,
            server.replica.group,
            "/".join(server.key),
            requests=requests - server.requests,
            errors=errors - server.errors,
            in_flight=in_flight,
        )
        return server.note(requests=requests, errors=errors, in_flight=in_flight)

    async def _eject(self) -> None:
        commands = self._plan.eject(self._outliers.out_of)
        await self._do(commands)
        if any(isinstance(command, OpenServer) for command in commands):
            self._changed.set()

    # -- replicas ---------------------------------------------------------------------------

    async def _prepare(self, run_id: str, replica: Replica) -> None:
        """Make the replica a server."""
        try:
            node = self._links.node(replica)
            if await self._add_direct(run_id, replica, node):
                self._replicas.worked(replica)
                return
            async with asyncio.timeout(TRY_SECONDS):
                has_one = await self._links.has_raw_socket(replica)
            self._plan.has_raw_socket(replica, has_one)
            if has_one:
                await self._add(run_id, replica, node)
                self._replicas.worked(replica)
                return
        except (LinkError, ForwardFailed, OSError) as error:
            self._replicas.failed(replica, error)
        # The task lasts that long, so that no look begins the next try at once.
        await asyncio.sleep(AGAIN_SECONDS)

    async def _add(self, run_id: str, replica: Replica, node: GatewayNode) -> None:
        """Raises ForwardFailed, OSError."""
        key = self._plan.take_free(run_id)
        if key is None:
            return
        await self._sockets.make(key, replica, node)
        async with self._lock:
            # While ssh made the socket, HAProxy may have restarted, and the replica may have left.
            if self._life is None or not self._plan.wants(run_id, replica):
                self._sockets.take_away(key, replica, is_local=node.local)
                return
            self._sockets.busy.discard(key)
            server = Server(replica=replica, run_id=run_id, key=key, is_local=node.local)
            self._plan.add(server)
            await self._guarded(self._begin_counts(server))
        self._changed.set()

    async def _begin_counts(self, server: Server) -> None:
        for one in await self._haproxy.counts():
            # HAProxy counts from its start on: so far these are of earlier replicas.
            if (one.slot, one.server) == server.key:
                server.requests, server.errors = one.requests, one.errors
                server.retries = one.retries
        await self._do([LimitServer(server.key, server.limit), OpenServer(server.key)])

    # -- the direct way ---------------------------------------------------------------------

    async def _find_direct(self, replica: Replica) -> DirectPlace | None:
        """Return where a direct server may lead; if there is no way, the replica rests. Raises
        LinkError."""
        node = self._links.node(replica)
        if self._direct is None or node.local:
            return None
        place = await self._direct.find(replica, node)
        if place is None:
            self._direct.rest(replica)
        return place

    async def _add_direct(self, run_id: str, replica: Replica, node: GatewayNode) -> bool:
        """Make the replica a direct server if it can be one; one through SSH is left then."""
        if self._direct is None or node.local or self._direct.rests(replica):
            return False
        key = self._plan.take_free(run_id, direct=True)
        if key is None:
            self._direct.rest(replica)
            return False
        self._sockets.busy.add(key)
        try:
            place = await self._find_direct(replica)
            if place is None:
                return False
            async with self._lock:
                # While the node was asked, HAProxy may have restarted, and the replica have left.
                if self._life is not None and self._plan.wants(run_id, replica):
                    await self._guarded(self._open_direct(run_id, replica, key, place))
                    if self._life is None or self._plan.server_at(key) is None:
                        # A HAProxy that refuses it now does so again.
                        self._direct.rest(replica)
                        return False
        finally:
            self._sockets.busy.discard(key)
        self._changed.set()
        return True

    async def _open_direct(
        self, run_id: str, replica: Replica, key: ServerKey, place: DirectPlace
    ) -> None:
        before = self._plan.server_of(replica)
        await self._haproxy.lead_server(*key, place)
        leaving = [] if before is None else self._plan.leave(before)
        server = Server(replica=replica, run_id=run_id, key=key, is_local=False, is_direct=True)
        self._plan.add(server)
        await self._begin_counts(server)
        await self._do(leaving)

    def _may_be_direct(self, server: Server) -> bool:
        """Return whether the server of a replica that is reached by SSH shall be tried directly."""
        return not (
            self._direct is None
            or self._is_closing
            or server.is_direct
            or server.is_local
            or self._replicas.has(server.replica)
            or self._direct.rests(server.replica)
        )

    async def _promote(self, server: Server) -> None:
        """Reach a replica directly that is reached by SSH."""
        # Its node has left the list: then the replica leaves too.
        with contextlib.suppress(LinkError):
            await self._add_direct(server.run_id, server.replica, self._links.node(server.replica))

    async def _is_there(self, server: Server) -> bool:
        """Return whether HAProxy's way to the server leads through."""
        if not server.is_direct:
            return await self._sockets.is_there(server.key)
        with contextlib.suppress(LinkError):
            return await self._find_direct(server.replica) is not None
        return False

    # -- replicas that fail -----------------------------------------------------------------

    def _lost(self, node_id: str) -> None:
        """The connection to a node broke, and its sockets are gone."""
        for server in self._plan.servers:
            through_ssh = not server.is_local and not server.is_direct
            if server.replica.node_id == node_id and through_ssh:
                self._suspect(server, is_gone=True)

    def _suspect(self, server: Server, *, is_gone: bool = False) -> None:
        """Send it no requests until it has answered."""
        if server.is_open and not server.is_drained:
            server.is_open = False
            self._replicas.start(server.replica, self._heal(server, is_gone=is_gone))

    async def _heal(self, server: Server, *, is_gone: bool) -> None:
        async with self._lock:
            await self._guarded(self._do(self._plan.close(server)))
        while not is_gone and self._plan.has(server):
            if await self._answers(server.replica):
                # The agent has a connection of its own; HAProxy's way leads through another ssh.
                is_gone = not await self._is_there(server)
                if not is_gone:
                    async with self._lock:
                        await self._guarded(self._do(self._plan.open(server)))
                    self._changed.set()
                    return
            await asyncio.sleep(LOOK_SECONDS)
        async with self._lock:
            if server.is_direct:
                self._plan.leave(server)
            elif self._plan.has(server):
                server.is_drained = True
        self._changed.set()

    async def _answers(self, replica: Replica) -> bool:
        try:
            async with asyncio.timeout(TRY_SECONDS):
                stream = await self._links.connect(replica)
        except (LinkError, AgentError, AgentUnavailable, TimeoutError):
            return False
        stream.writer.close()
        return True

    # -- the log of HAProxy -----------------------------------------------------------------

    def heard(self, lines: Iterable[bytes]) -> None:
        """Take lines of HAProxy's log: slot, server, milliseconds, how it ended, status. The
        configuration of an older release has no status."""
        for line in lines:
            cells = line.split()
            if len(cells) not in (4, 5):
                continue
            server = self._plan.server_at((cells[0].decode(), cells[1].decode()))
            if server is None:
                continue
            if cells[2].isdigit():
                seconds = int(cells[2]) / 1000
                self._traffic.took_elsewhere(server.run_id, server.replica.group, seconds)
            # HAProxy's manual, 8.5: `S` is a session that the server ended or refused.
            if cells[3].startswith(b"S"):
                self._suspect(server)
            elif cells[-1].isdigit():
                self._judge(server, int(cells[-1]))

    def _judge(self, server: Server, status: int) -> None:
        """Count an answer; eject a replica that only fails."""
        service = self._plan.wanted.get(server.run_id)
        if service is not None and self._outliers.note(
            server.replica.id, service.replicas, service.eject_for, failed=status >= 500
        ):
            self._changed.set()
