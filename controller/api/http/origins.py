"""Pages of other origins: which may use the API from a browser.

The API has no cookies, so a page can do nothing without a token that its user gave it. A page of an
origin that is not allowed does not read answers, and its WebSockets are refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

from common.refusals import Forbidden

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_REMEMBER_SECONDS = "600"
_ALLOWED = web.RequestKey("allowed_origin", str)
"""Where a request keeps the allowed origin that it came from; a service's has none."""


class Origins:
    """The origins whose pages may use the API: its own, and those that the operator allows."""

    def __init__(self, allowed: Collection[str] = ()) -> None:
        self._allowed = frozenset(allowed)

    @property
    def middleware(self) -> Middleware:
        """Answers preflights, and refuses WebSockets of other origins."""

        @web.middleware
        async def middleware(request: web.Request, handler: _Handler) -> web.StreamResponse:
            origin = request.headers.get("Origin")
            if origin is None or _is_own(request, origin):
                return await handler(request)
            if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
                return _preflight(origin if origin in self._allowed else None)
            # A browser asks no permission before it opens a WebSocket, and lets the page read what
            # comes: the origin is for the server to check (RFC 6455, 10.2).
            if origin not in self._allowed and _is_websocket(request):
                raise Forbidden(
                    f"pages of {_shown(origin)} may not open WebSockets here; the controller's "
                    f"--allowed-origin allows them",
                    code="origin_not_allowed",
                )
            if origin in self._allowed:
                request[_ALLOWED] = origin
            return await handler(request)

        return middleware


async def mark(request: web.Request, response: web.StreamResponse) -> None:
    """Let a page of an allowed origin read the answer; for `on_response_prepare`."""
    origin = request.get(_ALLOWED)
    if origin is not None:
        response.headers["Access-Control-Allow-Origin"] = origin
        # A cache must not give the answer to a page of another origin.
        response.headers.add("Vary", "Origin")


def host_of(origin: str) -> str:
    """Return `HOST[:PORT]` of an origin in small letters, "" for what is none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        # urlsplit raises it for brackets without an IPv6 address between them.
        return ""


def _is_own(request: web.Request, origin: str) -> bool:
    return host_of(origin) == request.host.lower()


def _is_websocket(request: web.Request) -> bool:
    return request.headers.get("Upgrade", "").lower() == "websocket"


def _preflight(allowed: str | None) -> web.Response:
    """Answer a page that asks whether it may send a request; None: it may not."""
    # A browser that finds no such headers refuses the request by itself.
    if allowed is None:
        return web.Response(status=204)
    return web.Response(
        status=204,
        headers={
            "Access-Control-Allow-Origin": allowed,
            "Access-Control-Allow-Methods": "GET, HEAD, POST, PUT, PATCH, DELETE",
            "Access-Control-Allow-Headers": "Authorization, Content-Type",
            "Access-Control-Max-Age": _REMEMBER_SECONDS,
            "Vary": "Origin",
        },
    )


def _shown(origin: str) -> str:
    return "".join(char for char in origin if char.isprintable())[:100]
