"""Browsers that logged in: a signed cookie stands for a token, until it expires or the token ends.

The cookie holds the token's id, never the token. It is signed and not stored, so an open page stays
logged in when the controller restarts. Each request is checked against the present tokens.

A service's pages (`/services/NAME/`) may come from the same origin. So the cookie alone opens only
documents that a user navigates to. All else that a page asks for carries the page's own token,
which only such a document has.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from aiohttp import web

from controller.api.origins import host_of
from controller.clock import Clock
from controller.service.errors import Forbidden, Unauthenticated
from controller.service.users import Gate
from controller.store.base import EndedLogin, StoredToken

COOKIE = "fairlead-dashboard"
PATH = "/dashboard"
SESSION_SECONDS = 7 * 86400.0
PAGE_HEADER = "X-Fairlead-Page"
PAGE_QUERY = "page"
"""An EventSource cannot send a header."""
PAGE_PROTOCOL = "fairlead.page."
"""A WebSocket offers it as a subprotocol, with the page's token behind it."""
_SAFE = frozenset({"GET", "HEAD"})


class Sessions:
    """`key`: secret, and the same after a restart."""

    def __init__(self, key: bytes, gate: Gate, clock: Clock) -> None:
        self._key = key
        self._gate = gate
        self._clock = clock

    def open(self, token: StoredToken) -> str:
        """Return the cookie of a new session."""
        ends_at = self._clock.now() + SESSION_SECONDS
        said = f"{token.id}.{int(ends_at):x}.{secrets.token_hex(8)}"
        return f"{said}.{self._signature('session', said)}"

    def token_of(self, cookie: str | None) -> StoredToken:
        """Return the token of the session. Raises Unauthenticated."""
        said, _, signature = (cookie or "").rpartition(".")
        if not said or not _equal(signature, self._signature("session", said)):
            raise Unauthenticated("log in first")
        token_id, ends_at, login = said.split(".")
        if int(ends_at, 16) <= self._clock.now():
            raise Unauthenticated("the login has expired; log in again")
        token = self._gate.token_by_id(token_id)
        if any(ended.id == login for ended in self._gate.users[token.user].ended_logins):
            raise Unauthenticated("you logged out; log in again")
        return token

    def login_of(self, cookie: str) -> EndedLogin:
        """Return the login of a cookie that `token_of` accepted, as what ends it."""
        _, ends_at, login, _ = cookie.split(".")
        return EndedLogin(id=login, until=float(int(ends_at, 16)))

    def page_token(self, cookie: str) -> str:
        return self._signature("page", cookie)

    def require_page(self, request: web.Request) -> None:
        """Refuse a request that no page of the dashboard made. Raises Forbidden."""
        offered = request.headers.get("Sec-WebSocket-Protocol", "").split(",")
        named = (one.strip() for one in offered)
        given = (
            request.headers.get(PAGE_HEADER)
            or next(
                (one[len(PAGE_PROTOCOL) :] for one in named if one.startswith(PAGE_PROTOCOL)), ""
            )
            or request.query.get(PAGE_QUERY, "")
        )
        if not _equal(given, self.page_token(request.cookies.get(COOKIE, ""))):
            raise Forbidden(
                "this request does not come from a page of the dashboard: reload the page",
                code="not_from_page",
            )
        if request.method not in _SAFE or request.headers.get("Upgrade"):
            require_own_origin(request)

    def _signature(self, purpose: str, said: str) -> str:
        return hmac.new(self._key, f"{purpose}:{said}".encode(), hashlib.sha256).hexdigest()


def require_own_origin(request: web.Request) -> None:
    """Refuse what another site made the browser send. Raises Forbidden."""
    origin = request.headers.get("Origin")
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none") or (
        origin is not None and host_of(origin) not in _hosts(request)
    ):
        raise Forbidden("another site sent this request", code="cross_site")


def require_navigation(request: web.Request) -> None:
    """Refuse to give a whole document to a script. Raises Forbidden."""
    if request.headers.get("Sec-Fetch-Dest", "document") != "document":
        raise Forbidden("this page is for people: open it in a tab of a browser", code="not_opened")


def came_from_elsewhere(request: web.Request) -> bool:
    """Return whether a link on another site led here: then the browser holds the cookie back, and
    sends it when the page itself asks again."""
    return request.headers.get("Sec-Fetch-Site") == "cross-site"


def _hosts(request: web.Request) -> tuple[str, ...]:
    hosts = (request.host, request.headers.get("X-Forwarded-Host", request.host))
    return tuple(host.lower() for host in hosts)


def _equal(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="surrogateescape"), wanted.encode())
