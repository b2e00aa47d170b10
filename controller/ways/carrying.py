"""Requests for services that a follower carries to replicas itself.

All others go on to the leader: who logs in by a browser, who waits for a service that sleeps, and
whatever finds no way from here. A browser that has logged in is known by its cookie.
"""

from __future__ import annotations

import asyncio

import asyncssh
from aiohttp import web

from common.proxy import headers
from common.proxy.access import bearer
from common.proxy.browsers.cookies import cookie_name, the_cookie
from common.proxy.browsers.login import ENTER, LOGIN
from common.proxy.browsers.sessions import COOKIE
from common.proxy.entry import Elsewhere, Proxy, Settings
from common.proxy.outliers import Outliers
from common.proxy.reported import ReportedTraffic
from common.tokens import BROWSER_PREFIX
from controller.clock import Clock
from controller.forwarding.leader_links import LeaderLinks
from controller.forwarding.reads import proof_of
from controller.proxy.sealed import SealedSessions
from controller.service.accounts.rights import READ_METRICS, require_admin
from controller.store.reading import StoreReader
from controller.ways.admission import StoredAccess
from controller.ways.follower import KnownServices, WaysSession
from controller.ways.nodes import Nodes
from fairlead.wire.gateway import GroupCounts


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
        sealed: SealedSessions | None = None,
    ) -> None:
        now = asyncio.get_running_loop().time
        self._store = store
        self._clock = clock
        self._domain = settings.domain
        self._nodes = Nodes(identity)
        self._known = KnownServices(now)
        self._access = StoredAccess(store, clock, now, sealed)
        self._sealed = sealed
        self._client = settings.site.client
        self._outliers = Outliers(now)
        self._traffic = ReportedTraffic(now, lambda replica: self._session.emptied(replica))
        self._session = WaysSession(links, self._known, self._nodes.links.update, self)
        self._keeping: asyncio.Task[None] | None = None
        self._proxy = Proxy(
            services=self._known,
            traffic=self._traffic,
            access=self._access,
            connect=self._nodes.connect,
            settings=settings,
            outliers=self._outliers,
            elsewhere=elsewhere,
            sessions=sealed,
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
        if not self._proxy.takes(request):
            return False
        if _has_own_cookie(request):
            return self._has_session(request)
        authorization = request.headers.get("Authorization", "")
        if bearer(authorization).startswith(BROWSER_PREFIX):
            return False
        name = self._proxy.named(request)
        if name is None:
            # The list of models has those of services that are the leader's, too.
            return request.method != "GET" and bool(authorization)
        service = self._known.find(name)
        path = headers.origin_form(request.raw_path).partition("?")[0]
        if service is None or path in (LOGIN, ENTER):
            return False
        return not service.auth or bool(authorization)

    def _has_session(self, request: web.Request) -> bool:
        """Return whether the request has the cookie of a session with its service that this
        follower can open, and nothing else to be admitted by."""
        name = self._proxy.named_by_host(request)
        service = None if name is None else self._known.find(name)
        path = headers.origin_form(request.raw_path).partition("?")[0]
        if self._sealed is None or service is None or path in (LOGIN, ENTER):
            return False
        value = the_cookie(request, cookie_name(COOKIE, self._client(request)))
        if value is None or not service.auth or "Authorization" in request.headers:
            return False
        return self._sealed.opened(value, service.run_id) is not None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        return await self._proxy.answer(request)

    async def figures(self, request: web.Request) -> bytes:
        """Return the figures of the requests that went through here, for Prometheus. Raises
        Unauthenticated, Forbidden, StoreError."""
        proof = proof_of(request, self._clock)
        async with self._store.moment() as moment:
            require_admin(await proof.user(moment, self._clock), READ_METRICS)
        return self._proxy.figures.page()

    # -- what is reported (`follower.Carried`) --------------------------------------------------

    def in_flight(self) -> dict[str, int]:
        return dict(self._traffic.in_flight)

    def take(self) -> tuple[GroupCounts, ...]:
        return self._traffic.take()

    def ejected(self) -> dict[str, float]:
        return self._outliers.seconds_left()


def _has_own_cookie(request: web.Request) -> bool:
    """Return whether the request has a cookie of ours: of a login, or of one that goes on."""
    pairs = (one for line in request.headers.getall("Cookie", ()) for one in line.split(";"))
    return any(pair.strip().lower().startswith(headers.OWN_COOKIES) for pair in pairs)
