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
from controller.store.errors import StoreError
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


class EventTail:
    """The events after `start`, up to `end`; it moves while somebody uses it."""

    def __init__(self, store: StoreReader, feed: LeaderFeed) -> None:
        self._store = store
        self._feed = feed
        self._kept: deque[KeptEvent] = deque()
        self._users: set[Flag] = set()
        self._moving: asyncio.Task[None] | None = None
        self.start = self.end = 0

    async def close(self) -> None:
        if self._moving is not None:
            self._moving.cancel()
            await asyncio.wait((self._moving,))

    @asynccontextmanager
    async def used(self, moved: Flag) -> AsyncIterator[None]:
        """Let it move. `moved` is set when it has moved. Within `LeaderFeed.used`. Raises
        StoreError."""
        self._users.add(moved)
        try:
            if self._moving is None:
                await self._begin()
            yield
        finally:
            self._users.discard(moved)
            if not self._users and self._moving is not None:
                self._moving.cancel()
                self._moving = None

    async def _begin(self) -> None:
        async with self._store.moment() as moment:
            last = await moment.last_event()
        # Another one may have begun it meanwhile.
        if self._moving is None:
            self._kept.clear()
            self.start = self.end = last
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
        async with self._feed.changes(None) as changed:
            while True:
                changed.clear()
                try:
                    await self._read()
                except StoreError as error:
                    log.debug("events could not be read: %s", error)
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                await changed.wait()

    async def _read(self) -> None:
        """Read what was committed by now. Raises StoreError."""
        while True:
            async with self._store.moment() as moment:
                page = await moment.events_with_owners(self.end, PAGE)
            for stored, owner in page:
                self._kept.append(kept(stored, owner))
                self.end = stored.seq
            while len(self._kept) > MAX_KEPT:
                self.start = self._kept.popleft().seq
            if page:
                for moved in tuple(self._users):
                    moved.set()
            if len(page) < PAGE:
                return
