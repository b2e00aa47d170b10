"""Sessions of browsers with services: a cookie stands for a key, or for a login at the dashboard.

Sessions are in memory, unless whoever answers has another book of them; after a restart the browser
then logs in again. Each request is checked by what the session stands for, so it ends with that.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Protocol

import msgspec
from aiohttp import web

from common.proxy.browsers.cookies import cookie_name, the_cookie
from common.proxy.errors import TooMany
from common.proxy.headers import OWN_COOKIES, Client, is_loopback_host
from common.proxy.view import Service
from common.rate_limiter import RateLimiter
from common.tokens import digest

COOKIE = "fairlead-service"
SESSION_SECONDS = 12 * 3600.0
MAX_SESSIONS = 10_000
_TRY_SECONDS, _TRIES = 2.0, 10


class _Session(msgspec.Struct, frozen=True):
    run_id: str
    secret: str
    expires_at: float

    def __repr__(self) -> str:
        return f"_Session(run_id={self.run_id!r})"


class SessionBook(Protocol):
    """Where sessions are kept."""

    def open(self, service: Service, secret: str, credential: object) -> str:
        """Return the value of a new session's cookie. `secret`: a key of the service, or a
        `browser_secret`; `credential`: what that was admitted by."""

    def secret_of(self, service: Service, value: str) -> str | None:
        """Return the secret by which a session of this service admits; None: this is none."""


class KeptSessions:
    """A book in memory. `now`: seconds that only grow."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._sessions: dict[str, _Session] = {}

    def open(self, service: Service, secret: str, credential: object) -> str:
        now = self._now()
        if len(self._sessions) >= MAX_SESSIONS:
            self._sessions = {
                key: one for key, one in self._sessions.items() if one.expires_at > now
            }
        # All are live. The oldest one logs in again: a flood of logins must not fill the memory.
        if len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        value = secrets.token_hex(32)
        self._sessions[digest(value)] = _Session(service.run_id, secret, now + SESSION_SECONDS)
        return value

    def secret_of(self, service: Service, value: str) -> str | None:
        session = self._sessions.get(digest(value))
        if session is None or session.run_id != service.run_id or session.expires_at <= self._now():
            return None
        return session.secret


class BrowserSessions:
    """The sessions of all services. `now`: seconds that only grow. `book`: None: in memory."""

    def __init__(self, now: Callable[[], float], book: SessionBook | None = None) -> None:
        self._book = book or KeptSessions(now)
        self._tries = RateLimiter(now, every=_TRY_SECONDS, burst=_TRIES)

    def count_try(self, address: str) -> None:
        """Count a try to log in. Raises TooMany."""
        wait = self._tries.wait_of(address)
        if wait:
            raise TooMany("too many tries from this address; try again in some seconds", wait)

    def open(self, service: Service, secret: str, credential: object) -> str:
        """Return the value of a new session's cookie; see `SessionBook`."""
        return self._book.open(service, secret, credential)

    def authorization(self, service: Service, request: web.Request, client: Client) -> str:
        """Return what the request's cookie stands for, as an `Authorization`; empty: nothing.

        A page of another origin may make a browser send the cookie, that of a sibling host always:
        the two are one site. So what such a page loads or sends is nobody's; only where it leads
        its reader to, in a tab, is the reader's own.
        """
        value = the_cookie(request, cookie_name(COOKIE, client))
        if value is None or not (is_of_own_page(request, client) or _is_navigation(request)):
            return ""
        secret = self._book.secret_of(service, value)
        return "" if secret is None else f"Bearer {secret}"


def is_of_own_page(request: web.Request, client: Client) -> bool:
    """Return whether a page of this origin, or a person, makes the browser send this.

    Browsers tell it by `Sec-Fetch-Site`, but not over a plain connection to another machine, and by
    the `Origin` of WebSockets and of all that is not GET. A browser that tells neither is older
    than 2023; its cookie does not count.
    """
    origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site")
    if origin is not None:
        scheme, _, host = origin.partition("://")
        # A page over plain HTTP may be an attacker's on the way, so it must not act over TLS. The
        # other way round is a reverse proxy that ends TLS and says nothing of it.
        if host not in (request.host, client.host) or (client.scheme == "https") > (
            scheme == "https"
        ):
            return False
    elif site is None:
        return client.scheme == "http" and not is_loopback_host(client.host)
    return site in ("same-origin", "none", None)


def _is_navigation(request: web.Request) -> bool:
    """Return whether the answer becomes the document of a tab; one in a frame does not count."""
    return (
        request.method in ("GET", "HEAD")
        and request.headers.get("Sec-Fetch-Mode") == "navigate"
        and request.headers.get("Sec-Fetch-Dest") == "document"
    )


def wants_page(request: web.Request) -> bool:
    """Return whether a person at a browser waits for this answer."""
    return (
        request.method == "GET"
        and "text/html" in request.headers.get("Accept", "")
        and request.headers.get("Sec-Fetch-Dest", "document") == "document"
    )


def without_own_cookies(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the headers without our cookies, which are not for replicas."""
    kept = []
    for name, value in pairs:
        if name.lower() == "cookie":
            cookies = [
                one for one in value.split(";") if not one.strip().lower().startswith(OWN_COOKIES)
            ]
            value = ";".join(cookies).strip()
            if not value:
                continue
        kept.append((name, value))
    return kept
