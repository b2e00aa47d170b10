"""Keeps a session for each gateway; all other parts reach gateways through it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec
from msgspec.structs import replace

from common.links.errors import LinkError
from controller.clock import Chance
from controller.gateways.link import GatewayLink
from controller.gateways.session import GatewayAway, GatewaySession
from controller.gateways.snapshots import host_of, snapshot_of
from controller.lifecycle import reports
from controller.lifecycle.model import RunState
from controller.links.base import NodeConnection
from controller.links.gateway_keys import put_keys
from controller.pipelines.run_pipeline import RunPipeline
from controller.pipelines.to_node import find
from controller.store.base import Changes, Gateway, Store
from controller.traffic.routes import ReplicaRoute, RouteTable
from controller.traffic.statistics import Traffic
from fairlead.wire.gateway import (
    Answer,
    Browsers,
    Counts,
    GroupCounts,
    ProxyLimits,
    Question,
    Revoked,
    Snapshot,
)
from shim.client import ShimError, ShimUnavailable

log = logging.getLogger(__name__)
GAP_SECONDS = 1.0
SPREAD_SECONDS = 15.0
CONFIRM_SECONDS = 10.0
MAX_EJECTED = 86400.0
"""Seconds; an agent may say anything."""
Answers = Callable[[Question], Answer]
Connect = Callable[[str], Awaitable[NodeConnection]]


def nobody(question: Question) -> Answer:
    """Refuse every token."""
    return Answer(id=question.id, allowed=False, status=401)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How gateways are reached, and what holds at all of them."""

    make_link: Callable[[Gateway], GatewayLink]
    answers: Answers = nobody
    """Says who may use a service."""
    limits: ProxyLimits = ProxyLimits()
    browsers: Browsers = Browsers()
    followers_key: str | None = None
    """The public key by which this controller's followers log in at nodes as gateways do; None: it
    has none."""


class GatewayManager:
    """The gateways by name. `connect` waits for a node's live connection."""

    def __init__(
        self,
        *,
        pipeline: RunPipeline,
        store: Store,
        routes: RouteTable,
        traffic: Traffic,
        connect: Connect,
        chance: Chance,
        controller_id: str,
        gateways: Iterable[Gateway] = (),
        settings: Settings,
    ) -> None:
        self.gateways: dict[str, Gateway] = {one.name: one for one in gateways}
        self.controller_id = controller_id
        self._pipeline = pipeline
        self._store = store
        self._routes = routes
        self._traffic = traffic
        self._connect = connect
        self._chance = chance
        self._settings = settings
        self._sessions: dict[str, GatewaySession] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._offered: dict[str, dict[str, ReplicaRoute]] = {}
        self._spreading: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Keep all gateways connected, until cancelled."""
        for gateway in self.gateways.values():
            self._start(gateway)
        try:
            while True:
                self._mark_gaps()
                await asyncio.sleep(GAP_SECONDS)
        finally:
            tasks = [*self._tasks.values(), *self._spreading]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # -- the gateways -----------------------------------------------------------------------

    def session(self, name: str) -> GatewaySession | None:
        return self._sessions.get(name)

    async def save(self, gateway: Gateway) -> None:
        """Add a gateway, or change one. Raises StoreUnavailable."""
        others: tuple[Gateway, ...] = ()
        if gateway.is_default:
            defaults = (one for one in self.gateways.values() if one.is_default)
            others = tuple(
                replace(one, is_default=False) for one in defaults if one.name != gateway.name
            )
        await self._store.commit(Changes(gateways=(*others, gateway)))
        for one in (*others, gateway):
            known = self.gateways.get(one.name)
            self.gateways[one.name] = one
            if known is None or known.address != one.address:
                await self._end(one.name)
                self._start(one)
            else:
                self._sessions[one.name].gateway = one
                self._sessions[one.name].look()

    async def remove(self, name: str) -> None:
        """Forget a gateway, and close the nodes to it. Raises StoreUnavailable."""
        await self._store.commit(Changes(removed_gateways=(name,)))
        del self.gateways[name]
        await self._end(name)
        self._spread()

    def _start(self, gateway: Gateway) -> None:
        session = GatewaySession(gateway, self._settings.make_link(gateway), self, self._chance)
        self._sessions[gateway.name] = session
        self._tasks[gateway.name] = asyncio.create_task(
            session.run(), name=f"gateway {gateway.name}"
        )

    async def _end(self, name: str) -> None:
        self._sessions.pop(name, None)
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # -- what runs need ---------------------------------------------------------------------

    async def claim(self, name: str, service: str) -> None:
        """Reserve the host name of a service. Raises GatewayAway, HostTaken."""
        session = self._sessions.get(name)
        if session is None:
            raise GatewayAway("it was removed")
        await session.claim(host_of(service, session.gateway))

    def keys(self) -> tuple[str, ...]:
        """Return the public keys by which gateways, and followers, log in at nodes."""
        found = (self._settings.followers_key, *(one.key for one in self.gateways.values()))
        return tuple(sorted(key for key in found if key is not None))

    async def register(self, run_id: str, gateway: str, replica: ReplicaRoute) -> None:
        """Return once the gateway sends requests to this replica, at its exposed socket. Raises
        GatewayAway."""
        session = self._sessions.get(gateway)
        if session is None:
            raise GatewayAway("it was removed")
        self._offered.setdefault(run_id, {})[replica.attempt_id] = replica
        session.look()
        try:
            async with asyncio.timeout(CONFIRM_SECONDS):
                await session.until(lambda one: one.serves(replica.attempt_id))
        except TimeoutError:
            unreached = session.why_unreached(replica.attempt_id)
            raise GatewayAway(
                f"it cannot reach the replica on its node: {unreached}"
                if unreached
                else session.message or f"its agent did not answer within {CONFIRM_SECONDS:g} s"
            ) from None

    async def left(self, run_id: str, gateway: str, attempt_id: str) -> None:
        """Return once the gateway sends no more requests to this replica and has none in flight
        there. A service that ends as a whole does not wait for a gateway that stays away."""
        session = self._sessions.get(gateway)
        if session is not None:
            await session.left(attempt_id, lambda: self._ends(run_id))

    def _ends(self, run_id: str) -> bool:
        route = self._routes.get(run_id)
        return route is None or route.ending

    def committed(self, touched: Sequence[RunState]) -> None:
        """Tell the gateways of these runs (`TurnListener`), after the routes were told."""
        for state in touched:
            service = state.run.service
            if service is None or service.gateway is None:
                continue
            self._forget_offers(state)
            session = self._sessions.get(service.gateway)
            if session is not None:
                session.look()

    def _forget_offers(self, state: RunState) -> None:
        """Forget the replicas that wait no more: they are registered, or will not be."""
        offers = self._offered.get(state.run.id, {})
        for attempt_id in list(offers):
            view = find(state, attempt_id)
            waits = view is not None and view.attempt.serving.registering_since is not None
            if view is None or not waits or view.attempt.serving.exposed_socket is not None:
                del offers[attempt_id]
        if not offers:
            self._offered.pop(state.run.id, None)

    def revoked(self, digest: str) -> None:
        """Let all gateways forget a token or key."""
        for session in self._sessions.values():
            self._in_background(session.send(Revoked(digest=digest)))

    # -- what sessions ask and tell (`Owner`) -----------------------------------------------

    def snapshot(self, gateway: Gateway, version: int) -> Snapshot:
        offered = {run_id: tuple(found.values()) for run_id, found in self._offered.items()}
        routes, nodes = self._routes.all(), self._pipeline.nodes
        return snapshot_of(
            gateway,
            version,
            routes,
            offered,
            nodes,
            self._settings.limits,
            self._settings.browsers,
            self.controller_id,
        )

    def answer(self, question: Question) -> Answer:
        return self._settings.answers(question)

    def wake(self, run_id: str) -> None:
        route = self._routes.get(run_id)
        if route is not None and route.sleeping:
            self._pipeline.post(reports.WakeRequested(run_id=run_id))

    def count(self, gateway: str, counted: Counts) -> None:
        now = self._traffic.now()
        known = {(one.run_id, one.group): one for one in counted.groups}
        for route in self._routes.all():
            if route.service.gateway != gateway:
                continue
            for group in route.service.groups:
                counts = known.get((route.run_id, group.name))
                # The agent leaves out groups without requests, whose second was counted, too.
                quiet = GroupCounts(run_id=route.run_id, group=group.name)
                self._traffic.group(route.run_id, group.name).absorb(now, gateway, counts or quiet)
            for replica in route.replicas:
                if replica.attempt_id in counted.ejected:
                    seconds = counted.ejected[replica.attempt_id]
                    self._traffic.ejected(replica.attempt_id, min(max(seconds, 0.0), MAX_EJECTED))

    def is_other(self, served: str, gateway: str) -> bool:
        return served != gateway and served in self.gateways

    async def key_seen(self, gateway: str, key: str) -> None:
        known = self.gateways.get(gateway)
        if known is not None and known.key != key:
            changed = replace(known, key=key)
            await self._store.commit(Changes(gateways=(changed,)))
            self.gateways[gateway] = self._sessions[gateway].gateway = changed
            self._spread()

    def _mark_gaps(self) -> None:
        """Begin the counts of services anew whose gateway is away: nothing may be concluded from
        them."""
        now = self._traffic.now()
        for route in self._routes.all():
            name = route.service.gateway
            session = self._sessions.get(name) if name is not None else None
            if name is not None and (session is None or not session.is_up):
                for group in route.service.groups:
                    self._traffic.group(route.run_id, group.name).gap(now, name)

    # -- the nodes --------------------------------------------------------------------------

    def node_connected(self, node_id: str) -> None:
        """Tell a node the gateways' keys: while it was away, one may have been removed."""
        node = self._pipeline.nodes.get(node_id)
        if node is not None and node.capacity.gateways:
            self._in_background(self._tell(node_id))

    def _spread(self) -> None:
        """Let all nodes know the gateways' keys. A node that is not connected hears of them once it
        is."""
        for node_id in self._pipeline.nodes:
            self.node_connected(node_id)

    async def _tell(self, node_id: str) -> None:
        with contextlib.suppress(TimeoutError, LinkError, ShimError, ShimUnavailable):
            async with asyncio.timeout(SPREAD_SECONDS):
                connection = await self._connect(node_id)
                await put_keys(connection.shim, self.keys)

    def _in_background(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._spreading.add(task)
        task.add_done_callback(self._spreading.discard)
