"""WebSockets: once both ends have switched protocols, their bytes are passed on unread.

So extensions, fragments and pings stay between client and replica, and no message is ever held as a
whole.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import cast

from aiohttp import web
from aiohttp.http import WebSocketReader

from common.proxy.upstream import PIECE_BYTES, ResponseHead
from common.streams import PortStream

MAX_WAITING = 128 << 10


class _ClientBytes:
    """Takes the place of aiohttp's WebSocket reader: the server feeds it what the client sends."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._is_paused = False
        self._has_ended = False
        self._arrived = asyncio.Event()

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self._pieces.append(data)
        self._size += len(data)
        # Else a client that sends faster than the replica reads would fill the memory.
        if self._size > MAX_WAITING and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._arrived.set()
        # aiohttp's protocol asks whether the message has ended, and what is left of the data.
        return False, b""

    def feed_eof(self) -> None:
        self._has_ended = True
        self._arrived.set()

    async def read(self) -> bytes:
        while not self._pieces:
            if self._has_ended:
                return b""
            self._arrived.clear()
            await self._arrived.wait()
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return data


async def tunnel(
    request: web.Request, head: ResponseHead, stream: PortStream
) -> web.StreamResponse:
    """Answer 101 and carry bytes both ways until one end closes. `head`: that of the answer, for
    the client. The caller closes the stream."""
    response = web.StreamResponse(status=101, reason=head.reason or None)
    for name, value in head.headers:
        response.headers.add(name, value)
    response.headers["Connection"] = "Upgrade"
    response.headers["Upgrade"] = "websocket"
    # Else aiohttp keeps the connection for further requests, and it speaks no HTTP any more.
    response.force_close()
    await response.prepare(request)
    transport = request.transport
    # aiohttp has none once the client is gone, which may be while the head is written.
    if transport is None:
        return response
    client = _ClientBytes(transport)
    # aiohttp's own WebSocketResponse does it in this way; it would read the frames, and refuse
    # extensions that it did not agree to.
    request.protocol.set_parser(cast(WebSocketReader, client))
    ways = (
        asyncio.create_task(_to_replica(client, stream)),
        asyncio.create_task(_to_client(response, stream)),
    )
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        if request.transport is not None:
            request.transport.close()
    return response


async def _to_replica(client: _ClientBytes, stream: PortStream) -> None:
    while data := await client.read():
        stream.writer.write(data)
        await stream.writer.drain()


async def _to_client(response: web.StreamResponse, stream: PortStream) -> None:
    data = stream.first
    while data or (data := await stream.reader.read(PIECE_BYTES)):
        await response.write(data)
        data = b""
