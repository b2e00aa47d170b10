"""Mounts the dashboard: who may visit, the routes of all pages, and the headers of every answer."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from aiohttp import web

from common.proxy.browsers.site import Site
from common.refusals import NotFound, ServiceError, Unauthenticated
from controller.api.app import add_routes
from controller.api.http.errors import as_response
from controller.service import ControllerService
from controller.service.accounts.users import Credential
from controller.store.errors import StoreError
from controller.web import live, sessions
from controller.web.assets import STATIC_PATH, Assets, installed
from controller.web.login import FIRST_PATH, LOGIN_PATH, Login
from controller.web.opening import Opening
from controller.web.page import Done, Page, PageRoute, Renderer, Section, Visit, theme_of
from controller.web.pages import (
    costs,
    dev_environments,
    events,
    logs,
    nodes,
    people,
    queue,
    run,
    runs,
    services,
    sweeps,
)
from controller.web.sessions import PATH, Sessions
from controller.web.shared import Fragment, SharedFragments
from fairlead.wire.errors import Refused

log = logging.getLogger(__name__)

PAGES: tuple[PageRoute, ...] = (
    *runs.PAGES,
    *logs.PAGES,
    *run.PAGES,
    *sweeps.PAGES,
    *queue.PAGES,
    *nodes.PAGES,
    *costs.PAGES,
    *services.PAGES,
    *dev_environments.PAGES,
    *events.PAGES,
    *people.PAGES,
)
SECTIONS: tuple[Section, ...] = (
    Section(name="Runs", path="runs", key="r"),
    Section(name="Queue", path="queue", key="q"),
    Section(name="Nodes", path="nodes", key="n"),
    Section(name="Cost", path="cost", key="c", renting=True),
    Section(name="Services", path="services", key="s"),
    Section(name="Dev environments", path="dev-environments", key="d"),
    Section(name="Events", path="events", key="e"),
    Section(name="Users", path="users", key="u", admins=True),
)
"""The navigation."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "NEL": '{"max_age":0}',
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""NEL: browsers forget a policy that a service set here, when it could."""
ENTER_PATH = PATH + "/enter"
_MAX_MESSAGE = 1000
"""Characters of what an act has done, in a header, of which followers take 8,190 bytes."""
_Endpoint = Callable[[web.Request], Awaitable[web.StreamResponse]]


def session_key(secret: bytes) -> bytes:
    """Return the key that signs logins, from a secret of the controller that stays the same."""
    return hmac.new(secret, b"fairlead: logins of the dashboard", hashlib.sha256).digest()


class Dashboard:
    """`key`: signs logins (`session_key`). `now`: seconds that only grow. `service_domain`: the
    proxy's. `changes`: None: this controller's. Pages that are made while `variant` differs share
    no fragment."""

    def __init__(
        self,
        service: ControllerService,
        key: bytes,
        now: Callable[[], float],
        assets: Assets | None = None,
        site: Site | None = None,
        service_domain: str | None = None,
        changes: live.Source | None = None,
        variant: Callable[[], Hashable] = lambda: None,
    ) -> None:
        self._site = site or Site()
        self.opening = Opening(self._site, service_domain, key)
        self._client = self._site.client
        self._service = service
        self._assets = installed() if assets is None else assets
        self._renderer = Renderer(self._assets)
        self._sessions = Sessions(key, service.accounts.gate, service.clock, self._client)
        self._shared = SharedFragments(service.runs.lookup.changes(None), now)
        self._changes = changes or live.OwnChanges(service)
        self._variant = variant
        self._marks = live.Marks(self._changes)
        self._login = Login(service.accounts, self._sessions, self._renderer, self._client, now)

    def mount(self, app: web.Application) -> None:
        """Add the dashboard's routes to the API's application."""
        router = app.router
        router.add_get(STATIC_PATH, self._static)
        router.add_get(ENTER_PATH, self._headed(self._login.ask_for_link))
        router.add_post(ENTER_PATH, self._headed(self._login.with_link))
        router.add_post(ENTER_PATH + "/who", self._headed(self._login.who))
        router.add_post(LOGIN_PATH, self._headed(self._login.with_token))
        router.add_post(PATH + "/logout", self._headed(self._log_out))
        router.add_get(PATH + "/open/{service}", self._headed(self._open_service))
        router.add_get(PATH + "/stream", self._headed(self._stream))
        for path, endpoint in self._first.items():
            router.add_get(path, endpoint)
        for page in PAGES:
            router.add_route(page.method, PATH + page.path, self._headed(self._page(page)))
        add_routes(router, self._service, self.for_api, PATH + "/api", compressed=True)
        router.add_get(PATH + "/{page:.*}", self._headed(self._missing))

    @property
    def reading(self) -> dict[str, _Endpoint]:
        """Return what answers each page, and what pages ask about their login, by its path."""
        pages = (page for page in PAGES if page.method == "GET")
        return self._first | {PATH + page.path: self._headed(self._page(page)) for page in pages}

    @property
    def _first(self) -> dict[str, _Endpoint]:
        first = _moved(FIRST_PATH)
        return {
            "/": first,
            PATH: first,
            PATH + "/": first,
            LOGIN_PATH: self._headed(self._login.ask),
            PATH + "/session": self._headed(self._session),
        }

    def _headed(self, endpoint: _Endpoint) -> _Endpoint:
        """Answer refusals and failures as pages, and give every answer its headers."""

        async def headed(request: web.Request) -> web.StreamResponse:
            try:
                self._site.require_unread(self._client(request))
                if not await asyncio.to_thread(lambda: self._assets.are_complete):
                    return web.Response(status=503, text=_NOT_PACKED, headers=HEADERS)
                answer = await endpoint(request)
            except (ServiceError, StoreError) as error:
                answer = self._refusal(request, error)
            # The head of a stream or a WebSocket was sent already.
            if not answer.prepared:
                answer.headers.update(HEADERS)
                answer.headers.setdefault("Cache-Control", "no-store")
                # A shared fragment is compressed already.
                is_plain = "Content-Encoding" not in answer.headers
                if is_plain and isinstance(answer, web.Response) and answer.body:
                    answer.enable_compression()
            return answer

        return headed

    def _page(self, page: PageRoute) -> _Endpoint:
        async def endpoint(request: web.Request) -> web.StreamResponse:
            is_part = request.headers.get("HX-Request") == "true" or request.method != "GET"
            visit = self._visit(request, is_part=is_part)
            if page.shared and is_part and (part := await self._shared_part(visit, page)):
                return part
            with self._while_it_holds(visit.credential, request):
                answer = await page.handler(visit)
            if isinstance(answer, web.StreamResponse):
                return answer
            if isinstance(answer, Done):
                return _done(answer)
            return self._rendered(visit, answer, is_part=is_part)

        return endpoint

    async def _shared_part(self, visit: Visit, page: PageRoute) -> web.Response | None:
        """Answer with a fragment that other pages of the user may ask for at the same time; None:
        the target is none. A whole page has a token of its own and is never shared."""
        target = visit.request.headers.get("HX-Target", "")

        async def make() -> Fragment | None:
            answer = await page.handler(visit)
            assert isinstance(answer, Page)
            context = self._context(visit, answer)
            text = self._renderer.fragment(answer, target, context)
            return None if text is None else Fragment.of(text)

        path, user = visit.request.path_qs, visit.user
        key = (user.name, user.role, path, target, self._variant())
        found = await self._shared.get(key, make)
        if found is None:
            return None
        if "gzip" not in visit.request.headers.get("Accept-Encoding", ""):
            return web.Response(body=found.content, content_type="text/html", charset="utf-8")
        headers = {"Content-Encoding": "gzip"}
        body = found.compressed
        return web.Response(body=body, content_type="text/html", charset="utf-8", headers=headers)

    def _while_it_holds(
        self, held: Credential, request: web.Request
    ) -> AbstractContextManager[None]:
        """End a stream when its token or login ends; a page or an action may finish."""
        task = asyncio.current_task()
        if task is None or (request.method == "GET" and "Upgrade" not in request.headers):
            return nullcontext()
        return self._service.accounts.gate.until_it_ends(held, task.cancel)

    def _visit(self, request: web.Request, *, is_part: bool) -> Visit:
        cookie = self._sessions.cookie_of(request)
        held = self._sessions.credential_of(cookie)
        if is_part or "Upgrade" in request.headers:
            self._sessions.require_page(request, cookie)
        else:
            sessions.require_navigation(request)
        return Visit(
            request=request,
            service=self._service,
            user=self._service.accounts.gate.users[held.token.user],
            credential=held,
            page_token=self._sessions.page_token(cookie),
            mark=self._marks.now(),
        )

    def for_api(self, request: web.Request) -> Credential:
        """Authorise a module of a page that asks the API, below `/dashboard/api`."""
        self._site.require_unread(self._client(request))
        cookie = self._sessions.cookie_of(request)
        held = self._sessions.credential_of(cookie)
        self._sessions.require_page(request, cookie)
        return held

    def _context(self, visit: Visit, page: Page) -> dict[str, Any]:
        rents = self._service.machines.rented.is_renting
        sections = [
            one
            for one in SECTIONS
            if (visit.is_admin or not one.admins) and (rents or not one.renting)
        ]
        return {
            "title": page.title,
            "section": page.section,
            "sections": sections,
            "user": visit.user.name,
            "role": visit.user.role.value,
            "page_token": visit.page_token,
            "mark": visit.mark,
            "broken": self._changes.broken,
            "now": self._service.clock.now(),
            "here": visit.request.path_qs,
            "theme": theme_of(visit.request),
            "beside": False,
            **page.context,
        }

    def _rendered(self, visit: Visit, page: Page, *, is_part: bool) -> web.Response:
        context = self._context(visit, page)
        text = None
        if is_part:
            target = visit.request.headers.get("HX-Target", "")
            text = self._renderer.fragment(page, target, context)
        if text is None:
            text = self._renderer.whole(page.template, context)
        return web.Response(text=text, status=page.status, content_type="text/html")

    def _refusal(self, request: web.Request, error: Exception) -> web.Response:
        if isinstance(error, Unauthenticated) and sessions.came_from_elsewhere(request):
            return self._renderer.plain("again.html", {"there": sessions.once_more(request)}, 200)
        if isinstance(error, Unauthenticated) and _is_opened(request):
            there = quote(request.path_qs, safe="")
            return web.Response(status=303, headers={"Location": f"{LOGIN_PATH}?next={there}"})
        answer = as_response(request, error)
        if not _is_opened(request):
            return answer
        message = error.message if isinstance(error, Refused) else str(error)
        context = {"message": message, "what": HTTPStatus(answer.status).phrase}
        return self._refused_page(request, context, answer.status)

    def _refused_page(
        self, request: web.Request, context: Mapping[str, str], status: int
    ) -> web.Response:
        """Return the page that says why, with the navigation for a user who has logged in."""
        try:
            self._site.require_unread(self._client(request))
            visit = self._visit(request, is_part=False)
        except ServiceError:
            context = {**context, "theme": theme_of(request)}
            return self._renderer.plain("refused_stranger.html", context, status)
        page = Page(template="refused.html", title=context["what"], context=context, status=status)
        return self._rendered(visit, page, is_part=False)

    async def _missing(self, request: web.Request) -> web.StreamResponse:
        self._visit(request, is_part=not _is_opened(request))
        raise NotFound(f"there is no page {request.path}")

    async def _static(self, request: web.Request) -> web.StreamResponse:
        found = await asyncio.to_thread(self._assets.response, request)
        if found is None:
            raise web.HTTPNotFound
        return found

    async def _open_service(self, request: web.Request) -> web.StreamResponse:
        return await self.opening.open(self._visit(request, is_part=False))

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        visit = self._visit(request, is_part=True)
        task = asyncio.current_task()
        assert task is not None
        with self._service.accounts.gate.until_it_ends(visit.credential, task.cancel):
            topics = {
                topic: mark
                for topic, mark in live.asked_topics(request).items()
                if await live.may_follow(self._service.runs.lookup, visit.user, topic)
            }
            version, clock = self._assets.version, self._service.clock
            return await live.stream(request, topics, version, self._changes, clock, HEADERS)

    async def _session(self, request: web.Request) -> web.StreamResponse:
        """Tell a page whose stream was refused whether it is still logged in."""
        self._visit(request, is_part=True)
        return web.Response(status=204)

    async def _log_out(self, request: web.Request) -> web.StreamResponse:
        return await self._login.end(self._visit(request, is_part=True))


_NOT_PACKED = (
    "The dashboard's scripts are missing: this Fairlead was set up or built without a network. "
    "Run `./dev setup` or `pip install` again with one. API and command work without them.\n"
)


def _is_opened(request: web.Request) -> bool:
    """Return whether a person sees the answer as a page."""
    is_part = "HX-Request" in request.headers or sessions.PAGE_HEADER in request.headers
    return not is_part and "text/html" in request.headers.get("Accept", "")


def _moved(there: str) -> _Endpoint:
    async def moved(request: web.Request) -> web.StreamResponse:
        return web.Response(status=303, headers={"Location": there, **HEADERS})

    return moved


def _done(answer: Done) -> web.Response:
    message = answer.message
    if len(message) > _MAX_MESSAGE:
        message = f"{message[:_MAX_MESSAGE]}…"
    event = json.dumps({"fairlead:done": {"message": message}})  # a header is ASCII
    headers = {"HX-Trigger": event}
    if answer.location is not None:
        # A browser follows a 303 within the script's request, and htmx would never see it.
        headers["HX-Redirect"] = answer.location
    return web.Response(status=204, headers=headers)
