"""The latest events, read once from the database for all who follow events at a follower."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from controller.aio import Flag
from controller.api.runs.events import event_view
from controller.forwarding.leader_feed import LeaderFeed
from controller.lifecycle.events import EventKind
from controller.store.base import StoredEvent
from controller.store.errors import StoreError, StoreUnavailable
from controller.store.reading import StoreReader
from fairlead.documents.runs import EventLine
from fairlead.model.statuses import FINAL_RUN_STATUSES

log = logging.getLogger(__name__)

PAGE = 1000
MAX_KEPT = 10_000
"""A reader who is further behind reads for himself."""
RETRY_SECONDS = 1.0


class KeptEvent(msgspec.Struct, frozen=True):
    """`owner`: of its run; None: the run is no longer stored. `ends`: it is the run's last
    status. `line`: as it is sent."""

    seq: int
    run_id: str
    owner: str | None
    ends: bool
    line: bytes


def kept(stored: StoredEvent, owner: str | None) -> KeptEvent:
    event = stored.event
    ends = event.kind is EventKind.RUN and event.to_status in FINAL_RUN_STATUSES
    line = msgspec.json.encode(EventLine(event=event_view(stored))) + b"\n"
    return KeptEvent(stored.seq, event.run_id, owner, ends, line)


class _Regressed(Exception):
    """The database lacks events that were read before: a standby was promoted."""


class EventTail:
    """The events after `start`, up to `end`; it moves while somebody uses it."""

    def __init__(self, store: StoreReader, feed: LeaderFeed) -> None:
        self._store = store
        self._feed = feed
        self._kept: deque[KeptEvent] = deque()
        self._users: set[Flag] = set()
        self._moving: asyncio.Task[None] | None = None
        self._changed = Flag()
        self._leader: str | None = None
        self.start = self.end = 0

    @property
    def is_moving(self) -> bool:
        """Whether it still moves; if not, its users must come again."""
        return self._moving is not None

    async def close(self) -> None:
        moving = self._moving
        if moving is not None:
            moving.cancel()
            # Not `await` itself: its error was logged, and its CancelledError would look like ours.
            await asyncio.wait((moving,))

    @asynccontextmanager
    async def used(self, moved: Flag) -> AsyncIterator[None]:
        """Let it move. `moved` is set when it has moved, and when it moves no more. Within
        `LeaderFeed.used`. Raises StoreError."""
        self._users.add(moved)
        try:
            if self._moving is None:
                await self._begin()
            yield
        finally:
            self._users.discard(moved)
            if not self._users:
                # It ends by itself: one that is cancelled while it reads would end the session in
                # which all others read.
                self._changed.set()

    async def _begin(self) -> None:
        leader = self._feed.started
        async with self._store.moment() as moment:
            last = await moment.last_event()
        # Another one may have begun it meanwhile.
        if self._moving is None:
            self._kept.clear()
            self.start = self.end = last
            self._leader = leader
            self._moving = asyncio.create_task(self._move())

    def after(self, position: int) -> list[KeptEvent] | None:
        """Return the events after this number; None: the tail begins later."""
        if position < self.start:
            return None
        found = []
        for event in reversed(self._kept):
            if event.seq <= position:
                break
            found.append(event)
        return found[::-1]

    async def _move(self) -> None:
        """Until nobody uses it, or it can't go on."""
        try:
            async with self._feed.changes(None) as self._changed:
                while self._users:
                    self._changed.clear()
                    try:
                        await self._read()
                    except StoreUnavailable as error:
                        log.debug("events could not be read: %s", error)
                        await asyncio.sleep(RETRY_SECONDS)
                        continue
                    await self._changed.wait()
        except (StoreError, _Regressed) as error:
            log.warning("those who follow events here must come again: %s", error)
        finally:
            self._moving = None
            self._wake()

    def _wake(self) -> None:
        for moved in tuple(self._users):
            moved.set()

    async def _read(self) -> None:
        """Read what was committed by now. Raises StoreError, _Regressed."""
        await self._require_the_same()
        while True:
            async with self._store.moment() as moment:
                page = await moment.events_with_owners(self.end, PAGE)
            for stored, owner in page:
                self._kept.append(kept(stored, owner))
                self.end = stored.seq
            while len(self._kept) > MAX_KEPT:
                self.start = self._kept.popleft().seq
            if page:
                self._wake()
            if len(page) < PAGE:
                return

    async def _require_the_same(self) -> None:
        """Raises _Regressed, StoreError."""
        leader = self._feed.started
        if leader == self._leader:
            return
        async with self._store.moment() as moment:
            last = await moment.last_event()
        if last < self.end:
            # The numbers of events that are gone are given again.
            raise _Regressed(f"the last event is {last}, and was {self.end}")
        self._leader = leader
