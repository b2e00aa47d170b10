"""Browsers: a form takes a token once, and a cookie of this service stands for it from then on.

Sessions are in memory only; after a restart of the controller the form asks again. Each request is
checked by the token itself, so a session ends with its token.
"""

from __future__ import annotations

import html
import secrets
from collections.abc import Callable
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from controller.proxy.errors import TooMany
from controller.proxy.headers import Client, Target
from controller.proxy.view import Service
from controller.rate_limiter import RateLimiter
from controller.store.base import digest

COOKIE = "fairlead-service"
LOGIN = "/.fairlead/login"
SESSION_SECONDS = 12 * 3600.0
MOST_SESSIONS = 10_000
MOST_FORM = 4096
_TRY_SECONDS, _TRIES = 2.0, 10
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'"
    ),
}
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{name}</title>
<style>body{{font:16px sans-serif;max-width:30em;margin:15vh auto;padding:0 1em}}
input,button{{font:inherit;padding:.4em;width:100%;margin:.3em 0;box-sizing:border-box}}</style>
<h1>{name}</h1><p>{message}</p>
<form method="post" action="{action}">
<input type="password" name="token" autocomplete="off" autofocus required
 placeholder="token or key"><button>Open</button></form></html>"""


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

        A page of another site may make a browser send the cookie; its `Origin` tells.
        """
        value = request.cookies.get(COOKIE)
        origin = request.headers.get("Origin")
        hosts = (request.host, client.host)
        if value is None or (origin is not None and urlsplit(origin).netloc not in hosts):
            return ""
        session = self._sessions.get(digest(value))
        if session is None or session.run_id != service.run_id or session.expires_at <= self._now():
            return ""
        return f"Bearer {session.token}"


def is_login(request: web.Request, target: Target) -> bool:
    return request.method == "POST" and target.rest == LOGIN


def wants_page(request: web.Request) -> bool:
    """Return whether a person at a browser waits for this answer."""
    return request.method == "GET" and "text/html" in request.headers.get("Accept", "")


def page(target: Target, message: str) -> web.Response:
    """Return the form, instead of a 401."""
    text = _PAGE.format(
        name=html.escape(target.service),
        message=html.escape(message),
        action=html.escape(target.prefix + LOGIN),
    )
    return web.Response(status=401, text=text, content_type="text/html", headers=_HEADERS)


def opened(target: Target, value: str, *, is_secure: bool) -> web.Response:
    """Return the answer that sets the cookie and leads to the service."""
    there = f"{target.prefix}/"
    answer = web.Response(status=303, headers={"Location": there, "Cache-Control": "no-store"})
    answer.set_cookie(
        COOKIE,
        value,
        path=there,
        max_age=int(SESSION_SECONDS),
        httponly=True,
        samesite="Lax",
        secure=is_secure,
    )
    return answer


def without_cookie(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the headers without our cookie, which is not for replicas."""
    kept = []
    for name, value in pairs:
        if name.lower() == "cookie" and COOKIE in value:
            cookies = [one for one in value.split(";") if one.split("=")[0].strip() != COOKIE]
            value = ";".join(cookies).strip()
            if not value:
                continue
        kept.append((name, value))
    return kept
