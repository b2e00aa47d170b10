"""Browsers: a form takes a token once, and a cookie of this service stands for it from then on.

Sessions are in memory only; after a restart of the controller the form asks again. Each request is
checked by the token itself, so a session ends with its token.
"""

from __future__ import annotations

import html
import secrets
from collections.abc import Callable

import msgspec
from aiohttp import web

from controller.proxy.cookies import cookie_name, set_cookie, the_cookie
from controller.proxy.errors import TooMany
from controller.proxy.headers import OWN_COOKIES, Client, Target
from controller.proxy.view import Service
from controller.rate_limiter import RateLimiter
from controller.store.base import digest

COOKIE = "fairlead-service"
LOGIN = "/.fairlead/login"
SESSION_SECONDS = 12 * 3600.0
MOST_SESSIONS = 10_000
MOST_FORM = 4096
_TRY_SECONDS, _TRIES = 2.0, 10
NOT_KEPT = {"Cache-Control": "no-store"}
_HEADERS = {
    **NOT_KEPT,
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_HEAD = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{name}</title>
<style>body{{font:16px sans-serif;max-width:30em;margin:15vh auto;padding:0 1em}}
input,button{{font:inherit;padding:.4em;width:100%;margin:.3em 0;box-sizing:border-box}}</style>
<h1>{name}</h1><p>{message}</p>
"""
_PAGE = (
    _HEAD
    + """<form method="post" action="{action}">
<input type="password" name="token" autocomplete="off" autofocus required
 placeholder="token or key"><button>Open</button></form></html>"""
)
_CLOSED = (
    "Browsers cannot open this service here. Programs can, with a token or key. Its operator opens "
    "it for browsers with --service-domain or a gateway; or forward the controller's port to your "
    "own machine and open http://localhost:PORT there."
)


class _Session(msgspec.Struct, frozen=True):
    run_id: str
    token: str
    expires_at: float

    def __repr__(self) -> str:
        return f"_Session(run_id={self.run_id!r})"


class BrowserSessions:
    """The sessions of all services. `now`: seconds that only grow."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._sessions: dict[str, _Session] = {}
        self._tries = RateLimiter(now, every=_TRY_SECONDS, burst=_TRIES)

    def count_try(self, address: str) -> None:
        """Count a use of the form. Raises TooMany."""
        wait = self._tries.wait_of(address)
        if wait:
            raise TooMany("too many tries from this address; try again in some seconds", wait)

    def open(self, service: Service, token: str) -> str:
        """Return the value of a new session's cookie."""
        now = self._now()
        if len(self._sessions) >= MOST_SESSIONS:
            self._sessions = {
                key: one for key, one in self._sessions.items() if one.expires_at > now
            }
        if len(self._sessions) >= MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        value = secrets.token_hex(32)
        self._sessions[digest(value)] = _Session(service.run_id, token, now + SESSION_SECONDS)
        return value

    def authorization(self, service: Service, request: web.Request, client: Client) -> str:
        """Return what the request's cookie stands for, as an `Authorization`; empty: nothing.

        A page of another origin may make a browser send the cookie, that of a sibling host always:
        the two are one site. So what such a page loads or sends is nobody's; only where it leads
        its reader to, in a tab, is the reader's own.
        """
        value = the_cookie(request, cookie_name(COOKIE, client))
        if value is None or not (_is_of_own_page(request, client) or _is_navigation(request)):
            return ""
        session = self._sessions.get(digest(value))
        if session is None or session.run_id != service.run_id or session.expires_at <= self._now():
            return ""
        return f"Bearer {session.token}"


def _is_of_own_page(request: web.Request, client: Client) -> bool:
    """Return whether a page of this origin, or a person, makes the browser send this."""
    origin = request.headers.get("Origin")
    if origin is not None:
        scheme, _, host = origin.partition("://")
        if host not in (request.host, client.host) or (client.scheme == "https") > (
            scheme == "https"
        ):
            return False
    return request.headers.get("Sec-Fetch-Site", "same-origin") in ("same-origin", "none")


def _is_navigation(request: web.Request) -> bool:
    """Return whether the answer becomes the document of a tab; one in a frame does not count."""
    return (
        request.method in ("GET", "HEAD")
        and request.headers.get("Sec-Fetch-Mode") == "navigate"
        and request.headers.get("Sec-Fetch-Dest") == "document"
    )


def is_login(request: web.Request, target: Target) -> bool:
    return request.method == "POST" and target.rest == LOGIN


def wants_page(request: web.Request) -> bool:
    """Return whether a person at a browser waits for this answer."""
    return (
        request.method == "GET"
        and "text/html" in request.headers.get("Accept", "")
        and request.headers.get("Sec-Fetch-Dest", "document") == "document"
    )


def page(target: Target, message: str) -> web.Response:
    """Return the form, instead of a 401."""
    text = _PAGE.format(
        name=html.escape(target.service),
        message=html.escape(message),
        action=html.escape(target.prefix + LOGIN),
    )
    return web.Response(status=401, text=text, content_type="text/html", headers=_HEADERS)


def closed_page(target: Target) -> web.Response:
    """Return the page that says why a browser cannot use a service below `/services/`."""
    text = (_HEAD + "</html>").format(name=html.escape(target.service), message=_CLOSED)
    return web.Response(status=401, text=text, content_type="text/html", headers=_HEADERS)


def opened(client: Client, value: str) -> web.Response:
    """Return the answer that sets the cookie and leads to the service."""
    answer = web.Response(status=303, headers={"Location": "/", "Cache-Control": "no-store"})
    set_cookie(answer, COOKIE, value, client, path="/", seconds=SESSION_SECONDS, same_site="Lax")
    return answer


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
