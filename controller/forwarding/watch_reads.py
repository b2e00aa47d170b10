"""Watches that a follower answers: of runs, from lines that come once for all who watch a run here,
and of events, which are read once for all who follow events here.

Rights are those of the database: when a watch begins, and again while it goes on.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

import msgspec
from aiohttp import web

from common.refusals import ServiceError, Unauthenticated
from controller.aio import Flag
from controller.api.http.routes import NDJSON, NoQuery
from controller.api.http.streams import Heartbeat, cancel_this, reader_may_leave, registered
from controller.api.runs.events import EventsWatchQuery
from controller.clock import Clock
from controller.forwarding.event_tail import PAGE, EventTail, KeptEvent, kept
from controller.forwarding.final_logs import FinalLogs
from controller.forwarding.leader_feed import FeedLost, LeaderFeed, WatchedRun
from controller.forwarding.live_logs import LiveLogs
from controller.forwarding.log_reads import LogReads
from controller.forwarding.reader_rights import UNKNOWN_SECONDS
from controller.forwarding.reads import Proof
from controller.replica.alone import NeedsLeader
from controller.service.accounts.rights import sees_all
from controller.store.accounts import User
from controller.store.errors import StoreError
from controller.store.reading import StoreReader
from fairlead.documents.runs import EventLine, WatchLine
from fairlead.model.statuses import FINAL_RUN_STATUSES
from fairlead.queries import EventQuery

JUDGED_SECONDS = 5.0
"""A watch goes on only after another look at the rights of its reader, if the last is older."""
MAX_JUDGED = 10_000
"""More are known only while all of them watch."""
EVENTS_AT_ONCE = 100
"""So much of what a slow reader has not taken yet is in memory for him."""
_QUIET_RUN = msgspec.json.encode(WatchLine(run=None)) + b"\n"
_QUIET_EVENTS = msgspec.json.encode(EventLine(event=None)) + b"\n"


class MayNotSee(Exception):
    """The reader has lost the right, or nobody can tell whether he has."""


class _Judged(msgspec.Struct):
    """What is known of a proof. `user` None: it opens nothing any more."""

    at: float
    """When it was asked last, by the loop's clock."""
    known_at: float
    user: User | None
    asking: asyncio.Task[None] | None = None


class Judge:
    """Knows whom requests are of, a few seconds late at most: one look for all watches of a
    token."""

    def __init__(self, look: Callable[[Proof], Awaitable[User | None]]) -> None:
        """`look`: returns the user whom this admits. Raises StoreError."""
        self._look = look
        self._known: dict[Proof, _Judged] = {}

    async def user_of(self, proof: Proof) -> User:
        """Return the user whom this admits. Raises MayNotSee."""
        now = asyncio.get_running_loop().time()
        known = self._known.get(proof)
        if known is None:
            known = self._noted(proof, _Judged(-math.inf, now, None))
        if now - known.at >= JUDGED_SECONDS:
            if known.asking is None:
                known.asking = asyncio.create_task(self._ask(proof, known))
            # It is shared: one reader who leaves ends it for no other one.
            await asyncio.shield(known.asking)
        late = asyncio.get_running_loop().time() - known.known_at
        if known.user is None or late >= UNKNOWN_SECONDS:
            raise MayNotSee
        return known.user

    def knows(self, proof: Proof, user: User) -> None:
        """Note what a request was just admitted by."""
        now = asyncio.get_running_loop().time()
        self._noted(proof, _Judged(now, now, user))

    def _noted(self, proof: Proof, judged: _Judged) -> _Judged:
        if len(self._known) >= MAX_JUDGED and proof not in self._known:
            # A watch asks at each heartbeat at the latest.
            since = asyncio.get_running_loop().time() - UNKNOWN_SECONDS
            self._known = {known: one for known, one in self._known.items() if one.at > since}
        self._known[proof] = judged
        return judged

    async def _ask(self, proof: Proof, known: _Judged) -> None:
        try:
            known.user = await self._look(proof)
            known.known_at = asyncio.get_running_loop().time()
        except StoreError:
            pass  # what was known last holds for a while
        finally:
            known.at = asyncio.get_running_loop().time()
            known.asking = None


class Reader(msgspec.Struct, frozen=True):
    """The user of a watch, as the rights were when it began.

    `owner`: the owner of the watched run; None: the watch is about all runs that the user may see.
    """

    proof: Proof
    user: User
    owner: str | None


def may_go_on(reader: Reader, user: User) -> bool:
    """Return whether a watch may go on for this user, as he is now."""
    if sees_all(user) != sees_all(reader.user):
        return False  # a watch of all that he sees would be another one
    return reader.owner is None or sees_all(user) or user.name == reader.owner


def to_send(events: Sequence[KeptEvent], reader: Reader, run_id: str | None) -> Iterator[bytes]:
    """Yield the lines of the events that the reader asked for and may see, some at once."""
    everyone = sees_all(reader.user)
    lines = [
        event.line
        for event in events
        if (run_id is None or event.run_id == run_id)
        and (everyone or event.owner == reader.user.name)
    ]
    for begin in range(0, len(lines), EVENTS_AT_ONCE):
        yield b"".join(lines[begin : begin + EVENTS_AT_ONCE])


class WatchReads(LogReads):
    """Answers watches too. `feed`: the leader's word about what changes."""

    def __init__(
        self,
        store: StoreReader,
        clock: Clock,
        feed: LeaderFeed,
        logs: FinalLogs | None = None,
        live: LiveLogs | None = None,
    ) -> None:
        super().__init__(store, clock, logs, live)
        self._feed = feed
        self._tail = EventTail(store, feed)
        self._judge = Judge(self._user_of)

    @property
    def routes(self) -> Mapping[str, Callable[[web.Request], Awaitable[web.StreamResponse]]]:
        return {
            **super().routes,
            "/v1/runs/{run}/watch": self._watch_run,
            "/v1/events/watch": self._watch_events,
        }

    async def close(self) -> None:
        await self._tail.close()
        await self._feed.close()

    async def _user_of(self, proof: Proof) -> User | None:
        """Raises StoreError."""
        try:
            async with self._at_once, self._store.moment() as moment:
                return await proof.user(moment, self._clock)
        except Unauthenticated:
            return None

    def _reader(self, request: web.Request, user: User, owner: str | None) -> Reader:
        proof = self._proof(request)
        self._judge.knows(proof, user)
        return Reader(proof, user, owner)

    async def _watch_run(self, request: web.Request) -> web.StreamResponse:
        async with self._at_once, self.begun(request) as read:
            state = await read.run()
            read.query(NoQuery)
        reader = self._reader(request, read.user, state.run.user)
        changed = Flag()
        async with self._feed.used(), self._feed.watched(state.run.id, changed) as run:
            return await self._send(request, reader, _lines(run, changed))

    async def _watch_events(self, request: web.Request) -> web.StreamResponse:
        async with self._at_once, self.begun(request) as read:
            query = read.query(EventsWatchQuery)
            state = None if query.run is None else await read.runs.seen(query.run, read.user)
        reader = self._reader(request, read.user, None if state is None else state.run.user)
        run_id = None if state is None else state.run.id
        moved = Flag()
        async with self._feed.used(), self._tail.used(moved):
            events = self._event_lines(reader, run_id, query.cursor, moved)
            return await self._send(request, reader, events)

    async def _send(
        self, request: web.Request, reader: Reader, lines: AsyncIterator[bytes]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": NDJSON, "Cache-Control": "no-store"})
        with registered(request, cancel_this()), reader_may_leave():
            try:
                # Before the answer begins: what fails is the leader's.
                first = await anext(lines, b"")
            except FeedLost as error:
                raise NeedsLeader from error
            await response.prepare(request)
            try:
                if first:
                    await response.write(first)
                async for line in lines:
                    await self._require(reader)
                    await response.write(line)
            except (FeedLost, MayNotSee, ServiceError, StoreError):
                # The client must not take what it has for the whole.
                if request.transport is not None:
                    request.transport.abort()
                return response
            await response.write_eof()
        return response

    async def _require(self, reader: Reader) -> None:
        """Raises MayNotSee."""
        if not may_go_on(reader, await self._judge.user_of(reader.proof)):
            raise MayNotSee

    async def _event_lines(
        self, reader: Reader, run_id: str | None, position: int, moved: Flag
    ) -> AsyncIterator[bytes]:
        """Yield the lines of events after `position`; of one run until it has ended; first
        an empty piece once some were read. Raises FeedLost, StoreError."""
        heartbeat, has_begun = Heartbeat(), False
        # The first page is always read: it has what was committed before the request.
        events: list[KeptEvent] | None = None
        while True:
            moved.clear()
            if events is None:
                # Before the page is read: all events up to here were committed then.
                known = self._tail.end
                page, ended = await self._page(reader, run_id, position)
                if not has_begun:
                    has_begun = True
                    yield b""
                for found in to_send(page, reader, run_id):
                    yield found
                    heartbeat.sent()
                is_last = len(page) < PAGE
                position = max(page[-1].seq if page else 0, known if is_last else position)
                if is_last and ended:
                    return
            else:
                for found in to_send(events, reader, run_id):
                    yield found
                    heartbeat.sent()
                position = max(events[-1].seq if events else 0, position)
                if any(event.ends and event.run_id == run_id for event in events):
                    # Others of the same commit may come in the tail's next page.
                    events = None
                    continue
                is_last = True
            if self._feed.is_lost or not self._tail.is_moving:
                raise FeedLost
            if is_last and not await heartbeat.wait(moved):
                yield _QUIET_EVENTS
                heartbeat.sent()
            events = self._tail.after(position)

    async def _page(
        self, reader: Reader, run_id: str | None, position: int
    ) -> tuple[list[KeptEvent], bool]:
        """Return events from the database, and whether the run has ended. Raises StoreError."""
        user = None if sees_all(reader.user) else reader.user.name
        query = EventQuery(run=run_id, after=position, limit=PAGE, user=user)
        async with self._at_once, self._store.moment() as moment:
            state = None if run_id is None else await moment.find_run(run_id)
            found = await moment.events(query)
        ended = state is not None and state.run.status in FINAL_RUN_STATUSES
        # All of them may be seen: the query asks for no others.
        owner = reader.user.name if reader.owner is None else reader.owner
        return [kept(one, owner) for one in found], ended


async def _lines(run: WatchedRun, changed: Flag) -> AsyncIterator[bytes]:
    """Yield the run's present line, then the latest one after each change. Raises FeedLost."""
    given: bytes | None = None
    heartbeat = Heartbeat()
    while True:
        changed.clear()
        if run.is_lost:
            raise FeedLost
        if run.line is not None and run.line != given:
            given = run.line
            yield given + b"\n"
            heartbeat.sent()
            continue  # another one may have come meanwhile
        if run.is_over:
            return
        if not await heartbeat.wait(changed):
            yield _QUIET_RUN
            heartbeat.sent()
