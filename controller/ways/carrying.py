"""Requests for services that a follower carries to replicas itself.

All others go on to the leader: who logs in by a browser, who waits for a service that sleeps, and
whatever finds no way from here.
"""

from __future__ import annotations

import asyncio

import asyncssh
from aiohttp import web

from common.links.errors import LinkError
from common.links.node_links import NodeLinks
from common.proxy import headers
from common.proxy.access import bearer
from common.proxy.browsers.login import ENTER, LOGIN
from common.proxy.entry import Elsewhere, Proxy, Settings
from common.proxy.outliers import Outliers
from common.proxy.reported import ReportedTraffic
from common.proxy.view import Replica
from common.streams import PortStream
from common.tokens import BROWSER_PREFIX
from controller.clock import Clock
from controller.forwarding.leader_links import LeaderLinks
from controller.forwarding.reads import proof_of
from controller.service.accounts.rights import READ_METRICS, require_admin
from controller.store.reading import StoreReader
from controller.ways.admission import StoredAccess
from controller.ways.told import ToldServices, WaysSession
from fairlead.wire.gateway import GroupCounts

CONNECT_SECONDS = 3.0
"""A node that is not reached in this time is the leader's alone for `AVOIDED_SECONDS`."""
AVOIDED_SECONDS = 30.0


class FollowerServices:
    """`identity`: the key that opens exposed ports on nodes alone. `elsewhere` passes a request on
    to the leader."""

    def __init__(
        self,
        links: LeaderLinks,
        store: StoreReader,
        clock: Clock,
        identity: asyncssh.SSHKey,
        settings: Settings,
        elsewhere: Elsewhere,
    ) -> None:
        now = asyncio.get_running_loop().time
        self._store = store
        self._clock = clock
        self._domain = settings.domain
        self._nodes = _Nodes(identity)
        self._told = ToldServices(now)
        self._access = StoredAccess(store, clock, now)
        self._outliers = Outliers(now)
        self._traffic = ReportedTraffic(now, lambda replica: self._session.emptied(replica))
        self._session = WaysSession(links, self._told, self._nodes.links.update, self)
        self._keeping: asyncio.Task[None] | None = None
        self._proxy = Proxy(
            services=self._told,
            traffic=self._traffic,
            access=self._access,
            connect=self._nodes.connect,
            settings=settings,
            outliers=self._outliers,
            elsewhere=elsewhere,
        )

    def start(self) -> None:
        self._keeping = asyncio.create_task(self._session.run(), name="ways to services")

    async def close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        self._proxy.close()
        await self._access.close()
        await self._nodes.links.close()
        await self._store.close()

    def takes(self, request: web.Request) -> bool:
        """Return whether the request is answered here, unless no replica is reached."""
        if _has_own_cookie(request) or not self._proxy.takes(request):
            return False
        authorization = request.headers.get("Authorization", "")
        if bearer(authorization).startswith(BROWSER_PREFIX):
            return False
        name = self._proxy.named(request)
        if name is None:
            # The list of models has those of services that are the leader's, too.
            return request.method != "GET" and bool(authorization)
        service = self._told.find(name)
        path = headers.origin_form(request.raw_path).partition("?")[0]
        if service is None or path in (LOGIN, ENTER):
            return False
        return not service.auth or bool(authorization)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        return await self._proxy.answer(request)

    async def numbers(self, request: web.Request) -> bytes:
        """Return the numbers of the requests that went through here, for Prometheus. Raises
        Unauthenticated, Forbidden, StoreError."""
        proof = proof_of(request, self._clock)
        async with self._store.moment() as moment:
            require_admin(await proof.user(moment, self._clock), READ_METRICS)
        return self._proxy.metrics.page()

    # -- what is reported (`told.Carried`) ------------------------------------------------------

    def in_flight(self) -> dict[str, int]:
        return dict(self._traffic.in_flight)

    def take(self) -> tuple[GroupCounts, ...]:
        return self._traffic.take()

    def ejected(self) -> dict[str, float]:
        return self._outliers.seconds_left()


class _Nodes:
    """The ways to nodes. A node that can't be reached from here costs few requests their time."""

    def __init__(self, identity: asyncssh.SSHKey) -> None:
        self.links = NodeLinks(identity)
        self._now = asyncio.get_running_loop().time
        self._avoided_until: dict[str, float] = {}

    async def connect(self, replica: Replica) -> PortStream:
        """Raises LinkError, AgentError."""
        node_id = replica.node_id
        if self._now() < self._avoided_until.get(node_id, 0.0):
            raise LinkError("its node could not be reached from here just now")
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                stream = await self.links.connect(replica)
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


def _has_own_cookie(request: web.Request) -> bool:
    """Return whether a browser logged in, for which only the leader knows the login."""
    pairs = (one for line in request.headers.getall("Cookie", ()) for one in line.split(";"))
    return any(pair.strip().lower().startswith(headers.OWN_COOKIES) for pair in pairs)
