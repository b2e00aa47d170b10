"""The entrance of the proxy: which requests are for a service, and which service that is."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from common.http import error_response
from common.proxy import headers, models
from common.proxy.access import RateLimits, bearer, may_see
from common.proxy.body import Body, body_of, whole
from common.proxy.browsers.login import NOT_KEPT, BrowserLogin, Prove, closed_page
from common.proxy.browsers.login import Settings as LoginSettings
from common.proxy.browsers.sessions import (
    BrowserSessions,
    SessionBook,
    wants_page,
    without_own_cookies,
)
from common.proxy.browsers.site import Site
from common.proxy.errors import NOTHING_DONE, LeftToAnother, NoneReached, NoReplica, TooMany
from common.proxy.figures import MeteredTraffic
from common.proxy.forwarding import FROM_REPLICA, Forwarded, Forwarder, HangUps, ProxyLimits
from common.proxy.headers import Client, Target
from common.proxy.judgement import require_plain
from common.proxy.outliers import Outliers
from common.proxy.replicas import Replicas
from common.proxy.view import Access, Admission, Connect, Service, Services, Traffic
from common.refusals import (
    Forbidden,
    Invalid,
    NotFound,
    ServiceError,
    Unauthenticated,
    Unavailable,
)
from common.tokens import BROWSER_PREFIX

Elsewhere = Callable[[web.Request], Awaitable[web.StreamResponse]]
_FOR_ANOTHER = (NoneReached, NoReplica, NotFound, Unavailable)
CLIENT_GONE = 499
"""No client is left to read it; other statuses would be logged as failures of the controller."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """`domain`: services answer at `NAME.domain` alone. None: below `/services/NAME`, where no page
    of theirs can act, and for a person at the controller's own machine at `NAME.localhost`."""

    domain: str | None = None
    site: Site = Site()
    is_gateway: bool = False
    """Another machine's controller has the dashboard."""
    limits: ProxyLimits = ProxyLimits()

    def url_of(self, service: str) -> str | None:
        """Return where this service answers at a host name of its own; None: it is not known."""
        if self.domain is None or self.site.public_url is None:
            return None
        scheme, _, host = self.site.public_url.partition("://")
        return f"{scheme}://{service}.{self.domain}{headers.port_of(host)}/"


class Proxy:
    """Answers the requests that are meant for services. `elsewhere`: who answers those that this
    proxy has no way for; no replica has acted on them, or they may be repeated. `sessions`: those
    of browsers; None: they are kept in memory."""

    def __init__(
        self,
        *,
        services: Services,
        traffic: Traffic,
        access: Access,
        connect: Connect,
        settings: Settings,
        prove: Prove | None = None,
        outliers: Outliers | None = None,
        elsewhere: Elsewhere | None = None,
        sessions: SessionBook | None = None,
    ) -> None:
        self._elsewhere = elsewhere
        self.replicas = Replicas(connect, outliers)
        self._services = services
        self.figures = MeteredTraffic(traffic)
        self._access = access
        self._rates = RateLimits(_now)
        self._browsers = BrowserSessions(_now, sessions)
        logins = LoginSettings(site=settings.site, knows_local=not settings.is_gateway, prove=prove)
        self._login = BrowserLogin(access, self._browsers, logins)
        self._forwarder = Forwarder(services, self.replicas, self.figures, settings.limits)
        self._limits = settings.limits
        self._domain = settings.domain
        self._client = settings.site.client
        self._hang_ups = HangUps()

    def leave(self) -> None:
        """Refuse what waits for a replica, and what would: another controller may do it."""
        self._forwarder.leave()

    def close(self) -> None:
        self.replicas.close()

    def takes(self, request: web.Request) -> bool:
        """Return whether the request is for a service, by its host name or its path."""
        if self.named_by_host(request) is not None:
            return True
        raw = headers.origin_form(request.raw_path)
        return raw.startswith((headers.SERVICES, models.MODELS + "/"))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer the request; refusals and failures included."""
        return await self.answer_as(request, self.named_by_host(request))

    def named(self, request: web.Request) -> str | None:
        """Return the service that the host name or the path names."""
        by_path = headers.target_by_path(headers.origin_form(request.raw_path))
        return self.named_by_host(request) or (None if by_path is None else by_path.service)

    def named_by_host(self, request: web.Request) -> str | None:
        """Return the service whose own host name the request has."""
        return headers.service_of_host(request.host, self._domain or headers.LOCAL_DOMAIN)

    async def answer_as(
        self, request: web.Request, name: str | None, *, admitted_by: str | None = None
    ) -> web.StreamResponse:
        """Answer a request for this service; None: for the one that the path or a model tells.

        `admitted_by`: a header, which no client can send, of requests that need no token.
        """
        raw = headers.origin_form(request.raw_path)
        is_model = name is None and raw.startswith(models.MODELS + "/")
        try:
            require_plain(request)
            with self._hang_ups.watched(request):
                if self._hang_ups.in_flight > self._limits.max_in_flight:
                    raise NoReplica("the proxy has too many requests at the moment; try again soon")
                if is_model:
                    return await self._model(request, raw)
                if name is None:
                    return await self._by_path(request, _target(raw))
                target = Target(service=name, rest=raw, prefix="", own_origin=True)
                return await self._by_host(request, target, admitted_by)
        except ServiceError as error:
            if self._elsewhere is None or not isinstance(error, _FOR_ANOTHER):
                return _refusal(error, is_model)
        # This answer reaches nobody. aiohttp wants one all the same, and its status is in the
        # access log.
        except ConnectionError:
            return web.Response(status=CLIENT_GONE)
        except web.RequestPayloadError:
            return _refusal(Invalid("the body does not match its length or encoding"), is_model)
        return await self._elsewhere(request)

    async def _by_path(self, request: web.Request, target: Target) -> web.StreamResponse:
        """Answer below `/services/NAME`, on the dashboard's origin. A person is led to the origin
        of the service alone, where there is one. Neither this nor a refusal tells a stranger
        whether there is such a service."""
        _require_no_worker(request)
        if request.method in ("GET", "HEAD") and _is_bare(request, target):
            return web.Response(status=308, headers={"Location": _with_slash(request, target)})
        client, is_page = self._client(request), wants_page(request)
        own = headers.own_origin(target.service, client, self._domain)
        if own is not None and is_page and "Authorization" not in request.headers:
            there = own + headers.origin_form(request.raw_path)
            return web.Response(status=307, headers={"Location": there, **NOT_KEPT})
        if self._domain is not None:
            raise NotFound(
                f"services answer at their own host names alone: {own}/ is that of "
                f"{target.service}",
                code="other_host",
            )
        try:
            service, admission = await self._admitted(request, target, client)
        except Unauthenticated:
            if not is_page:
                raise
            return closed_page(target)
        return await self._carry(request, service, target, client, admission)

    async def _by_host(
        self, request: web.Request, target: Target, admitted_by: str | None
    ) -> web.StreamResponse:
        """Answer at the host name that is the service's alone."""
        client = self._client(request)
        found = self._services.find(target.service)
        login = await self._login.answer(request, target, client, found)
        if login is not None:
            return login
        try:
            service, admission = await self._admitted(request, target, client, admitted_by)
        except Unauthenticated:
            if not wants_page(request):
                raise
            return self._login.page(request, target, client, "Log in to open this service.")
        there = _moved_to(request, target, service)
        if there is not None:
            return web.Response(status=307, headers={"Location": there, **NOT_KEPT})
        return await self._carry(request, service, target, client, admission)

    async def _admitted(
        self, request: web.Request, target: Target, client: Client, admitted_by: str | None = None
    ) -> tuple[Service, Admission]:
        """Return the service of a request that it admits. Whoever may not use it does not hear
        whether there is one.

        Raises Unauthenticated, NotFound, Unavailable.
        """
        service = self._services.find(target.service)
        # A missing service asks for a token, too: else strangers learn which names are taken.
        asked = service or Service(run_id="", name=target.service, owner="")
        try:
            admission = await self._admit(request, asked, target, client, admitted_by)
        except (Forbidden, NotFound):
            service = None
        if service is None:
            raise NotFound(
                f"there is no service {target.service} that you may use; its owner can give you a "
                f"key of it (`fairlead service key add {target.service}`)",
                field="service",
            )
        return service, admission

    async def _admit(
        self,
        request: web.Request,
        service: Service,
        target: Target,
        client: Client,
        admitted_by: str | None,
    ) -> Admission:
        """Raises Unauthenticated, Forbidden, NotFound, Unavailable."""
        if admitted_by is not None and admitted_by in request.headers:
            return Admission(secret_headers=frozenset({admitted_by.lower()}))
        authorization = _authorization(request)
        if service.auth and target.own_origin and not authorization:
            authorization = self._browsers.authorization(service, request, client)
        return await self._access.admit(service, authorization)

    async def _model(self, request: web.Request, raw: str) -> web.StreamResponse:
        _require_no_worker(request)
        authorization = _authorization(request)
        path, _, _ = raw[len(models.MODELS) :].partition("?")
        plain = _plain(path)
        if plain == "/models" and request.method == "GET":
            return models.listing(await self._seen(authorization))
        if plain.startswith("/models/") and request.method == "GET":
            named = await self._by_model(plain[len("/models/") :], authorization)
            return models.description(named)
        data = await whole(request, min(models.MAX_BODY, self._limits.most_body))
        model = models.model_of(data, request.content_type)
        if model is None:
            raise Invalid(
                "the request names no model: give `model` in its JSON body", field="model"
            )
        service = await self._by_model(model, authorization)
        client = self._client(request)
        admission = await self._access.admit(service, authorization)
        rest = service.model_prefix.rstrip("/") + raw[len(models.MODELS) :]
        self._rates.check(service, _plain(rest), client.address, request.headers)
        target = Target(service=service.name, rest=rest, prefix="")
        body = Body(request, self._limits.most_body, data)
        return await self._forward(request, service, target, body, client, admission)

    async def _carry(
        self,
        request: web.Request,
        service: Service,
        target: Target,
        client: Client,
        admission: Admission,
    ) -> web.StreamResponse:
        """Forward an admitted request within the service's limits. Raises ServiceError."""
        self._rates.check(service, _plain(target.rest), client.address, request.headers)
        body = await body_of(request, self._limits.most_body)
        return await self._forward(request, service, target, body, client, admission)

    async def _forward(
        self,
        request: web.Request,
        service: Service,
        target: Target,
        body: Body,
        client: Client,
        admission: Admission,
    ) -> web.StreamResponse:
        is_upgrade = _asks_for_websocket(request)
        sent = without_own_cookies(
            headers.request_headers(
                request.headers.items(),
                client=client,
                service=service,
                prefix=target.prefix,
                drop=admission.secret_headers,
            )
        )
        if is_upgrade:
            sent += [("Connection", "Upgrade"), ("Upgrade", "websocket")]
        stripped = target.prefix if service.strip_prefix else ""
        call = Forwarded(
            request=request,
            service=service.name,
            run_id=service.run_id,
            rest=target.rest if stripped or not target.prefix else target.prefix + target.rest,
            prefix=target.prefix,
            stripped=stripped,
            own_origin=target.own_origin,
            headers=sent,
            body=body,
            hosts=frozenset({request.host, client.host}),
            is_upgrade=is_upgrade,
        )
        task = asyncio.current_task()
        assert task is not None
        with self._access.while_admitted(admission, task.cancel):
            return await self._forwarder.forward(call)

    async def _seen(self, authorization: str) -> list[Service]:
        """Return the services with a model that the caller may use. Raises Unauthenticated."""
        found = [service for service in self._services.all() if service.model]
        seen = [one for one in found if await may_see(self._access, one, authorization)]
        if not seen:
            await self._require_known(authorization)
        return seen

    async def _require_known(self, authorization: str) -> None:
        """Refuse a token or key that opens no service with a model and is no user's. No sentence
        names a service, because the caller may see none. Raises Unauthenticated."""
        closed = [service for service in self._services.all() if service.model and service.auth]
        for service in closed:
            try:
                await self._access.admit(service, authorization)
            except Forbidden:
                return
            except Unauthenticated:
                continue
            return
        if closed:
            raise Unauthenticated(
                f"{models.MODELS} asks for a token that this controller knows; send `Authorization:"
                " Bearer TOKEN` with a user's token, or with a key of the model's service"
            )

    async def _by_model(self, model: str, authorization: str) -> Service:
        """Return the service of this model. Raises Unauthenticated, NotFound. Other users' models
        and missing ones are answered alike."""
        named = [service for service in self._services.all() if service.model == model]
        for service in named:
            if await may_see(self._access, service, authorization):
                return service
        await self._require_known(authorization)
        raise NotFound(
            f"there is no model {model!r}; {models.MODELS}/models lists those that you may use",
            code="model_not_found",
            field="model",
        )


def to_services(proxy: Proxy) -> Middleware:
    """Return the middleware that answers the requests for services."""

    @web.middleware
    async def middleware(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if proxy.takes(request):
            return await proxy.answer(request)
        return await handler(request)

    return middleware


async def tidy(request: web.Request, response: web.StreamResponse) -> None:
    """Remove what aiohttp adds to a replica's answer; for `on_response_prepare`."""
    sent = response.get(FROM_REPLICA)
    if sent is not None:
        # aiohttp has set both by now, where the replica sent none.
        for name in ("Server", "Content-Type"):
            if name.lower() not in sent:
                response.headers.popall(name, None)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _authorization(request: web.Request) -> str:
    """Return what the request is to be admitted by. Raises Unauthenticated."""
    authorization = request.headers.get("Authorization", "")
    # Only the cookie's check of the page's origin protects such a session from other sites.
    if bearer(authorization).startswith(BROWSER_PREFIX):
        raise Unauthenticated("a browser's session is for its cookie alone")
    return authorization


def _require_no_worker(request: web.Request) -> None:
    """Refuse the script of a service worker, where services share the controller's origin: it could
    answer with headers that no replica may set. Raises Forbidden."""
    if request.headers.get("Service-Worker") is not None:
        raise Forbidden(
            "service workers need an origin of the service's own: NAME.localhost on the "
            "controller's machine, or the host name that its --service-domain gives",
            code="no_service_workers",
        )


def _target(raw: str) -> Target:
    target = headers.target_by_path(raw)
    if target is None:
        raise NotFound("the path names no service: write /services/NAME/…", field="service")
    return target


def _plain(rest: str) -> str:
    path = headers.plain_path(rest)
    if path is None:
        raise Invalid("the path leads out of its service", field="path")
    return path


def _is_bare(request: web.Request, target: Target) -> bool:
    """Return whether the path is `/services/NAME` alone: relative links need the slash."""
    path, _, _ = headers.origin_form(request.raw_path).partition("?")
    return path == target.prefix


def _moved_to(request: web.Request, target: Target, service: Service) -> str | None:
    """Return where a path `/services/NAME/…` at the service's own host leads: `_by_path` sends
    people there without knowing the service, and old links do. None: it stays."""
    if request.method not in ("GET", "HEAD"):
        return None
    below = headers.target_by_path(target.rest)
    if service.strip_prefix:
        return below.rest if below is not None and below.service == service.name else None
    path, question, query = target.rest.partition("?")
    is_page = wants_page(request)
    return (
        f"{headers.SERVICES}{service.name}/{question}{query}" if path == "/" and is_page else None
    )


def _with_slash(request: web.Request, target: Target) -> str:
    _, question, query = headers.origin_form(request.raw_path).partition("?")
    return f"{target.prefix}/{question}{query}"


def _asks_for_websocket(request: web.Request) -> bool:
    return (
        request.method == "GET"
        and request.headers.get("Upgrade", "").lower() == "websocket"
        and "upgrade" in request.headers.get("Connection", "").lower()
    )


def _refusal(error: ServiceError, is_model: bool) -> web.Response:
    answer = models.error_response(error) if is_model else error_response(error)
    if isinstance(error, Unauthenticated):
        answer.headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, TooMany | NoReplica):
        answer.headers["Retry-After"] = str(math.ceil(error.wait))
    if isinstance(error, LeftToAnother):
        answer[NOTHING_DONE] = True
    return answer
