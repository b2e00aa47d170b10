"""The aiohttp application: authorise, decode, call a route's handler, encode.

Every answer, errors included, matches the OpenAPI document.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import msgspec
from aiohttp import web, web_app
from aiohttp.typedefs import Handler, Middleware

from common.http import HEAD_SECONDS, is_our_failure
from common.proxy.entry import Proxy, tidy, to_services
from common.proxy.forwarding import FROM_REPLICA
from controller import API_VERSIONS, __version__
from controller.api.accounts import secrets, service_keys, users
from controller.api.http.errors import (
    as_response,
    encoded,
    leads_no_more,
    leaves,
    not_known_to_be_done,
)
from controller.api.http.holding import (
    ANSWERING,
    Changing,
    Holding,
    Lead,
    LeaseEnds,
    has_left,
    note_answer,
)
from controller.api.http.leaving import LEAVING, Leaving
from controller.api.http.openapi import document
from controller.api.http.origins import Origins, mark
from controller.api.http.routes import JSON, TEXT, Call, Instead, Route, decode_body, decode_query
from controller.api.http.streams import END_SECONDS, STREAMS, TOKEN_PROTOCOL, end_streams
from controller.api.jobs import jobs, log_windows, logs, outputs, ports, terminals
from controller.api.machines import controllers, fleets, gateways, nodes, providers, rented
from controller.api.runs import blobs, events, runs, scheduling, services, sweeps
from controller.service import ControllerService
from controller.service.accounts.rights import READ_METRICS, require_admin
from controller.service.accounts.users import Credential
from controller.store.accounts import StoredToken
from controller.store.base import Commits
from controller.store.errors import (
    LeaseLost,
    LeaseTaken,
    NotKnown,
    NotYetStored,
    Stops,
    StoreError,
    StoreUnavailable,
)

MAX_BODY_BYTES = 2 << 20
OPENAPI_PATH = "/v1/openapi.json"
METRICS_PATH = "/metrics"
SERVICES_METRICS_PATH = "/metrics/services"
"""The figures of requests to services that went through this controller's own proxy."""
HEALTH_PATH = "/v1/health"
ENDING_SECONDS = 0.2
"""So long readers of streams hold up the end of a controller among several."""
_OF_THE_API = ("/v1/", "/dashboard/api/", METRICS_PATH)
_API_HEADERS = {
    "Cache-Control": "no-store",
    # An answer may have text of jobs: a browser that is led to it runs nothing of that.
    "Content-Security-Policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
Authorise = Callable[[web.Request], Credential]
_READING = frozenset(("GET", "HEAD", "OPTIONS"))
Endpoint = Callable[[web.Request], Awaitable[web.StreamResponse]]


Mount = Callable[[web.Application], None]
_WORTH_COMPRESSING = 1 << 10


def make_app(
    service: ControllerService,
    proxy: Proxy | None = None,
    origins: Origins | None = None,
    mounts: Sequence[Mount] = (),
    lead: Lead | None = None,
    first: Sequence[Middleware] = (),
    leaving: Leaving | None = None,
) -> web.Application:
    """Return the application. `proxy` answers the requests that are for services; `origins` are
    those whose pages may use the API; `mounts` add routes that are not the API's; changes are
    held while `lead` is not sure, None: it always is; `first` comes before all of it. `leaving`
    says when it is being stopped; None: never."""
    origins, leaving = origins or Origins(), leaving or Leaving()
    # Services first: their pages have origins of their own, and their errors are not the API's.
    before = [] if proxy is None else [to_services(proxy)]
    last = [] if lead is None else [_only_while(lead)]
    app = web.Application(
        middlewares=[
            leaving.middleware,
            *first,
            *before,
            _errors_as_json,
            origins.middleware,
            *last,
        ],
        client_max_size=MAX_BODY_BYTES,
    )
    app[STREAMS] = set()
    app[LEAVING] = leaving
    app.on_response_prepare.append(leaving.note_answer)
    app.on_response_prepare.append(mark)
    if lead is not None:
        # The next leader waits for the end of this one.
        app[END_SECONDS] = ENDING_SECONDS
        app.on_response_prepare.append(note_answer)
    app.on_response_prepare.append(not_for_tabs)
    if proxy is not None:
        app.on_response_prepare.append(tidy)
    app.on_shutdown.append(end_streams)
    app.on_cleanup.append(_let_go)
    add_routes(app.router, service, credentials(service))
    app.router.add_get(OPENAPI_PATH, _openapi())
    app.router.add_get(METRICS_PATH, _metrics(service, proxy))
    app.router.add_get(SERVICES_METRICS_PATH, _metrics(service, proxy, only_services=True))
    for mount in mounts:
        mount(app)
    return app


async def _let_go(_ended: web.Application) -> None:
    """Free what only the ended application reaches: all that was live in a lead that is over.

    aiohttp keeps the last 1024 pairs of a handler and its application in a cache of the process,
    and has no public way to empty it. With 100 live runs, each lead that was lost left 1.1 MiB in
    the process with what was kept and 0.4 MiB without (`./dev bench leads`).
    """
    web_app._cached_build_middleware.cache_clear()


async def not_for_tabs(request: web.Request, response: web.StreamResponse) -> None:
    """Keep the API's answers, which hold what users wrote, out of caches and out of documents."""
    if request.path.startswith(_OF_THE_API) and FROM_REPLICA not in response:
        for name, value in _API_HEADERS.items():
            response.headers.setdefault(name, value)


def add_routes(
    router: web.UrlDispatcher,
    service: ControllerService,
    authorise: Authorise,
    prefix: str = "",
    *,
    compressed: bool = False,
) -> None:
    """Serve all routes below `prefix` to the requests that `authorise` gives a credential.
    `compressed`: as of `endpoints`."""
    for route, endpoint in endpoints(service, authorise, compressed=compressed):
        router.add_route(route.method, prefix + route.path, endpoint)


def endpoints(
    service: ControllerService, authorise: Authorise, *, compressed: bool = False
) -> Iterator[tuple[Route, Endpoint]]:
    """Yield what answers each route. `compressed`: documents are, for browsers that may be far
    away."""
    for route in ROUTES:
        endpoint = _endpoint(route, service, authorise)
        yield route, _compressed(endpoint) if compressed else endpoint


def _compressed(endpoint: Endpoint) -> Endpoint:
    async def compressed(request: web.Request) -> web.StreamResponse:
        answer = await endpoint(request)
        body = answer.body if isinstance(answer, web.Response) else None
        if isinstance(body, bytes) and len(body) >= _WORTH_COMPRESSING:
            answer.enable_compression()
        return answer

    return compressed


def make_runner(
    service: ControllerService,
    *,
    shutdown_timeout: float,
    proxy: Proxy | None = None,
    origins: Origins | None = None,
    mounts: Sequence[Mount] = (),
    lead: Lead | None = None,
    first: Sequence[Middleware] = (),
    leaving: Leaving | None = None,
) -> web.AppRunner:
    """Serve the application, with bodies as they were sent.

    aiohttp would unpack compressed bodies before they can be refused, and log damaged ones as
    failures of the controller.
    """
    logging.getLogger("aiohttp.server").addFilter(is_our_failure)
    return web.AppRunner(
        make_app(service, proxy, origins, mounts, lead, first, leaving),
        access_log=None,
        auto_decompress=False,
        keepalive_timeout=HEAD_SECONDS,
        shutdown_timeout=shutdown_timeout,
    )


def token_of(request: web.Request) -> str | None:
    """Return the token of the request. A browser cannot set the header of a WebSocket's request, so
    it may offer the token as a subprotocol."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    # Not in the address: servers and proxies log addresses.
    offered = request.headers.get("Sec-WebSocket-Protocol", "").split(",")
    given = (name.strip() for name in offered)
    return next(
        (name.removeprefix(TOKEN_PROTOCOL) for name in given if name.startswith(TOKEN_PROTOCOL)),
        None,
    )


def credentials(service: ControllerService) -> Authorise:
    """Return what admits a request by its token."""

    def authorise(request: web.Request) -> Credential:
        return Credential(token=service.accounts.gate.token_of(token_of(request)))

    return authorise


@web.middleware
async def _errors_as_json(request: web.Request, handler: Endpoint) -> web.StreamResponse:
    try:
        refused = encoded(request)
        return await handler(request) if refused is None else refused
    except Exception as error:
        return as_response(request, error)


def _only_while(lead: Lead) -> Middleware:
    holding, changing = Holding(lead), Changing(lead)

    @web.middleware
    async def only_while_it_leads(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method in _READING:
            if request.path != HEALTH_PATH and await has_left(lead):
                return leaves()
            return await handler(request)
        if not await holding.may_go_on(request):
            return leads_no_more()
        stored = Commits.counted()
        try:
            return await changing.answer(request, handler(request))
        # The database may do the change after this answer, so it can neither be confirmed nor
        # denied.
        except LeaseEnds:
            return not_known_to_be_done()
        except (LeaseLost, StoreUnavailable) as error:
            if (answer := unless_done(error, lead, stored)) is None or ANSWERING in request:
                raise
            return answer

    return only_while_it_leads


def unless_done(error: StoreError, lead: Lead, stored: Commits) -> web.Response | None:
    """Return the answer to a change that this controller could not store, if another controller may
    lead; None: this one leads, and the error says what is wrong."""
    if isinstance(error, LeaseTaken | Stops) and not stored.has_any:
        return leaves(str(error))
    if isinstance(error, LeaseLost | NotKnown):
        return not_known_to_be_done(f"{error}, so it is not known whether this change was stored")
    if lead.is_sure():
        return None
    if isinstance(error, NotYetStored):
        return not_known_to_be_done(f"{error}, so it is not known whether this change is stored")
    # Nothing was stored by the one that has failed.
    return None if stored.has_any else leads_no_more()


def _endpoint(route: Route, service: ControllerService, authorise: Authorise) -> Endpoint:
    async def endpoint(request: web.Request) -> web.StreamResponse:
        held = None if route.public else authorise(request)
        call = await _call(route, service, request, None if held is None else held.token)
        with _while_allowed(route, service, held):
            answer = await route.handler(call)
        if isinstance(answer, web.StreamResponse):
            return answer
        if isinstance(answer, Instead):
            return _json(answer.answer, answer.status)
        return _json(answer, route.status)

    return endpoint


def _while_allowed(
    route: Route, service: ControllerService, held: Credential | None
) -> AbstractContextManager[None]:
    """End a stream when its token or login ends; a short request may finish."""
    task = asyncio.current_task()
    if held is None or task is None or route.media == JSON:
        return nullcontext()
    return service.accounts.gate.until_it_ends(held, task.cancel)


async def _call(
    route: Route, service: ControllerService, request: web.Request, token: StoredToken | None
) -> Call:
    user = None if token is None else service.accounts.gate.users[token.user]
    paths = dict(request.match_info)
    if user is not None and "run" in paths:
        paths["run"] = (await service.runs.lookup.seen(paths["run"], user)).run.id
    query: object = decode_query(dict(request.query), route.query)
    body: object = None
    if route.body is not None:
        body = decode_body(await request.read(), route.body)
    return Call(
        request=request,
        service=service,
        user=user,
        token=token,
        query=query,
        body=body,
        paths=paths,
    )


@functools.cache
def _document() -> bytes:
    # 30 to 90 ms of CPU: made when somebody asks, so that no start and no takeover waits for it.
    return msgspec.json.encode(document(ROUTES))


def _openapi() -> Endpoint:
    making = asyncio.Lock()

    async def openapi(request: web.Request) -> web.StreamResponse:
        # Anybody may ask, without a token: many at once must not each have a thread make it.
        async with making:
            body = await asyncio.to_thread(_document)
        return web.Response(body=body, content_type=JSON)

    return openapi


def _metrics(
    service: ControllerService, proxy: Proxy | None, *, only_services: bool = False
) -> Endpoint:
    """Return the endpoint that Prometheus scrapes with the token of an admin."""

    async def metrics(request: web.Request) -> web.StreamResponse:
        token = service.accounts.gate.token_of(token_of(request))
        require_admin(service.accounts.gate.users[token.user], READ_METRICS)
        page = b"" if only_services else service.figures.page()
        return figures(page + (b"" if proxy is None else proxy.figures.page()))

    return metrics


def figures(page: bytes) -> web.Response:
    """Return what Prometheus reads."""
    return web.Response(body=page, content_type=TEXT, charset="utf-8")


def _json(answer: object, status: int) -> web.Response:
    return web.Response(body=msgspec.json.encode(answer), status=status, content_type=JSON)


class HealthAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`disk`: ok or full."""

    status: str
    version: str
    api_versions: tuple[str, ...]
    disk: str


async def health(call: Call) -> HealthAnswer | web.StreamResponse:
    if (refused := call.request.app[LEAVING].refused()) is not None:
        return refused
    disk = call.service.disk
    return HealthAnswer(
        status="ok",
        version=__version__,
        api_versions=API_VERSIONS,
        disk="full" if disk is not None and disk.is_full else "ok",
    )


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path=HEALTH_PATH,
        summary="Whether the controller answers",
        handler=health,
        answer=HealthAnswer,
        public=True,
    ),
    *runs.ROUTES,
    *sweeps.ROUTES,
    *jobs.ROUTES,
    *logs.ROUTES,
    *log_windows.ROUTES,
    *outputs.ROUTES,
    *blobs.ROUTES,
    *ports.ROUTES,
    *terminals.ROUTES,
    *events.ROUTES,
    *nodes.ROUTES,
    *scheduling.ROUTES,
    *users.ROUTES,
    *secrets.ROUTES,
    *controllers.ROUTES,
    *fleets.ROUTES,
    *rented.ROUTES,
    *providers.ROUTES,
    *gateways.ROUTES,
    *service_keys.ROUTES,
    *services.ROUTES,
)
"""All routes under `/v1`, in the order of the OpenAPI document."""
