"""The leader's end of the sessions: tells followers where replicas are, and hears their counts.

A replica's port is exposed on its node while there are followers, as for gateways; a node whose
shim exposes nothing is the leader's alone. A follower says which version holds at it, so the drain
of a replica knows when no request can come there any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Container, Iterable, Sequence

import msgspec
from aiohttp import web
from msgspec.structs import replace

from common.proxy.view import Replica, Service
from controller.gateways.snapshots import node_of
from controller.lifecycle.model import RunState
from controller.proxy.registered import service_of
from controller.traffic.routes import ReplicaRoute, Route, RouteTable, offered
from controller.traffic.statistics import Traffic
from controller.ways.exposing import Exposer
from controller.ways.messages import (
    BEAT_SECONDS,
    FOLLOWER,
    FROM_FOLLOWER,
    SILENCE_SECONDS,
    Beat,
    Counted,
    Lines,
    ServicesChanged,
    encoded,
)
from fairlead.wire.gateway import GatewayNode

AWAY_SECONDS = 10.0
"""For so long a drain waits for a follower whose session has ended, and after the start for all of
them: a follower comes back sooner, and may carry requests meanwhile."""
LOOK_SECONDS = 5.0
"""Addresses of nodes change without a turn, and a port that could not be exposed is tried again."""
MAX_LINE = 4 << 20
MAX_EJECTED = 86400.0
_MAX_EXPOSING = 16


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What the leader has."""

    routes: RouteTable
    traffic: Traffic
    nodes: Exposer


class FollowerWays:
    """The sessions of all followers. It hears of turns (`TurnListener`) after the routes."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._sockets = _Sockets(parts, self._exposed)
        self._sessions: set[_Session] = set()
        self._changed = asyncio.Event()
        self._committed: dict[str, None] = {}
        """Runs at which the sessions have not looked since."""
        self._now = asyncio.get_running_loop().time
        self._began_at = self._now()
        self._away: dict[str, float] = {}
        """When the session of each follower ended that has no other one since."""

    async def feed(self, request: web.Request, response: web.StreamResponse) -> None:
        """Answer until the follower leaves. `response` is begun."""
        session = _Session(self._parts, self._sockets, response, self._tell)
        name = request.headers.get(FOLLOWER, "")
        self._sessions.add(session)
        self._away.pop(name, None)
        try:
            await session.go_on(request)
        finally:
            self._sessions.discard(session)
            self._away[name] = self._now()
            if not self._sessions:
                self._sockets.end()
            self._tell()

    def committed(self, touched: Sequence[RunState]) -> None:
        run_ids = [state.run.id for state in touched if offered(state.run) is not None]
        if run_ids and self._sessions:
            if not self._committed:
                # It hears of each run of a turn by itself: one message tells of all of them.
                asyncio.get_running_loop().call_soon(self._look)
            self._committed.update(dict.fromkeys(run_ids))

    def _look(self) -> None:
        run_ids, self._committed = self._committed, {}
        for session in self._sessions:
            session.look(run_ids)

    async def left(self, attempt_id: str) -> None:
        """Return once no follower sends requests to this replica, or has any in flight there. It is
        in traffic no more when this is called."""
        run_ids = [
            route.run_id
            for route in self._parts.routes.all()
            if any(one.attempt_id == attempt_id for one in route.draining)
        ]
        versions = {session: session.look(run_ids) for session in self._sessions}
        while True:
            patience = self._patience()
            # A session that began since then knows of nothing else.
            left = all(one.has_left(attempt_id, versions.get(one, 1)) for one in self._sessions)
            if left and patience <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience if left else None):
                    await self._changed.wait()

    def _patience(self) -> float:
        """Return for how many seconds some followers may be away yet."""
        until = self._now() - AWAY_SECONDS
        self._away = {name: at for name, at in self._away.items() if at > until}
        return max((self._began_at, *self._away.values())) - until

    def _exposed(self, run_id: str) -> None:
        for session in self._sessions:
            session.look([run_id])

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class _Sockets:
    """The sockets of replicas' ports on their nodes, which are exposed at the first question."""

    def __init__(self, parts: Parts, exposed: Callable[[str], None]) -> None:
        self._parts = parts
        self._when_exposed = exposed
        self._known: dict[str, str] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(_MAX_EXPOSING)

    def find(self, run_id: str, replica: ReplicaRoute) -> str:
        """Return where the replica's port is reached; empty: nobody knows (yet)."""
        known = replica.exposed_socket or self._known.get(replica.attempt_id, "")
        can = self._parts.nodes.can_expose(replica.node_id)
        if not known and can and replica.attempt_id not in self._tasks:
            self._tasks[replica.attempt_id] = asyncio.create_task(self._expose(run_id, replica))
        return known

    def keep(self, attempt_ids: Container[str]) -> None:
        """Forget all others."""
        for id in [one for one in self._known if one not in attempt_ids]:
            del self._known[id]

    def end(self) -> None:
        for task in tuple(self._tasks.values()):
            task.cancel()

    async def _expose(self, run_id: str, replica: ReplicaRoute) -> None:
        try:
            async with self._places:
                socket = await self._parts.nodes.expose(
                    replica.node_id, run_id, replica.attempt_id, replica.port
                )
            if socket is not None:
                self._known[replica.attempt_id] = socket
                self._when_exposed(run_id)
        finally:
            # The next look tries again what failed.
            self._tasks.pop(replica.attempt_id, None)


class _Session:
    """One follower's."""

    def __init__(
        self,
        parts: Parts,
        sockets: _Sockets,
        response: web.StreamResponse,
        changed: Callable[[], None],
    ) -> None:
        self._parts = parts
        self._sockets = sockets
        self._response = response
        self._changed = changed
        self._source = f"follower {secrets.token_hex(8)}"
        self._version = 0
        self._shown: dict[str, Service] = {}
        self._nodes: tuple[GatewayNode, ...] = ()
        self._messages: asyncio.Queue[ServicesChanged | Beat] = asyncio.Queue()
        self._heard = Counted(version=0)
        self._counted: set[tuple[str, str]] = set()

    async def go_on(self, request: web.Request) -> None:
        """Return when the follower leaves, or falls silent."""
        self._look_at_all()
        sender = asyncio.create_task(self._send_on(), name="follower's ways")
        try:
            await self._hear_on(request)
        finally:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
            now = self._parts.traffic.now()
            for key in self._counted:
                # Nothing may be concluded from counts that are not known at the moment.
                self._parts.traffic.group(*key).gap(now, self._source)

    # -- what the follower hears ---------------------------------------------------------------

    def look(self, run_ids: Iterable[str], *, at_nodes: bool = False) -> int:
        """Tell what changed of these; return the version in which they are as they are now.
        `at_nodes`: look at the addresses of nodes, too."""
        changed, gone = [], []
        are_nodes_others = at_nodes
        for run_id in run_ids:
            route = self._parts.routes.get(run_id)
            known = self._shown.get(run_id)
            made = None if route is None else self._service(route)
            if made is None:
                if known is not None:
                    del self._shown[run_id]
                    gone.append(run_id)
                    are_nodes_others |= bool(known.replicas)
            elif made != known:
                self._shown[run_id] = made
                changed.append(made)
                # All nodes are gathered only if they may be others: many services sleep.
                are_nodes_others |= bool(made.replicas or (known and known.replicas))
        nodes = self._used_nodes() if are_nodes_others else self._nodes
        if changed or gone or nodes != self._nodes or self._version == 0:
            self._version += 1
            message = ServicesChanged(
                version=self._version,
                begins=self._version == 1,
                services=tuple(changed),
                gone=tuple(gone),
                nodes=nodes if nodes != self._nodes else None,
            )
            self._nodes = nodes
            self._messages.put_nowait(message)
        return self._version

    def _look_at_all(self) -> None:
        routes = tuple(self._parts.routes.all())
        self._sockets.keep({one.attempt_id for route in routes for one in _shown(route)})
        self.look([*(route.run_id for route in routes), *self._shown], at_nodes=True)

    def _service(self, route: Route) -> Service:
        replicas = tuple(
            Replica(
                id=one.attempt_id,
                group=one.group,
                node_id=one.node_id,
                socket=self._sockets.find(route.run_id, one),
                port=one.port,
            )
            for one in _shown(route)
        )
        return replace(service_of(route), replicas=replicas)

    def _used_nodes(self) -> tuple[GatewayNode, ...]:
        used = {one.node_id for service in self._shown.values() for one in service.replicas}
        nodes = self._parts.nodes.pipeline.nodes
        return tuple(node_of(nodes[node_id]) for node_id in sorted(used) if node_id in nodes)

    async def _send_on(self) -> None:
        looked_at = asyncio.get_running_loop().time()
        while True:
            message: ServicesChanged | Beat = Beat()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_SECONDS):
                    message = await self._messages.get()
            # The reader may be gone, which `_hear_on` notices.
            with contextlib.suppress(ConnectionError):
                await self._response.write(encoded(message))
            now = asyncio.get_running_loop().time()
            if now - looked_at >= LOOK_SECONDS:
                looked_at = now
                self._look_at_all()

    # -- what it reports ------------------------------------------------------------------------

    async def _hear_on(self, request: web.Request) -> None:
        lines = Lines(MAX_LINE)
        with contextlib.suppress(msgspec.MsgspecError, ValueError, ConnectionError, TimeoutError):
            while True:
                async with asyncio.timeout(SILENCE_SECONDS):
                    piece = await request.content.readany()
                if not piece:
                    return
                for line in lines.whole(piece):
                    self._hear(FROM_FOLLOWER.decode(line))

    def _hear(self, counted: Counted) -> None:
        self._heard = counted
        traffic, now = self._parts.traffic, self._parts.traffic.now()
        for group in counted.groups:
            key = (group.run_id, group.group)
            if self._parts.routes.get(group.run_id) is not None:
                self._counted.add(key)
                traffic.group(*key).absorb(now, self._source, group)
        for attempt_id, seconds in counted.ejected.items():
            traffic.ejected(attempt_id, min(max(seconds, 0.0), MAX_EJECTED))
        self._changed()

    def has_left(self, attempt_id: str, version: int) -> bool:
        """Return whether it sends no requests there by this version, and none is in flight."""
        return self._heard.version >= version and not self._heard.in_flight.get(attempt_id)


def _shown(route: Route) -> tuple[ReplicaRoute, ...]:
    """A new leader is not connected to any node yet, but followers are."""
    return route.replicas or route.unreached
