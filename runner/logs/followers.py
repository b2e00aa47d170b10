"""One follower of the log over a WebSocket.

It reads the segment files at its own pace. So a slow one costs the job and other followers nothing
and holds at most one piece in memory; many followers take turns (`pacing`). One that reads nothing
for a while is dropped; it may come back at its offset.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import msgspec
from aiohttp import web
from aiohttp.http import WSCloseCode

from runner.logs.pacing import Seat
from runner.logs.segments import SegmentLog
from runner.schemas import WS_TOO_SLOW, LogsHeader
from runner.schemas.frames import BadFrame

FOLLOWER_PATIENCE = 30.0
_CLOSING_TIME = 5.0
_log = logging.getLogger(__name__)


class LogFollower:
    def __init__(self, log: SegmentLog, offset: int, patience: float) -> None:
        self._log = log
        self._reader = log.reader(offset)
        self._patience = patience

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse(timeout=_CLOSING_TIME, compress=False, heartbeat=None)
        await ws.prepare(request)
        listening = asyncio.create_task(_until_peer_leaves(ws))
        sending = asyncio.create_task(self._send_all(ws))
        try:
            await asyncio.wait({listening, sending}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                code, message = await sending
                listening.cancel()
                await asyncio.wait({listening})
                await self._close(ws, request, code, message)
        finally:
            for task in (listening, sending):
                task.cancel()
            await asyncio.gather(listening, sending, return_exceptions=True)
        return ws

    async def _send_all(self, ws: web.WebSocketResponse) -> tuple[int, bytes]:
        """Send the log; return why the connection ends: close code and message."""
        try:
            with self._log.pacing.seat() as seat:
                return await self._send_pieces(ws, seat)
        except TimeoutError:
            _log.warning("a follower is dropped: it read nothing for %g s", self._patience)
            return WS_TOO_SLOW, b"the reader read nothing for too long"
        except (BadFrame, OSError) as error:
            if isinstance(error, ConnectionError):
                raise
            _log.error("the log cannot be read: %s", error)
            return WSCloseCode.INTERNAL_ERROR, b"the log's files were changed"
        finally:
            self._reader.close()

    async def _send_pieces(self, ws: web.WebSocketResponse, seat: Seat) -> tuple[int, bytes]:
        begin = max(self._reader.offset, self._log.start)
        await self._send(ws, msgspec.json.encode(LogsHeader(offset=begin)).decode())
        while True:
            if not self._log.finished:
                await seat.turn()
            if piece := self._reader.read(seat.piece_size):
                await self._send(ws, piece)
            elif self._reader.at_end:
                return WSCloseCode.OK, b""
            else:
                await self._log.bell.wait()

    async def _send(self, ws: web.WebSocketResponse, data: str | bytes) -> None:
        async with asyncio.timeout(self._patience):
            if isinstance(data, str):
                await ws.send_str(data)
            else:
                await ws.send_bytes(data)

    async def _close(
        self, ws: web.WebSocketResponse, request: web.Request, code: int, message: bytes
    ) -> None:
        """Close, and wait until the peer has confirmed that it has everything. A peer that does not
        read holds memory only for the closing time."""
        with suppress(ConnectionError):
            await ws.close(code=code, message=message, drain=False)
        if code == WS_TOO_SLOW and request.transport is not None:
            request.transport.abort()


async def _until_peer_leaves(ws: web.WebSocketResponse) -> None:
    async for _ in ws:
        continue
