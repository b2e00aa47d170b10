"""Sends each line of the logs at least once: from the frames as they are stored, and from the log
where the receiver was away, or this controller was not there."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import partial

from controller.aio import Backoff
from controller.shipping.log_documents import Line, LineCutter, Origin
from controller.shipping.positions import Position, Positions
from controller.shipping.sink import Sink
from fairlead.wire.frames import BadFrame, Decoder, Frame, tail_from

log = logging.getLogger(__name__)

SAVE_SECONDS = 10.0
_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 1.0, 30.0

Read = Callable[[str, int], AsyncGenerator[bytes, None]]
"""Gives the frames of an attempt's log from an offset to what is stored now."""


class _Attempt:
    """`next`: the offset up to which its log was cut into lines; `stored`: that up to which it is
    known to be stored; `acknowledged`: that from which on the receiver may lack lines."""

    def __init__(self, origin: Origin, at: int) -> None:
        self.origin = origin
        self.cutter = LineCutter(origin, at)
        self.next = self.stored = self.acknowledged = at
        self.waiting = 0
        """Its lines in the sink."""
        self.is_behind = False
        """Its lines come from the log, and not from the frames as they are stored."""
        self.has_ended = False

    def begin_at(self, at: int) -> None:
        self.cutter = LineCutter(self.origin, at)
        self.next = self.acknowledged = at


class LogShipper:
    """`now` tells Unix time."""

    def __init__(
        self,
        sink: Sink[Line],
        positions: Positions,
        jitter: Callable[[], float],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._sink = sink
        self._positions = positions
        self._now = now
        self._attempts: dict[str, _Attempt] = {}
        self._is_loaded = False
        self._behind = asyncio.Event()
        self._retry = Backoff(_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS, jitter)
        self._saved: dict[str, Position] = {}

    def began(self, origin: Origin) -> None:
        """Hear of an attempt that lives; repeatable."""
        if origin.attempt not in self._attempts:
            self._attempts[origin.attempt] = _Attempt(origin, 0)

    def ended(self, attempt_id: str) -> None:
        """Hear that no byte will follow; repeatable."""
        attempt = self._attempts.get(attempt_id)
        if attempt is not None and not attempt.has_ended:
            attempt.has_ended = True
            if attempt.is_behind or attempt.next != attempt.stored or not attempt.stored:
                # This controller may have stored none of it: the log tells whether lines are left.
                self._leave_to_log(attempt)
            else:
                self._finish(attempt)

    def stored(self, attempt_id: str, frames: Iterable[Frame]) -> None:
        """Hear of frames that were stored, in their order."""
        attempt = self._attempts.get(attempt_id)
        if attempt is None:
            return
        for frame in frames:
            attempt.stored = max(attempt.stored, frame.end)
            if frame.offset > attempt.next or not self._sink.room.is_set() or not self._is_loaded:
                self._leave_to_log(attempt)
            else:
                # Until now nothing was stored beyond what was cut: the log, which may be in a
                # bucket and away, need not be read.
                attempt.is_behind = False
            if not attempt.is_behind:
                self._cut(attempt, frame)

    def acknowledged(self, lines: Sequence[Line]) -> None:
        """Hear of lines that the receiver got or refused."""
        for line in lines:
            attempt = self._attempts.get(line.origin.attempt)
            if attempt is not None:
                attempt.waiting -= 1
                attempt.acknowledged = max(attempt.acknowledged, line.safe)
                self._forget_if_done(attempt)

    async def run(self, read: Read) -> None:
        """Send what is left of before, and what comes, until cancelled."""
        while not await self._try("how far they came is not known", self.load):
            await self._retry.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._catch_up_always(read))
            group.create_task(self._save_always())

    async def load(self) -> None:
        """Begin where the last controller stopped. Raises OSError."""
        known = await self._positions.load()
        self._saved = dict(known)
        for attempt_id, position in known.items():
            attempt = self._attempts.get(attempt_id)
            if attempt is None:
                # It ended while this controller was not there.
                attempt = self._attempts[attempt_id] = _Attempt(position.origin, position.at)
                attempt.has_ended = True
            else:
                attempt.begin_at(position.at)
        for attempt in self._attempts.values():
            # The last controller may have stored lines that the receiver lacks, and a quiet log has
            # no frame that would tell.
            self._leave_to_log(attempt)
        self._is_loaded = True

    async def catch_up(self, read: Read) -> None:
        """Cut what the logs have of the attempts that are behind, as far as there is room. Raises
        OSError."""
        for attempt in [one for one in self._attempts.values() if one.is_behind]:
            while attempt.is_behind and self._sink.room.is_set():
                await self._catch_up(attempt, read)

    async def save(self) -> None:
        """Raises OSError."""
        positions = {
            attempt_id: Position(one.origin, one.acknowledged)
            for attempt_id, one in self._attempts.items()
        }
        if positions != self._saved:
            await self._positions.save(positions, self._now())
            self._saved = positions

    async def _try(self, trouble: str, call: Callable[[], Awaitable[None]]) -> bool:
        """Return whether it worked."""
        try:
            await call()
        except OSError as error:
            log.warning("copies of logs wait: %s: %s", trouble, error)
            return False
        # A fault in copies must not end the controller.
        except Exception:
            log.exception("copies of logs wait: %s", trouble)
            return False
        return True

    async def _catch_up_always(self, read: Read) -> None:
        while True:
            await self._behind.wait()
            await self._sink.room.wait()
            if await self._try("a log can't be read now", partial(self.catch_up, read)):
                self._retry.reset()
            else:
                await self._retry.wait()
            if not any(one.is_behind for one in self._attempts.values()):
                self._behind.clear()

    async def _save_always(self) -> None:
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            await self._try("how far they came could not be saved", self.save)

    async def _catch_up(self, attempt: _Attempt, read: Read) -> None:
        began = attempt.next
        async with aclosing(read(attempt.origin.attempt, began)) as pieces:
            async for piece in pieces:
                try:
                    for frame in Decoder().feed(piece):
                        self._cut(attempt, frame)
                except BadFrame as error:
                    # Its readers stop there too.
                    log.warning("the log of %s is damaged: %s", attempt.origin.attempt, error)
                    attempt.next = max(attempt.next, attempt.stored)
                if not self._sink.room.is_set():
                    return
        # A log that was removed meanwhile gives nothing; else what came since is read next.
        if attempt.next >= attempt.stored or attempt.next == began:
            attempt.is_behind = False
            if attempt.has_ended:
                self._finish(attempt)

    def _finish(self, attempt: _Attempt) -> None:
        self._add(attempt, attempt.cutter.end(round(self._now() * 1e9)))
        self._forget_if_done(attempt)

    def _leave_to_log(self, attempt: _Attempt) -> None:
        attempt.is_behind = True
        self._behind.set()

    def _cut(self, attempt: _Attempt, frame: Frame) -> None:
        fresh = tail_from(frame, attempt.next)
        if fresh is not None:
            self._add(attempt, attempt.cutter.lines(fresh))
            attempt.next = fresh.end

    def _add(self, attempt: _Attempt, lines: Iterable[Line]) -> None:
        for line in lines:
            attempt.waiting += 1
            # As much again for what each line is found by.
            self._sink.add(line, len(line.text) + 200)

    def _forget_if_done(self, attempt: _Attempt) -> None:
        if attempt.has_ended and not attempt.is_behind and not attempt.waiting:
            self._attempts.pop(attempt.origin.attempt, None)
