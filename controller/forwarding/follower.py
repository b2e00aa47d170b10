"""What a controller serves while it waits: an application over HTTP, and connections by bytes.

What every controller of this version knows is answered here; all else is the leader's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Protocol

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from common.http import HEAD_SECONDS, is_our_failure
from common.proxy.entry import tidy
from common.proxy.headers import LOCAL_DOMAIN, service_of_host
from controller.api.app import (
    HEALTH_PATH,
    MAX_BODY_BYTES,
    SERVICES_METRICS_PATH,
    figures,
    not_for_tabs,
)
from controller.api.http.errors import as_response, encoded, nobody_leads
from controller.api.http.leaving import Leaving
from controller.api.http.origins import host_of
from controller.api.http.streams import STREAMS, end_streams
from controller.forwarding.follower_links import HANDSHAKE_SECONDS, LINK_PATH
from controller.forwarding.forwarder import Forwarder, LeaderLate
from controller.forwarding.leader_links import LeaderLinks, NobodyLeads
from controller.forwarding.reads import Reads
from controller.forwarding.submissions.answering import PATHS as SUBMISSIONS
from controller.forwarding.submissions.answering import Submissions
from controller.forwarding.submissions.readings import Readings
from controller.relay import Leader
from controller.replica.alone import LeaderKnowsMore, NeedsLeader, alone
from controller.replica.answers import Answers
from controller.store.errors import StoreError, StoreHangs
from controller.web.assets import STATIC_PATH, installed
from controller.web.sessions import PATH

SHUTDOWN_SECONDS = 0.5
ANSWER_SECONDS = 10.0
"""So long requests that have come when this controller is stopped have for their answer. The leader
holds a change for less."""
QUIET_SECONDS = 0.3
"""A request may be on its way on a connection that was just accepted, or is kept."""
LEADER_SECONDS = 8.0
"""So long a read waits for the leader's answer after the database has given none."""
SOON_SECONDS = 1.5
"""So long an answer that is right without the leader waits for what only it knows."""
LENT_SECONDS = 60.0
"""So long the leader gives a watch because the database was slow here when it began. Its client
comes again, and is answered here; else he would stay there for hours."""
_LENT = ("/watch", PATH + "/stream")
"""Ends of the paths of what goes on in this way. A log's stream does not: one of text can't."""
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
log = logging.getLogger(__name__)


class ServicesHere(Protocol):
    """Services whose replicas this follower reaches itself."""

    def start(self) -> None: ...
    async def close(self) -> None: ...
    def takes(self, request: web.Request) -> bool: ...
    async def answer(self, request: web.Request) -> web.StreamResponse: ...
    async def figures(self, request: web.Request) -> bytes:
        """Return those of its requests, for an admin. Raises ServiceError, StoreError."""


class Routes(Protocol):
    """Routes that are answered here, by their path; all are for GET."""

    @property
    def routes(self) -> Mapping[str, Answer]: ...


MakeServices = Callable[[Answer], ServicesHere]
"""Makes them with who passes a request on to the leader."""


class Follower:
    """Serves accepted connections. `certificate`: the TLS of the API; None: it has none."""

    def __init__(
        self,
        links: LeaderLinks,
        certificate: ssl.SSLContext | None,
        service_domain: str | None = None,
        reads: Reads | None = None,
        answers: Answers | None = None,
        make_services: MakeServices | None = None,
        ports: Routes | None = None,
        readings: Readings | None = None,
    ) -> None:
        self._links = links
        self._answers = answers
        self._certificate = certificate
        self.forwarder = Forwarder(self._links)
        self._leaving = Leaving()
        self._services = None if make_services is None else make_services(self.forwarder.forward)
        self._submissions: Submissions | None = None
        if readings is not None:
            self._submissions = Submissions(self.forwarder, links, readings)
        logging.getLogger("aiohttp.server").addFilter(is_our_failure)
        self._runner = web.AppRunner(
            make_app(
                self.forwarder,
                service_domain,
                reads,
                answers,
                self._services,
                ports,
                self._leaving,
                self._submissions,
            ),
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=HEAD_SECONDS,
            shutdown_timeout=SHUTDOWN_SECONDS,
        )

    async def start(self) -> None:
        await self._runner.setup()
        if self._services is not None:
            self._services.start()

    def leave(self) -> None:
        """Say that this controller is being stopped, and go on answering."""
        self._leaving.begin()

    async def until_answered(self) -> None:
        """Answer what has come, on connections that were taken. Nobody waits for a leader that is
        not there yet: he is told that nothing was done."""
        self._links.wait_no_more()
        await self._leaving.until_answered(ANSWER_SECONDS, QUIET_SECONDS)

    async def close(self) -> None:
        await self._runner.cleanup()
        if self._submissions is not None:
            await self._submissions.close()
        if self._services is not None:
            await self._services.close()
        self._links.close()

    def lead_to(self, leader: Leader | None) -> None:
        self.forwarder.is_leading = leader is not None and leader.is_own
        if self._answers is not None:
            self._answers.keep(wanted=not self.forwarder.is_leading)
        self._links.lead_to(leader)

    async def can_serve(self, leader: Leader) -> bool:
        """Return whether requests can be passed on to this leader one by one. Raises OSError,
        TimeoutError."""
        return await self._links.opens_links(leader)

    async def take(self, connection: socket.socket) -> None:
        """Serve this connection from now on."""
        server = self._runner.server
        assert server is not None, "start() comes first"
        # A client may speak no TLS, or leave in the middle of its beginning.
        with contextlib.suppress(OSError, ssl.SSLError):
            await asyncio.get_running_loop().connect_accepted_socket(
                server,
                connection,
                ssl=self._certificate,
                ssl_handshake_timeout=None if self._certificate is None else HANDSHAKE_SECONDS,
            )


def _is_of_no_other_origin(request: web.Request) -> bool:
    origin = request.headers.get("Origin")
    # A WebSocket names its origin also where that is the dashboard's own.
    is_of_dashboard = request.path.startswith(PATH + "/")
    return origin is None or (is_of_dashboard and host_of(origin) == request.host.lower())


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Exception as error:
        return as_response(request, error)


def make_app(
    forwarder: Forwarder,
    service_domain: str | None = None,
    reads: Reads | None = None,
    answers: Answers | None = None,
    services: ServicesHere | None = None,
    ports: Routes | None = None,
    leaving: Leaving | None = None,
    submissions: Submissions | None = None,
) -> web.Application:
    """Return the application of a follower. `service_domain`: that of the leader's proxy, which has
    all paths of its names. `reads`: what is answered from the database and the bucket of logs;
    `answers`: from a copy of the leader's state; `services`: what goes to replicas from here;
    `ports`: what goes to jobs; `submissions`: those that are read here. `leaving` says when it is
    being stopped; None: never."""
    leaving = leaving or Leaving()
    endpoints = _Endpoints(forwarder, service_domain or LOCAL_DOMAIN, services, leaving)
    app = web.Application(
        middlewares=[leaving.middleware, _errors_as_json, endpoints.to_services],
        client_max_size=MAX_BODY_BYTES,
    )
    app[STREAMS] = set()
    app.on_response_prepare.append(leaving.note_answer)
    app.on_shutdown.append(end_streams)
    app.on_response_prepare.append(not_for_tabs)
    app.on_response_prepare.append(tidy)
    app.router.add_get(LINK_PATH, endpoints.no_link)
    app.router.add_get(STATIC_PATH, endpoints.static)
    app.router.add_get(HEALTH_PATH, endpoints.health)
    app.router.add_get(SERVICES_METRICS_PATH, endpoints.of_services)
    answered = _answered(reads, answers) | ({} if ports is None else dict(ports.routes))
    for path, answer in answered.items():
        app.router.add_route("GET", path, endpoints.here(answer))
    if submissions is not None:
        for path in SUBMISSIONS:
            app.router.add_post(path, endpoints.submitted(submissions))
    for (method, path), take in ({} if answers is None else answers.taking).items():
        app.router.add_route(method, path, endpoints.taken(take))
    app.router.add_route("*", "/{rest:.*}", forwarder.forward)
    return app


class _Endpoints:
    """Answers here, or by the leader."""

    def __init__(
        self,
        forwarder: Forwarder,
        service_domain: str,
        services: ServicesHere | None,
        leaving: Leaving,
    ) -> None:
        self._forwarder = forwarder
        self._service_domain = service_domain
        self._services = services
        self._leaving = leaving
        self._assets = installed()

    @property
    def to_services(self) -> Middleware:
        @web.middleware
        async def to_services(request: web.Request, handler: Handler) -> web.StreamResponse:
            services = self._services
            if services is None or self._forwarder.is_leading or not services.takes(request):
                return await handler(request)
            return await services.answer(request)

        return to_services

    async def no_link(self, request: web.Request) -> web.StreamResponse:
        """A follower of another controller believes that this one leads."""
        raise web.HTTPServiceUnavailable

    async def static(self, request: web.Request) -> web.StreamResponse:
        if self._is_ours(request):
            found = await asyncio.to_thread(self._assets.response, request)
            if found is not None:
                return found
        return await self._forwarder.forward(request)

    async def health(self, request: web.Request) -> web.StreamResponse:
        refused = self._leaving.refused() if self._is_ours(request) else None
        return await self._forwarder.forward(request) if refused is None else refused

    async def of_services(self, request: web.Request) -> web.StreamResponse:
        """Not the leader's, which are at its own address."""
        if self._services is None or not self._is_ours(request):
            return await self._forwarder.forward(request)
        return figures(await self._services.figures(request))

    def here(self, answer: Answer) -> Answer:
        """Return what answers here, or by the leader if `answer` says so."""

        async def endpoint(request: web.Request) -> web.StreamResponse:
            # The leader judges pages of other origins, and what is odd.
            is_plain = _is_of_no_other_origin(request) and not request.body_exists
            if is_plain and self._is_ours(request):
                try:
                    return await answer(request)
                except LeaderKnowsMore:
                    return await self._with_leader(request, answer)
                except StoreHangs as hangs:
                    try:
                        with _lent(request):
                            return await self._forwarder.forward(request, LEADER_SECONDS)
                    except LeaderLate:
                        # It may wait for the same database.
                        raise hangs from None
                except NobodyLeads:
                    # It was held for as long as the forwarder would hold it.
                    refused = nobody_leads()
                    refused.force_close()
                    return refused
                # The leader may answer what this follower cannot.
                except StoreError:
                    with _lent(request):
                        return await self._forwarder.forward(request)
                except NeedsLeader:
                    pass
            return await self._forwarder.forward(request)

        return endpoint

    def submitted(self, submissions: Submissions) -> Answer:
        async def endpoint(request: web.Request) -> web.StreamResponse:
            if _is_of_no_other_origin(request) and self._is_ours(request):
                return await submissions.answer(request)
            return await self._forwarder.forward(request)

        return endpoint

    def taken(self, take: Answer) -> Answer:
        """Return what takes an upload here, or by the leader if `take` says so."""

        async def endpoint(request: web.Request) -> web.StreamResponse:
            # The leader judges pages of other origins, and what is odd.
            is_plain = _is_of_no_other_origin(request) and encoded(request) is None
            if is_plain and self._is_ours(request):
                # Of the body, nothing was read then.
                with contextlib.suppress(NeedsLeader, StoreError):
                    return await take(request)
            return await self._forwarder.forward(request)

        return endpoint

    def _is_ours(self, request: web.Request) -> bool:
        is_follower = not self._forwarder.is_leading
        return is_follower and service_of_host(request.host, self._service_domain) is None

    async def _with_leader(self, request: web.Request, answer: Answer) -> web.StreamResponse:
        try:
            return await self._forwarder.forward(request, SOON_SECONDS)
        except LeaderLate:
            try:
                with alone():
                    return await answer(request)
            except (NeedsLeader, StoreError):
                return await self._forwarder.forward(request)


@contextlib.contextmanager
def _lent(request: web.Request) -> Iterator[None]:
    """Within this block the leader answers; cut a watch after some time."""
    transport = request.transport
    if transport is None or not request.path.endswith(_LENT):
        yield
        return
    ending = asyncio.get_running_loop().call_later(LENT_SECONDS, transport.abort)
    try:
        yield
    finally:
        ending.cancel()


def _answered(reads: Reads | None, answers: Answers | None) -> dict[str, Answer]:
    """Return what is answered here, by the path of the route."""
    found = {} if reads is None else dict(reads.routes)
    if answers is not None:
        for path, answer in answers.routes.items():
            known = found.get(path)
            found[path] = answer if known is None else _either(known, answer, answers)
    return found


def _either(from_database: Answer, from_copy: Answer, answers: Answers) -> Answer:
    """Return what answers from the copy, which takes less than a read of the database, if there is
    one; for a first answer, or one that needs no more, nothing else has to be read."""

    async def either(request: web.Request) -> web.StreamResponse:
        if not answers.has_copy:
            with contextlib.suppress(NeedsLeader):
                return await from_database(request)
        return await from_copy(request)

    return either
