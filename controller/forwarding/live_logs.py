"""Logs that grow: a follower gets each once from the leader, and gives it to all its readers.

What comes is kept in a folder of its own for as long as the log has readers here, as the leader
keeps it. So a slow reader holds up no other one, and costs no memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from aiohttp import web

from common.proxy.headers import CLIENT, head_of
from common.proxy.upstream import ResponseHead, UpstreamError
from controller.api.jobs.logs import FoundLog
from controller.forwarding.follower_links import BY_ITSELF, HELD, LOGS_PATH, NOT_DONE, ONLY_FIND
from controller.forwarding.leader_links import (
    LeaderLinks,
    Link,
    NobodyLeads,
    NoLink,
    as_its_client_sent_it,
)
from controller.logs import parts
from controller.logs.store import LogStore
from controller.relay import HOLD_SECONDS, while_it_leads
from controller.replica.alone import NeedsLeader
from fairlead.wire.frames import BadFrame

log = logging.getLogger(__name__)

FOLDER_NAME = "live-logs"
MAX_BYTES = 1 << 30
"""Of all copies together. The copy that goes beyond ends, and its readers come again at the place
where they are."""
MIN_FREE_BYTES = 1 << 30
"""So much of the disk stays free beside them: this controller may have to lead."""
MAX_COPIES = 64
FROM_BEGIN_BYTES = 8 << 20
"""A log is followed from its first byte for a reader who begins before this one, so that those who
come later and begin earlier find it here too."""
BEGIN_SECONDS = 3.0
"""So long a stream that no reader has yet is asked for again. A leader that is just replaced gives
none for a moment; a reader who is sent to the leader stays there."""
FIND_SECONDS = 3.0
"""So long the leader may take to say which log a request is about."""
LOST_SECONDS = 30.0
"""So long a stream is asked for again that no leader gives."""
RETRY_SECONDS = 0.2


class StreamLost(Exception):
    """The stream ended before the log's end. It may be asked for again, where it ended, after so
    many seconds."""

    def __init__(self, seconds: float | None = None) -> None:
        super().__init__()
        self.seconds = RETRY_SECONDS if seconds is None else seconds


LeaderStream = Callable[[str, str, int], AsyncGenerator[bytes, None]]
"""Yields the log of an attempt (of this run, this attempt, from this offset on) as the leader gives
it, and before that an empty piece once the leader has begun. Raises StreamLost, NeedsLeader."""


FindLog = Callable[[web.Request], Awaitable[FoundLog | None]]
"""Returns the live log that the request is about if the leader lets its user read it; None: the
leader has other words for it, is of an earlier version, or does not answer soon."""


class _Copy:
    """The log of one attempt from `start` on."""

    def __init__(self, key: str, run_id: str, attempt_id: str, start: int) -> None:
        self.key = key
        self.run_id = run_id
        self.attempt_id = attempt_id
        self.start = start
        self.size = 0
        self.readers: list[web.Request] = []
        self.is_given = False
        """Whether the leader has begun to give the stream that was asked for last."""
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.coming: asyncio.Task[None] | None = None


class LiveLogs:
    """The folder belongs to this object alone. `find`: None: nothing is asked of the leader."""

    def __init__(self, folder: Path, stream: LeaderStream, find: FindLog | None = None) -> None:
        self._folder = folder
        self._stream = stream
        self._find = find
        self._store = LogStore(folder)
        self._copies: dict[str, _Copy] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Remove what an earlier process has left."""
        # The copies of an earlier process have no readers, and the leader has all of it.
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def close(self) -> None:
        for copy in tuple(self._copies.values()):
            self._leave(copy)
        await asyncio.gather(*self._ending)
        await asyncio.to_thread(self._store.close)

    async def find(self, request: web.Request) -> FoundLog | None:
        """See `FindLog`."""
        return None if self._find is None else await self._find(request)

    @asynccontextmanager
    async def held(
        self, run_id: str, attempt_id: str, offset: int, reader: web.Request
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Give the frames of a live attempt's log from `offset` on, until the attempt has ended.
        If they cannot be given to their end, the reader's connection is cut, and he comes again.

        Raises NeedsLeader for a reader who must have a stream of his own from the leader.
        """
        copy = self._copies.get(attempt_id) or self._begun(run_id, attempt_id, offset)
        if offset < copy.start:
            raise NeedsLeader
        copy.readers.append(reader)
        try:
            # It is shared: one reader who leaves ends it for no other one.
            await asyncio.shield(copy.begun)
            async with contextlib.aclosing(self._store.follow(copy.key, offset)) as pieces:
                yield pieces
        finally:
            copy.readers.remove(reader)
            if not copy.readers:
                self._leave(copy)

    def _begun(self, run_id: str, attempt_id: str, offset: int) -> _Copy:
        if len(self._copies) >= MAX_COPIES:
            raise NeedsLeader
        start = offset if offset > FROM_BEGIN_BYTES else 0
        # The store remembers of an attempt that it has ended; a later copy begins without that.
        copy = _Copy(secrets.token_hex(8), run_id, attempt_id, start)
        self._copies[attempt_id] = copy
        copy.coming = asyncio.create_task(self._come(copy))
        return copy

    def _leave(self, copy: _Copy) -> None:
        self._forget(copy)
        ending = asyncio.create_task(self._end(copy))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    def _forget(self, copy: _Copy) -> None:
        if self._copies.get(copy.attempt_id) is copy:
            del self._copies[copy.attempt_id]

    async def _end(self, copy: _Copy) -> None:
        if copy.coming is not None:
            copy.coming.cancel()
            await asyncio.wait((copy.coming,))
        folder = self._store.folder_of(copy.key)
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _come(self, copy: _Copy) -> None:
        """Let all of the log come. If it cannot, let its readers come again."""
        try:
            await asyncio.to_thread(self._make_room, copy)
            await self._came_whole(copy)
            self._store.finish(copy.key)
        except (NeedsLeader, OSError, BadFrame) as error:
            log.info("the log of attempt %s is left to the leader: %s", copy.attempt_id, error)
            self._fail(copy)
        except BaseException:
            self._fail(copy)
            raise

    def _make_room(self, copy: _Copy) -> None:
        """Blocking. Raises OSError, NeedsLeader."""
        folder = self._store.folder_of(copy.key)
        parts.begin_at(folder, copy.start)
        if shutil.disk_usage(folder).free < MAX_BYTES + MIN_FREE_BYTES:
            raise NeedsLeader

    def _fail(self, copy: _Copy) -> None:
        self._forget(copy)
        if not copy.begun.done():
            copy.begun.set_exception(NeedsLeader())
            # Its readers may be gone.
            copy.begun.exception()
            return
        for reader in copy.readers:
            # What they have must not be taken for the whole log.
            if reader.transport is not None:
                reader.transport.abort()

    async def _came_whole(self, copy: _Copy) -> None:
        """Return at the log's end. Raises NeedsLeader, OSError, BadFrame."""
        now = asyncio.get_running_loop().time
        began_at = given_at = now()
        while True:
            try:
                await self._came(copy)
                return
            except StreamLost as error:
                at = now()
                if copy.is_given:
                    given_at, copy.is_given = at, False
                # A reader whose answer has not begun can be sent to the leader.
                is_late = not copy.begun.done() and at + error.seconds - began_at >= BEGIN_SECONDS
                if is_late or at - given_at >= LOST_SECONDS:
                    raise NeedsLeader from error
                seconds = error.seconds
            await asyncio.sleep(seconds)

    async def _came(self, copy: _Copy) -> None:
        """Append what one stream gives. Raises StreamLost too, if that ends before the log."""
        # A new one each time: what the last one had of a frame that was not whole is gone.
        writer = await self._store.writer(copy.key)
        try:
            stream = self._stream(copy.run_id, copy.attempt_id, writer.end)
            async with contextlib.aclosing(stream) as pieces:
                async for piece in pieces:
                    copy.is_given = True
                    if not copy.begun.done():
                        copy.begun.set_result(None)
                    if sum(one.size for one in self._copies.values()) + len(piece) > MAX_BYTES:
                        raise NeedsLeader
                    copy.size += len(piece)
                    await writer.append(piece)
            if writer.torn:
                raise StreamLost
        finally:
            await writer.close()


class LeaderLogs:
    """The leader's stream of a log over a link. `hold_seconds`: how long it waits for a leader."""

    def __init__(self, links: LeaderLinks, hold_seconds: float = HOLD_SECONDS) -> None:
        self._links = links
        self._hold_seconds = hold_seconds

    async def follow(
        self, run_id: str, attempt_id: str, offset: int
    ) -> AsyncGenerator[bytes, None]:
        """See `LeaderStream`."""
        try:
            link = await self._links.get(self._hold_seconds)
        except (NobodyLeads, NoLink) as error:
            raise NeedsLeader from error
        connection, over = link.connection, link.over
        path = LOGS_PATH.format(run=run_id, attempt=attempt_id)
        asked = [("Host", link.host), (CLIENT, BY_ITSELF)]
        try:
            await connection.send(head_of("GET", f"{path}?offset={offset}", asked))
            head = await while_it_leads(connection.answer("GET"), over)
            if head.status == 503:
                raise StreamLost(_asked_to_wait(head))
            if head.status != 200:
                # One of an earlier version, or the log was removed: it has the words for that.
                raise NeedsLeader
            yield b""
            while data := await while_it_leads(connection.read(), over):
                yield data
        except (UpstreamError, ConnectionError) as error:
            raise StreamLost from error
        finally:
            connection.close()

    async def find(self, request: web.Request) -> FoundLog | None:
        """See `FindLog`."""
        try:
            async with asyncio.timeout(FIND_SECONDS):
                return await _found(await self._links.get(FIND_SECONDS), request)
        except (NobodyLeads, NoLink, UpstreamError, OSError, msgspec.MsgspecError):
            return None


def _asked_to_wait(head: ResponseHead) -> float | None:
    """Return after how many seconds the leader wants to be asked again; None: at once."""
    headers = {name.lower(): value for name, value in head.headers}
    # It leads no more, or not yet: its successor may be there in a moment.
    if NOT_DONE.lower() in headers or HELD.lower() in headers:
        return None
    # Its bucket is away.
    seconds = headers.get("retry-after", "")
    return float(seconds) if seconds.isdecimal() else None


async def _found(link: Link, request: web.Request) -> FoundLog | None:
    """Raises UpstreamError, OSError, MsgspecError."""
    connection, over = link.connection, link.over
    headers = [*as_its_client_sent_it(request), (ONLY_FIND, "1")]
    try:
        await connection.send(head_of("GET", request.raw_path, headers))
        head = await while_it_leads(connection.answer("GET"), over)
        # One of an earlier version refuses it, because it asks for no WebSocket.
        if head.status != 200:
            return None
        body = b""
        while data := await while_it_leads(connection.read(), over):
            body += data
        return msgspec.json.decode(body, type=FoundLog)
    finally:
        # It closes one whose answer was not read to its end.
        link.give_back()
