"""Requests and answers as values, and the body of a request as it comes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import msgspec

from fairlead.wire.errors import Refused
from runner.http.websocket import WebSocket

JSON = "application/json"
BODY_BYTES = 1 << 20
"""A peer waits while so much of its request's body was not read."""


class BrokenBody(Exception):
    """The rest of the body does not come as the head of its request announced."""


class Body:
    """A request's body. `on_change` is called when reading may go on, or has to pause."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._on_change = on_change
        self._changed: asyncio.Future[None] | None = None
        self._broken = False
        self._dropped = False
        self.is_complete = False

    @property
    def is_full(self) -> bool:
        return self._size >= BODY_BYTES

    # -- what the connection tells -------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        if self._dropped:
            return
        self._pieces.append(data)
        self._size += len(data)
        self._wake()

    def end(self) -> None:
        self.is_complete = True
        self._wake()

    def fail(self) -> None:
        self._broken = True
        self._wake()

    # -- what a handler reads ------------------------------------------------------------------

    async def read(self, most: int) -> bytes:
        """Return the whole body. Raises Refused (413) above `most` bytes, and BrokenBody."""
        found = bytearray()
        async for piece in self.pieces(1):
            found += piece
            if len(found) > most:
                raise Refused(413, "too_large", f"a request is limited to {most} bytes")
        return bytes(found)

    async def pieces(self, size: int) -> AsyncIterator[bytes]:
        """Yield pieces of at least `size` bytes, except the last. Raises BrokenBody."""
        while True:
            if self._broken:
                raise BrokenBody
            if self._pieces and (self._size >= size or self.is_complete or self.is_full):
                yield self._take()
            elif self.is_complete:
                return
            else:
                await self._wait()

    async def drop(self) -> None:
        """Throw away what comes, and return at the end of the body. Raises BrokenBody."""
        self._dropped = True
        self._take()
        while not self.is_complete:
            if self._broken:
                raise BrokenBody
            await self._wait()

    def _take(self) -> bytes:
        taken = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        self._on_change()
        return taken

    async def _wait(self) -> None:
        self._changed = asyncio.get_running_loop().create_future()
        await self._changed

    def _wake(self) -> None:
        # Woken before in this turn of the loop, or cancelled with the task that waited.
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)


class Request(msgspec.Struct, kw_only=True):
    """A request whose head has come. The names of `headers` are in lower case, and the values of
    one that came several times are joined by commas. `query` has the last value of each name."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Body
    keeps_alive: bool
    is_http_1_0: bool = False


class Response(msgspec.Struct, frozen=True, kw_only=True):
    body: bytes
    status: int = 200
    content_type: str = JSON
    headers: Mapping[str, str] = {}


class Streamed(msgspec.Struct, frozen=True, kw_only=True):
    """An answer whose length is not known before its end."""

    pieces: AsyncIterator[bytes]
    content_type: str


class Upgrade(msgspec.Struct, frozen=True, kw_only=True):
    """The connection becomes a WebSocket, which `serve` uses until it returns. `accept`: the
    answer to the client's key."""

    accept: str
    serve: Callable[[WebSocket], Awaitable[None]]


Answer = Response | Streamed | Upgrade
Handler = Callable[[Request], Awaitable[Answer]]


def as_json(value: object) -> Response:
    return Response(body=msgspec.json.encode(value))


def as_refusal(refused: Refused) -> Response:
    return Response(body=refused.body(), status=refused.status)
