"""Holds requests that can't be done at the moment, within bounds, until it is known who does them.

A held request has done nothing, so it may go on here or at another controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol, TypeVar

from aiohttp import web

from common.proxy.body import KEPT_BYTES
from common.proxy.forwarding import HangUps

log = logging.getLogger(__name__)

T = TypeVar("T")
HELD_SECONDS = 8.0
"""A lease of 5 s ends in this time, and another controller leads."""
_LOOK_SECONDS = 0.2
ANSWERED_BEFORE_SECONDS = 0.2
"""A change that still waits so long before the lease's end is answered."""
LOOK_AGAIN_SECONDS = 0.5
"""So long a question waits for a word about a lease that has run out."""
LATE_SECONDS = 1.0
"""After the lease's end, a change that could not be answered before waits so long for its end."""
MAX_HELD = 2048
MAX_HELD_BYTES = 32 << 20
_READ_AHEAD = 2 * KEPT_BYTES
"""aiohttp keeps so much of a body that nobody reads."""
_OVERHEAD_BYTES = 4 << 10
"""Of a request with its head."""


class Lead(Protocol):
    """Whether this controller leads."""

    def is_sure(self) -> bool: ...

    def lasts_for(self) -> float:
        """Return the seconds until the lease runs out without another renewal."""

    async def until_known(self, seconds: float) -> bool:
        """Return whether it surely leads, as soon as that is known, or after so long."""

    def has_left(self) -> bool:
        """Return whether it waits for no renewal of its lease any more."""


class Room:
    """Counts what is held at the same time."""

    def __init__(self, most: int = MAX_HELD, most_bytes: int = MAX_HELD_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self.held = 0
        self.held_bytes = 0

    @contextlib.contextmanager
    def place(self, size: int) -> Iterator[bool]:
        """Yield whether a request of this size has a place, for the time of this block."""
        has_place = self.held < self._most and self.held_bytes + size <= self._most_bytes
        taken = (1, size) if has_place else (0, 0)
        self._count(*taken)
        try:
            yield has_place
        finally:
            self._count(-taken[0], -taken[1])

    def _count(self, requests: int, size: int) -> None:
        self.held += requests
        self.held_bytes += size


ANSWERING: web.RequestKey[bool] = web.RequestKey("answering", bool)
"""Set once the head of an answer was made."""


async def note_answer(request: web.BaseRequest, _response: web.StreamResponse) -> None:
    """For `on_response_prepare`."""
    request[ANSWERING] = True


class LeaseEnds(Exception):
    """The lease ends now, and the change still waits."""


class Changing:
    """Bounds how long clients wait for changes that have begun: a database that hangs answers
    nothing, neither a commit nor the renewal of the lease."""

    def __init__(self, lead: Lead) -> None:
        self._lead = lead
        self._late: set[asyncio.Future[Any]] = set()

    async def answer(
        self, request: web.Request, change: Awaitable[web.StreamResponse]
    ) -> web.StreamResponse:
        """Return the answer of the change that this request asks for. Raises as `outcome` does."""
        return await self.outcome(change, lambda: _waits_here(request))

    async def outcome(self, change: Awaitable[T], waits_here: Callable[[], bool]) -> T:
        """Return what comes of the change. `waits_here`: whether its client waits for nothing else.
        Raises LeaseEnds, and the change goes on: a commit that nobody waits for would leave the
        memory of this controller behind its database."""
        changing = asyncio.ensure_future(change)
        try:
            while True:
                await asyncio.wait((changing,), timeout=max(self._left(), _LOOK_SECONDS))
                if changing.done():
                    return changing.result()
                # A change that waits for a provider of machines outlives many renewals, and is no
                # reason to doubt one that is late.
                if self._left() <= 0 and waits_here():
                    # After a pause it is too late for an answer before the lease's end. The
                    # database mostly tells at once what became of the change.
                    if self._lead.lasts_for() < 0:
                        await asyncio.wait((changing,), timeout=LATE_SECONDS)
                    if changing.done():
                        return changing.result()
                    break
        except asyncio.CancelledError:
            changing.cancel()
            await asyncio.wait((changing,))
            raise
        self._late.add(changing)
        changing.add_done_callback(self._ended)
        raise LeaseEnds

    def _left(self) -> float:
        # Whole milliseconds: a timer that fires at the exact time may see a rest of nanoseconds.
        return round(self._lead.lasts_for() - ANSWERED_BEFORE_SECONDS, 3)

    def _ended(self, changing: asyncio.Future[Any]) -> None:
        self._late.discard(changing)
        if not changing.cancelled() and (error := changing.exception()) is not None:
            log.warning("a change that nobody waited for any more failed: %s", error)


def _waits_here(request: web.Request) -> bool:
    """Return whether this controller has all of the request, and has not begun to answer."""
    return ANSWERING not in request and request.content.is_eof()


class Holding:
    """Holds changes that come while it is in doubt whether this controller leads."""

    def __init__(self, lead: Lead, room: Room | None = None, seconds: float = HELD_SECONDS) -> None:
        self._lead = lead
        self._room = Room() if room is None else room
        self._seconds = seconds
        self._hang_ups = HangUps()

    async def may_go_on(self, request: web.Request) -> bool:
        """Return whether the change may be done here; hold it until that is known. This task is
        cancelled if the client leaves."""
        if self._lead.is_sure():
            return True
        with self._room.place(held_size(request.content_length)) as has_place:
            if not has_place:
                return False
            with self._hang_ups.watched(request):
                return await self._lead.until_known(self._seconds)


async def has_left(lead: Lead) -> bool:
    """Return whether another controller leads, so that what is in memory here may be old. One that
    was paused learns it from the database at once. While that is away, nobody knows it."""
    if lead.lasts_for() > 0 or await lead.until_known(LOOK_AGAIN_SECONDS):
        return False
    return lead.has_left()


def held_size(body_bytes: int | None) -> int:
    """Return what a request takes whose body is not read. `body_bytes`: None: nobody knows."""
    ahead = _READ_AHEAD if body_bytes is None else min(body_bytes, _READ_AHEAD)
    return _OVERHEAD_BYTES + ahead
