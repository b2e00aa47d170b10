"""A controller that is stopped ends the connections of its clients, and resets none.

Load balancers learn it from the route of its health. From then on each answer says that its
connection ends with it, and what has come by then is answered before connections are closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import math

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from controller.api.http.errors import stopping

_UNANSWERED: web.RequestKey[object] = web.RequestKey("unanswered", object)


class Leaving:
    """The end of one application's connections. `has_begun`: its controller is being stopped."""

    def __init__(self) -> None:
        self.has_begun = False
        self._unanswered: set[object] = set()
        self._last_at = -math.inf
        """When a request came last, by the loop's clock."""
        self._changed = asyncio.Event()

    def begin(self) -> None:
        """End each connection with its next answer. May be called twice."""
        self.has_begun = True

    def refused(self) -> web.Response | None:
        """Return the answer of the health while it is being stopped."""
        return stopping() if self.has_begun else None

    @property
    def middleware(self) -> Middleware:
        """Count what is not answered yet. It comes before all others."""

        @web.middleware
        async def counted(request: web.Request, handler: Handler) -> web.StreamResponse:
            mark = request[_UNANSWERED] = object()
            self._unanswered.add(mark)
            self._last_at = asyncio.get_running_loop().time()
            try:
                return await handler(request)
            finally:
                self._answered(mark)

        return counted

    async def note_answer(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """For `on_response_prepare`. An answer that says how long it is ends soon; a stream or a
        WebSocket may go on for days."""
        if response.content_length is None:
            self._answered(request.get(_UNANSWERED))
        if self.has_begun and response.status != 101:
            response.force_close()
            # aiohttp has set its own headers by now.
            response.headers["Connection"] = "close"

    def _answered(self, mark: object) -> None:
        if mark in self._unanswered:
            self._unanswered.discard(mark)
            self._changed.set()

    async def until_answered(self, seconds: float, quiet: float) -> None:
        """Return when each request that came has its answer, or a stream, and none has come for
        `quiet` seconds: one may be on its way on a connection that is open. Return after `seconds`
        in any case."""
        now = asyncio.get_running_loop().time
        began = now()
        while (left := began + seconds - now()) > 0:
            self._changed.clear()
            quiet_in = max(began, self._last_at) + quiet - now()
            if not self._unanswered and quiet_in <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left if self._unanswered else min(left, quiet_in)):
                    await self._changed.wait()


LEAVING: web.AppKey[Leaving] = web.AppKey("leaving", Leaving)
