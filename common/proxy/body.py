"""The body of a request: a small one is kept and can be sent twice, a large one is streamed."""

from __future__ import annotations

from aiohttp import web

from common.proxy.errors import TooLarge
from common.proxy.upstream import ReplicaConnection

KEPT_BYTES = 64 << 10
PIECE_BYTES = 64 << 10
_READ: web.RequestKey[bytes] = web.RequestKey("read", bytes)
"""The whole body, once it was read: who passes the request on elsewhere reads it again."""


class Body:
    """`data`: the whole body; None: it is streamed."""

    def __init__(self, request: web.Request, most: int, data: bytes | None) -> None:
        self._request = request
        self._most = most
        self.data = data
        self._length = len(data) if data is not None else request.content_length
        self._is_begun = False

    @property
    def can_be_sent(self) -> bool:
        """Whether no part of it was sent yet, or all of it is still here."""
        return self.data is not None or not self._is_begun

    @property
    def size(self) -> int | None:
        """Its bytes; None: nobody knows before its end."""
        return self._length

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        if self.data is None and self._length is None:
            return (("Transfer-Encoding", "chunked"),)
        # A length of 0 says that such a request has no body (RFC 9110, 8.6).
        if self._length or self._request.method in ("POST", "PUT", "PATCH"):
            return (("Content-Length", str(self._length)),)
        return ()

    async def stream(self, connection: ReplicaConnection) -> None:
        """Send the body as it comes. Raises NoAnswer, TooLarge, and aiohttp's errors about the
        client."""
        self._is_begun = True
        sent = 0
        is_chunked = self._length is None
        while data := await self._request.content.read(PIECE_BYTES):
            sent += len(data)
            if sent > self._most:
                connection.close()  # also ends an answer that has begun
                raise too_large(self._most)
            await connection.send(b"%x\r\n%b\r\n" % (len(data), data) if is_chunked else data)
        if is_chunked:
            await connection.send(b"0\r\n\r\n")


async def body_of(request: web.Request, most: int) -> Body:
    """Return the request's body. Raises TooLarge."""
    known = request.get(_READ)
    if known is not None or not request.body_exists:
        return Body(request, most, known or b"")
    length = request.content_length
    if length is not None and length > most:
        raise too_large(most)
    if length is not None and length <= KEPT_BYTES:
        return Body(request, most, await whole(request, most))
    return Body(request, most, None)


async def whole(request: web.Request, most: int) -> bytes:
    """Return all of the body. Raises TooLarge."""
    known: bytes | None = request.get(_READ)
    if known is not None:
        return known
    parts, size = [], 0
    while data := await request.content.read(PIECE_BYTES):
        size += len(data)
        if size > most:
            raise too_large(most)
        parts.append(data)
    read = b"".join(parts)
    request[_READ] = read
    return read


def too_large(most: int) -> TooLarge:
    return TooLarge(f"the body is larger than {most} bytes, the most that a service here takes")
