"""The follower's end of the feed: one request to the leader, for all watches of clients here.

It is open while it has users, and begins again at the next leader. Then each run is asked for
again, and each key counts as changed: nothing that happened between the two is missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec

from common.proxy.headers import CLIENT, head_of
from common.proxy.upstream import ReplicaConnection, UpstreamError
from controller.aio import Flag, Watch, Watchers
from controller.forwarding.feed import (
    FEED_PATH,
    Ask,
    Beat,
    Begun,
    Changed,
    Lines,
    Message,
    RunLine,
    RunLost,
    encoded,
)
from controller.forwarding.follower_links import BY_ITSELF
from controller.forwarding.leader_links import LeaderLinks, Link, NobodyLeads, NoLink
from controller.relay import while_it_leads
from controller.replica.alone import NeedsLeader

log = logging.getLogger(__name__)

IDLE_SECONDS = 10.0
"""The feed stays open for so long after its last user."""
BEGIN_SECONDS = 5.0
"""A client for whom the feed gives nothing in this time is sent to the leader."""
LOST_SECONDS = 30.0
"""So long a feed is asked for again that no leader gives; then its users end."""
RETRY_SECONDS = 0.2
QUIET_SECONDS = 30.0
"""A leader that has told nothing for so long, not even a beat, is left."""


class FeedLost(Exception):
    """The feed has ended, or a run's part of it. Whoever used it may come again."""


class WatchedRun:
    """A run that is watched here. `line`: its latest one."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.line: bytes | None = None
        self.answered = 0
        """The latest question that was answered."""
        self.is_over = False
        self.is_lost = False
        self.readers: set[Flag] = set()

    def wake(self) -> None:
        for reader in self.readers:
            reader.set()


class _Refused(Exception):
    """The leader gives no feed: it is of an earlier version."""


class LeaderFeed:
    def __init__(self, links: LeaderLinks) -> None:
        self._links = links
        self._watchers = Watchers()
        self._runs: dict[str, WatchedRun] = {}
        self._numbers = itertools.count(1)
        self._asked: dict[str, int] = {}
        """The latest question about each run."""
        self._questions: asyncio.Queue[Ask] | None = None
        """What the leader that feeds now has not been sent yet."""
        self._users = 0
        self._going: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._begun = asyncio.Event()
        self.started: str | None = None
        """The start of the leader that feeds; None: nobody has yet."""
        self.broken: Mapping[str, int] = {}
        self.is_lost = False

    @property
    def revision(self) -> int:
        return self._watchers.revision

    def changes(self, key: str | None) -> Watch:
        """Return a watch that wakes after each change of this run or node (None: of any), and when
        some may have been missed."""
        return Watch(self._watchers, key)

    def changed_since(self, key: str | None, revision: int) -> bool:
        """Return whether it may have changed after this revision of `started`."""
        return self._watchers.changed_since(key, revision)

    async def close(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        await self._end()

    @asynccontextmanager
    async def used(self) -> AsyncIterator[None]:
        """Keep the feed open. Raises NeedsLeader if it does not begin soon."""
        self._users += 1
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._going is None:
            self.is_lost = False
            self._going = asyncio.create_task(self._go_on())
        try:
            await self._begin(self._going)
            yield
        finally:
            self._users -= 1
            if self._users == 0:
                later = asyncio.get_running_loop().call_later
                self._idle = later(IDLE_SECONDS, self._leave)

    async def _begin(self, going: asyncio.Task[None]) -> None:
        """Raises NeedsLeader."""
        begun = asyncio.create_task(self._begun.wait())
        try:
            both = (begun, going)
            await asyncio.wait(both, timeout=BEGIN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not begun.done() or going.done():
                raise NeedsLeader
        finally:
            begun.cancel()

    def _leave(self) -> None:
        self._idle = None
        if self._users == 0 and self._going is not None:
            self._going.cancel()

    async def _end(self) -> None:
        if self._going is not None:
            self._going.cancel()
            await asyncio.wait((self._going,))

    @asynccontextmanager
    async def watched(self, run_id: str, changed: Flag) -> AsyncIterator[WatchedRun]:
        """Watch a run, from a line on that was read after this call. `changed` is set at each line
        and at the end. Within `used`. Raises NeedsLeader."""
        run = self._runs.get(run_id)
        if run is None:
            run = self._runs[run_id] = WatchedRun(run_id)
        run.readers.add(changed)
        number = self._ask(run_id)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEGIN_SECONDS):
                    while run.answered < number and not run.is_over and not run.is_lost:
                        await changed.wait()
                        changed.clear()
            is_answered = run.answered >= number or run.is_over
            # Others may have a line here that is older than what this one has written.
            if run.line is None or run.is_lost or not is_answered:
                raise NeedsLeader
            yield run
        finally:
            run.readers.discard(changed)
            if not run.readers:
                self._forget(run, tell=not (run.is_over or run.is_lost))

    def _ask(self, run_id: str) -> int:
        number = self._asked[run_id] = next(self._numbers)
        if self._questions is not None:
            self._questions.put_nowait(Ask(run_id, number))
        return number

    def _forget(self, run: WatchedRun, *, tell: bool) -> None:
        if self._runs.get(run.run_id) is not run:
            return
        del self._runs[run.run_id], self._asked[run.run_id]
        if tell and self._questions is not None:
            self._questions.put_nowait(Ask(run.run_id))

    async def _go_on(self) -> None:
        now = asyncio.get_running_loop().time
        given_at = now()
        try:
            while now() - given_at < LOST_SECONDS:
                try:
                    link = await self._links.get(LOST_SECONDS)
                    if await self._fed(link):
                        given_at = now()
                except (NobodyLeads, NoLink):
                    break
                # A leader that refuses at once must not be asked in a loop.
                await asyncio.sleep(RETRY_SECONDS)
        except _Refused:
            log.info("the leader gives no feed: watches are passed on to it")
        finally:
            self._lose_all()

    def _lose_all(self) -> None:
        self._going, self.is_lost = None, True
        self._begun.clear()
        for run in tuple(self._runs.values()):
            self._lose(run)
        self._watchers.begin_at(0)

    def _lose(self, run: WatchedRun) -> None:
        run.is_lost = True
        self._forget(run, tell=False)
        run.wake()

    async def _fed(self, link: Link) -> bool:
        """Be fed by one leader for as long as it leads. Return whether it has begun. Raises
        _Refused."""
        connection = link.connection
        questions: asyncio.Queue[Ask] = asyncio.Queue()
        self._questions = questions
        for run_id, number in self._asked.items():
            questions.put_nowait(Ask(run_id, number))
        asking: asyncio.Task[None] | None = None
        has_begun = False
        try:
            await connection.send(_request(link))
            asking = asyncio.create_task(_ask_all(connection, questions))
            lines = Lines()
            head = await while_it_leads(connection.answer("GET"), link.over)
            if head.status != 200:
                # Else aiohttp waits for the rest of the questions, for seconds after the end of the
                # connection.
                asking.cancel()
                await connection.send(b"0\r\n\r\n")
            if head.status == 404:
                raise _Refused
            while head.status == 200:
                async with asyncio.timeout(QUIET_SECONDS):
                    piece = await while_it_leads(connection.read(), link.over)
                if not piece:
                    break
                for message in lines.messages(piece):
                    self._hear(message)
                    has_begun = True
        except (UpstreamError, ConnectionError, TimeoutError) as error:
            log.debug("the leader's feed ended: %s", error)
        except msgspec.MsgspecError as error:
            # One of another version, whose words this one does not know.
            raise _Refused from error
        finally:
            self._questions = None
            connection.close()
            if asking is not None:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
        return has_begun

    def _hear(self, message: Message) -> None:
        match message:
            case Begun():
                self.started, self.broken = message.started, message.broken
                self._watchers.begin_at(message.revision)
                self._begun.set()
            case Changed():
                self.broken = message.broken
                if message.keys is None:
                    self._watchers.begin_at(message.revision)
                else:
                    self._watchers.wake((*message.keys, None), message.revision)
            case RunLine():
                self._hear_line(message)
            case RunLost():
                if (lost := self._runs.get(message.run)) is not None:
                    self._lose(lost)
            case Beat():
                pass

    def _hear_line(self, message: RunLine) -> None:
        run = self._runs.get(message.run)
        if run is None:
            return  # its last reader has just left
        if line := bytes(message.line):
            run.line = line
        run.answered = max(run.answered, message.number)
        run.is_over = message.is_over and run.line is not None
        if run.is_over:
            self._forget(run, tell=False)
        run.wake()


def _request(link: Link) -> bytes:
    asked = [
        ("Host", link.host),
        (CLIENT, BY_ITSELF),
        ("Transfer-Encoding", "chunked"),
    ]
    return head_of("GET", FEED_PATH, asked)


async def _ask_all(connection: ReplicaConnection, questions: asyncio.Queue[Ask]) -> None:
    # The task that reads from this connection notices its end, and begins again.
    with contextlib.suppress(UpstreamError):
        while True:
            line = encoded(await questions.get())
            await connection.send(b"%x\r\n%s\r\n" % (len(line), line))
