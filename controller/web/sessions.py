"""Browsers that logged in: a signed cookie stands for a token, until it expires or the token ends.

The cookie holds the token's id, never the token. It is signed and not stored, so an open page stays
logged in when the controller restarts. Each request is checked against the present tokens.

A service's pages (`/services/NAME/`) may come from the same origin. So the cookie alone opens only
documents that a user navigates to. All else that a page asks for carries the document's own token,
which no address ever holds.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable

from aiohttp import web

from common.proxy.browsers.cookies import cookie_name, cookies, the_cookie
from common.proxy.browsers.login import OPEN
from common.proxy.headers import Client
from common.refusals import Forbidden, Unauthenticated
from controller.api.http.origins import host_of
from controller.clock import Clock
from controller.service.accounts.users import Credential, Gate
from controller.store.accounts import EndedLogin, StoredToken

COOKIE = "fairlead-dashboard"
PATH = "/dashboard"
SESSION_SECONDS = 7 * 86400.0
ASKED_COOKIE = "fairlead-asked"
ASKED_SECONDS = 86400.0
PAGE_HEADER = "X-Fairlead-Page"
PAGE_PROTOCOL = "fairlead.page."
"""A WebSocket offers it as a subprotocol, with the page's token behind it."""
_SAFE = frozenset({"GET", "HEAD"})
_AGAIN = "again"


class Sessions:
    """`key`: secret, and the same after a restart. `client`: tells how a request came."""

    def __init__(
        self, key: bytes, gate: Gate, clock: Clock, client: Callable[[web.Request], Client]
    ) -> None:
        self._client = client
        self._key = key
        self._gate = gate
        self._clock = clock

    def open(self, token: StoredToken) -> str:
        """Return the cookie of a new session."""
        ends_at = self._clock.now() + SESSION_SECONDS
        signed = f"{token.id}.{int(ends_at):x}.{secrets.token_hex(8)}"
        return f"{signed}.{self._signature('session', signed)}"

    def cookie_of(self, request: web.Request) -> str:
        """Return the request's session cookie, which is not yet checked. Raises Unauthenticated."""
        found = cookies(request, cookie_name(COOKIE, self._client(request)))
        # A page at a subdomain can plant a cookie of this name, and no request tells them apart.
        if len(found) > 1:
            raise Unauthenticated(
                "the browser sent two logins, and one of them was planted by another page: delete "
                "this site's cookies, then log in",
                code="two_logins",
            )
        if not found:
            raise Unauthenticated("log in first")
        return found[0]

    def credential_of(self, cookie: str) -> Credential:
        """Return what the session stands for. Raises Unauthenticated."""
        token_id, login = self.opened(cookie)
        held = Credential(token=self._gate.token_by_id(token_id), login=login)
        self._gate.require_login(held)
        return held

    def opened(self, cookie: str) -> tuple[str, str]:
        """Return the token's id and the login, as they were signed. Raises Unauthenticated."""
        signed, _, signature = cookie.rpartition(".")
        if not signed or not _equal(signature, self._signature("session", signed)):
            raise Unauthenticated("log in first")
        token_id, ends_at, login = signed.split(".")
        if int(ends_at, 16) <= self._clock.now():
            raise Unauthenticated("the login has expired; log in again")
        return token_id, login

    def login_of(self, cookie: str) -> EndedLogin:
        """Return the login of a cookie that `credential_of` accepted, as what ends it."""
        _, ends_at, login, _ = cookie.split(".")
        return EndedLogin(id=login, until=float(int(ends_at, 16)))

    def asked(self, request: web.Request) -> str:
        """Return what stands for this browser while it logs in: its value, or a new one."""
        known = the_cookie(request, cookie_name(ASKED_COOKIE, self._client(request)))
        return known or secrets.token_hex(16)

    def form_token(self, asked: str) -> str:
        """Return what a form that this browser asked for sends along."""
        return self._signature("form", asked)

    def require_asked(self, request: web.Request, given: object) -> None:
        """Refuse a login that this browser did not ask for. Raises Forbidden."""
        require_own_origin(request)
        known = the_cookie(request, cookie_name(ASKED_COOKIE, self._client(request)))
        if known is None or not _equal(str(given), self.form_token(known)):
            raise Forbidden(
                "this browser did not ask for this form, or it keeps no cookies: try again",
                code="not_asked",
            )

    def page_token(self, cookie: str) -> str:
        """Return the token of a new document, for the requests of its scripts."""
        nonce = secrets.token_hex(8)
        return f"{nonce}.{self._signature('page', f'{nonce}:{cookie}')}"

    def require_page(self, request: web.Request, cookie: str) -> None:
        """Refuse a request that no page of the dashboard made. Raises Forbidden."""
        offered = request.headers.get("Sec-WebSocket-Protocol", "").split(",")
        named = (one.strip() for one in offered)
        given = request.headers.get(PAGE_HEADER) or next(
            (one[len(PAGE_PROTOCOL) :] for one in named if one.startswith(PAGE_PROTOCOL)), ""
        )
        nonce, _, signature = given.partition(".")
        if not _equal(signature, self._signature("page", f"{nonce}:{cookie}")):
            raise Forbidden(
                "this request does not come from a page of the dashboard: reload the page",
                code="not_from_page",
            )
        # A WebSocket begins with a GET, and browsers ask no permission for it (RFC 6455, 10.2).
        if request.method not in _SAFE or request.headers.get("Upgrade"):
            require_own_origin(request)

    def _signature(self, purpose: str, signed: str) -> str:
        # With the purpose: a signature of a page must never pass as that of a session.
        return hmac.new(
            self._key, f"{purpose}:{signed}".encode(errors="surrogateescape"), hashlib.sha256
        ).hexdigest()


def require_own_origin(request: web.Request) -> None:
    """Refuse what another site made the browser send. Raises Forbidden."""
    origin = request.headers.get("Origin")
    # Programs and old browsers send no Sec-Fetch-Site; an Origin is checked in any case.
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none") or (
        origin is not None and host_of(origin) not in _hosts(request)
    ):
        raise Forbidden("another site sent this request", code="cross_site")


def require_navigation(request: web.Request) -> None:
    """Refuse to give a whole document to a script. Raises Forbidden."""
    # A service's script on this origin could else read a page's token out of the document.
    if request.headers.get("Sec-Fetch-Dest", "document") != "document":
        raise Forbidden("this page is for people: open it in a tab of a browser", code="not_opened")


def came_from_elsewhere(request: web.Request) -> bool:
    """Return whether a link on another site may have led here: then the browser holds the cookie
    back, and sends it when the page itself asks again.

    A service's host leads to the page that gives codes. Firefox holds the cookie back there even
    where a person typed the address that led to the service, and then says `none`.
    """
    if _AGAIN in request.query:
        return False
    if request.headers.get("Sec-Fetch-Site") == "cross-site":
        return True
    return request.path.startswith(OPEN) and "state" in request.query


def once_more(request: web.Request) -> str:
    """Return the address for a page that asks again, and only once."""
    return f"{request.path_qs}{'&' if request.query_string else '?'}{_AGAIN}=1"


def _hosts(request: web.Request) -> tuple[str, ...]:
    hosts = (request.host, request.headers.get("X-Forwarded-Host", request.host))
    return tuple(host.lower() for host in hosts)


def _equal(given: str, wanted: str) -> bool:
    # As bytes: compare_digest takes no str beyond ASCII, and anyone may send one.
    return hmac.compare_digest(given.encode(errors="surrogateescape"), wanted.encode())
