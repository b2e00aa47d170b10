"""The log's readers, for whom an ended runner stays, and one follower over a WebSocket.

A follower reads the segment files at its own pace. So a slow one costs the job and others nothing
and holds at most one piece in memory; many followers take turns (`pacing`). One that reads nothing
for a while is dropped; it may come back at its offset.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from fairlead.wire.errors import Refused
from fairlead.wire.frames import BadFrame
from fairlead.wire.runner import WS_TOO_SLOW, LogsHeader
from fairlead.wire.websocket import CloseCode
from runner.http.websocket import WebSocket
from runner.logs.pacing import Seat
from runner.logs.reading import LogReader
from runner.logs.segments import SegmentLog
from runner.status import Bell

FOLLOWER_PATIENCE = 30.0
_log = logging.getLogger(__name__)


class LogReaders:
    """`changed` rings when an ended runner may have become free to exit."""

    def __init__(self, log: SegmentLog, changed: Bell) -> None:
        self.acked = 0
        """The acknowledged offset."""
        self._log = log
        self._changed = changed
        self._ack_seen = False
        self._present = 0

    def ack(self, offset: int) -> int:
        """Acknowledge the log and return the acknowledged offset. Raises Refused for bytes that
        were never written.

        If the end is acknowledged (0 too), an ended runner may exit.
        """
        if not 0 <= offset <= self._log.end:
            raise Refused(
                400, "invalid", f"offset {offset} is not within 0..{self._log.end}", "offset"
            )
        self.acked = max(self.acked, offset)
        self._ack_seen = True
        self._changed.ring()
        return self.acked

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count one more reader within the block."""
        self._present += 1
        try:
            yield
        finally:
            self._present -= 1
            self._changed.ring()

    def have_left(self, log_end: int, *, unread: bool) -> bool:
        """Return whether nobody reads the log, and it is acknowledged up to its end; `unread`: that
        is not asked for."""
        return not self._present and (unread or (self._ack_seen and self.acked >= log_end))


class LogFollower:
    def __init__(self, log: SegmentLog, offset: int, patience: float) -> None:
        self._log = log
        self._reader = LogReader(log, offset)
        self._patience = patience

    async def serve(self, ws: WebSocket) -> None:
        sending = asyncio.create_task(self._send_all(ws))
        either: tuple[asyncio.Future[Any], ...] = (ws.left, sending)
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                code, message = await sending
                await ws.close(code, message)
                # A peer that reads nothing takes no close frame either.
                if code == WS_TOO_SLOW:
                    ws.abort()
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send_all(self, ws: WebSocket) -> tuple[int, bytes]:
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
            return CloseCode.INTERNAL_ERROR, b"the log's files were changed"
        finally:
            self._reader.close()

    async def _send_pieces(self, ws: WebSocket, seat: Seat) -> tuple[int, bytes]:
        begin = max(self._reader.offset, self._log.start)
        await self._send(ws, msgspec.json.encode(LogsHeader(offset=begin)).decode())
        while True:
            if not self._log.finished:
                await seat.turn()
            if piece := self._reader.read(seat.piece_size):
                await self._send(ws, piece)
            elif self._reader.at_end:
                return CloseCode.OK, b""
            else:
                await self._log.bell.wait()

    async def _send(self, ws: WebSocket, data: str | bytes) -> None:
        async with asyncio.timeout(self._patience):
            if isinstance(data, str):
                await ws.send_text(data)
            else:
                await ws.send_bytes(data)
