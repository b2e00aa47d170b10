"""Routes requests to their handlers, and keeps the connections until the server ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from fairlead.wire.errors import Refused
from runner.http.connection import Connection
from runner.http.messages import Answer, BrokenBody, Handler, Request, Response, as_refusal

BROKEN_BODY = "the body does not match its Content-Length or Transfer-Encoding"
_log = logging.getLogger(__name__)

Routes = Mapping[str, Mapping[str, Handler]]
"""The handlers by path and method."""


class Server:
    """The requests of all connections. Refusals and failures get the one shape of errors.

    `known` maps exceptions of handlers to refusals. Any other exception is logged with its
    traceback and answered with `failed`.
    """

    def __init__(
        self, routes: Routes, *, failed: str, known: Mapping[type[Exception], Refused]
    ) -> None:
        self.routes = routes
        self._failed = failed
        self._known = known
        self._connections: set[Connection] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    def make_protocol(self) -> asyncio.Protocol:
        return Connection(self)

    async def answer(self, request: Request) -> Answer:
        try:
            return await self._handler(request)(request)
        except Refused as refused:
            return as_refusal(refused)
        except BrokenBody:
            return as_refusal(Refused(400, "invalid", BROKEN_BODY, "body"))
        except Exception as error:
            return as_refusal(self._refusal_of(error, request))

    async def close(self, seconds: float) -> None:
        """End all connections. What was asked has so many seconds to be answered and read."""
        for connection in tuple(self._connections):
            connection.shut_down()
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        # A client that reads nothing must not hold up the end of the container.
        except TimeoutError:
            for connection in tuple(self._connections):
                connection.abort()
            await self._empty.wait()

    # -- what a connection tells ---------------------------------------------------------------

    def came(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._empty.clear()

    def left(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    def _handler(self, request: Request) -> Handler:
        methods = self.routes.get(request.path)
        if methods is None:
            raise Refused(404, "not_found", f"{request.method} {request.path}: Not Found")
        handler = methods.get(request.method)
        return _not_allowed(methods) if handler is None else handler

    def _refusal_of(self, error: Exception, request: Request) -> Refused:
        if (refusal := self._known.get(type(error))) is not None:
            return refusal
        _log.error("%s %s failed", request.method, request.path, exc_info=error)
        return Refused(500, "internal", self._failed)


def _not_allowed(methods: Mapping[str, Handler]) -> Handler:
    async def answer(request: Request) -> Response:
        message = f"{request.method} {request.path}: Method Not Allowed"
        refusal = as_refusal(Refused(405, "method_not_allowed", message))
        allow = {"Allow": ",".join(sorted(methods))}
        return Response(body=refusal.body, status=refusal.status, headers=allow)

    return answer
