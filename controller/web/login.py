"""How a browser comes in: with a token on the login page, or with a one-time link; and goes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import unquote

from aiohttp import web

from common.proxy.browsers.cookies import set_cookie
from common.proxy.errors import TooMany
from common.proxy.headers import Client
from common.rate_limiter import RateLimiter
from common.refusals import Forbidden, Unauthenticated
from controller.service import AccountServices
from controller.store.accounts import StoredToken
from controller.web.page import Renderer, Visit, theme_of
from controller.web.sessions import (
    ASKED_COOKIE,
    ASKED_SECONDS,
    COOKIE,
    PATH,
    SESSION_SECONDS,
    Sessions,
)

LOGIN_PATH = PATH + "/login"
FIRST_PATH = PATH + "/runs"
"""The page to which a login leads that names no other."""
_TRY_SECONDS, _TRIES = 2.0, 10


class Login:
    """`client`: tells how a request came. `now`: seconds that only grow."""

    def __init__(
        self,
        accounts: AccountServices,
        sessions: Sessions,
        renderer: Renderer,
        client: Callable[[web.Request], Client],
        now: Callable[[], float],
    ) -> None:
        self._accounts = accounts
        self._sessions = sessions
        self._renderer = renderer
        self._client = client
        self._tries = RateLimiter(now, every=_TRY_SECONDS, burst=_TRIES)

    async def ask(self, request: web.Request) -> web.StreamResponse:
        """Ask for a token."""
        return self._form(request, "", 200)

    async def with_token(self, request: web.Request) -> web.StreamResponse:
        """Log in with a token."""
        # Before the token is read: who guesses tokens gets no more than some tries.
        self._count_try(request)
        form = await request.post()
        given = form.get("token", "")
        try:
            self._sessions.require_asked(request, form.get("asked", ""))
            token = self._accounts.gate.token_of(given.strip() if isinstance(given, str) else "")
        except (Forbidden, Unauthenticated) as error:
            return self._form(request, error.message, error.status)
        return self._entered(request, token, _inside(request.query.get("next", "")))

    async def ask_for_link(self, request: web.Request) -> web.StreamResponse:
        """Ask whether to log in with a one-time link. Its code is behind the `#` of the address,
        which browsers send to nobody."""
        try:
            cookie = self._sessions.cookie_of(request)
            known = self._sessions.credential_of(cookie).token.user
        except Unauthenticated:
            known = ""
        return self._asking_page(request, "enter.html", {"known": known}, 200)

    async def who(self, request: web.Request) -> web.StreamResponse:
        """Tell the page of a one-time link whom it logs in, without using it up."""
        self._count_try(request)
        form = await request.post()
        self._sessions.require_asked(request, form.get("asked", ""))
        token = self._accounts.login_links.look_up(str(form.get("code", "")))
        role = self._accounts.gate.users[token.user].role
        return web.json_response({"user": token.user, "role": role.value})

    async def with_link(self, request: web.Request) -> web.StreamResponse:
        """Log in with a one-time link."""
        self._count_try(request)
        form = await request.post()
        try:
            self._sessions.require_asked(request, form.get("asked", ""))
            token = self._accounts.login_links.take(str(form.get("code", "")))
        except (Forbidden, Unauthenticated) as error:
            return self._form(request, error.message, error.status)
        return self._entered(request, token, FIRST_PATH)

    async def end(self, visit: Visit) -> web.StreamResponse:
        """End the login of this browser."""
        request = visit.request
        ended = self._sessions.login_of(self._sessions.cookie_of(request))
        await self._accounts.users.end_login(visit.user.name, ended)
        answer = web.Response(status=204, headers={"HX-Redirect": LOGIN_PATH})
        client = self._client(request)
        set_cookie(answer, COOKIE, "", client, path=PATH, seconds=0, same_site="Strict")
        return answer

    def _form(self, request: web.Request, message: str, status: int) -> web.Response:
        there = _inside(request.query.get("next", ""))
        return self._asking_page(request, "login.html", {"message": message, "next": there}, status)

    def _asking_page(
        self, request: web.Request, template: str, context: Mapping[str, object], status: int
    ) -> web.Response:
        """Return a page with a form that this browser alone can send."""
        asked = self._sessions.asked(request)
        shown = {**context, "theme": theme_of(request), "asked": self._sessions.form_token(asked)}
        answer = self._renderer.plain(template, shown, status)
        set_cookie(
            answer,
            ASKED_COOKIE,
            asked,
            self._client(request),
            path=PATH,
            seconds=ASKED_SECONDS,
            same_site="Strict",
        )
        return answer

    def _count_try(self, request: web.Request) -> None:
        wait = self._tries.wait_of(self._client(request).address)
        if wait:
            raise TooMany("too many tries from this address; try again in some seconds", wait)

    def _entered(self, request: web.Request, token: StoredToken, there: str) -> web.Response:
        answer = web.Response(status=303, headers={"Location": there})
        set_cookie(
            answer,
            COOKIE,
            self._sessions.open(token),
            self._client(request),
            path=PATH,
            seconds=SESSION_SECONDS,
            # No other site makes a browser send it (CSRF); `came_from_elsewhere` pays for that.
            same_site="Strict",
        )
        return answer


def _inside(there: str) -> str:
    """Return the address if it is one of the dashboard's, else its first page."""
    is_ours = there.startswith(PATH + "/") and not there.startswith(LOGIN_PATH)
    # Browsers read \ as / and resolve `..`, also an encoded one: a service's page would open.
    leads_out = "\\" in there or ".." in unquote(there.partition("?")[0])
    return there if is_ours and there.isprintable() and not leads_out else FIRST_PATH
