"""Logs that are whole in the bucket, in a bounded folder of copies: a follower reads them here.

A follower neither owns a log nor writes to its bucket. It fetches a log that will never change, up
to a size, and reads the copy as the leader reads its own, so that both give the same bytes.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import secrets
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from controller.logs import parts
from controller.logs.parts import LogBucket, Parts
from controller.logs.search import LogSearch, Wanted, search
from controller.logs.segments import Position, read_frames
from controller.logs.store import read_from
from controller.logs.windows import KnownLog, LogWindow, window
from controller.outputs.bucket_threads import BucketThreads
from controller.replica.alone import NeedsLeader
from fairlead.queries import WindowQuery
from fairlead.wire.frames import BadFrame, span_at

log = logging.getLogger(__name__)

FOLDER_NAME = "followed-logs"
MAX_BYTES = 1 << 30
"""Of all copies together."""
MAX_LOG_BYTES = 256 << 20
"""A longer log is the leader's, which has it on its disk."""
MIN_FREE_BYTES = 1 << 30
"""So much of the disk stays free beside the copies: this controller may have to lead."""
MAX_COPIES = 1000
MAX_FETCHES = 4
"""Each has one part in memory."""
WAIT_SECONDS = 5.0
"""So long a reader waits for a copy; then the leader answers, and the copy still comes."""
AWAY_SECONDS = 10.0
"""For so long no reader waits for a bucket that did not answer, or for a log that was not whole."""
UNREAD_SECONDS = 3600.0
"""A copy that nobody has read for so long is removed: retention does not know it."""
CHECK_SECONDS = 60.0
"""A log that retention has removed from the bucket is read here for so long at most."""


class WholeLog:
    """A copy to which nothing will be added."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known = KnownLog(folder)

    def goes_to(self, end: int) -> bool:
        """Return whether each byte before `end` is here, and none after it. Blocking. Raises
        BadFrame."""
        at, position = 0, Position(0, 0)
        while True:
            data, position = read_frames(self.folder, position)
            if not data:
                return at == end
            passed = 0
            while (span := span_at(data, passed)) is not None:
                if span.start != at:
                    return False
                at, passed = span.end, passed + span.size

    def read(self, offset: int) -> AsyncGenerator[bytes, None]:
        return read_from(None, self.folder, offset)

    async def window(self, query: WindowQuery) -> LogWindow:
        return await asyncio.to_thread(window, self._known, self.folder, query)

    async def search(self, wanted: Wanted, offset: int, most: int) -> LogSearch:
        return await asyncio.to_thread(search, self._known, self.folder, wanted, offset, most)


class _Copy:
    """`coming`: what fetches or checks it. Readers keep it on the disk."""

    def __init__(self, log: WholeLog) -> None:
        self.log = log
        self.readers = 0
        self.read_at = 0.0
        self.size = 0
        """Bytes of the folder that are this copy's."""
        self.is_here = False
        self.coming: asyncio.Task[None] | None = None
        self.fresh_until = -math.inf
        """Until then neither the copy nor its absence is asked for again."""

    @property
    def is_busy(self) -> bool:
        return self.readers > 0 or self.coming is not None


class FinalLogs:
    """`opened` returns the bucket for the id of an installation; None: there is none. The folder
    belongs to this object alone."""

    def __init__(self, folder: Path, opened: Callable[[str], LogBucket | None]) -> None:
        self._folder = folder
        self._opened = opened
        self._bucket: LogBucket | None = None
        self._copies: dict[str, _Copy] = {}
        # Nothing that an earlier process left, and could not be removed, is taken for a copy.
        self._life = secrets.token_hex(4)
        self._numbers = itertools.count()
        self._threads = BucketThreads(MAX_FETCHES, "followed-logs")
        self._away_until = -math.inf
        self._tidying: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Remove what an earlier process has left."""
        # Copies of before a power cut may be half written, and nothing says which.
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
        self._tidying = asyncio.create_task(self._tidy())

    async def close(self) -> None:
        if self._bucket is not None:
            self._bucket.close()
        self._threads.close()
        tasks = (self._tidying, *(copy.coming for copy in self._copies.values()))
        begun = [task for task in tasks if task is not None]
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(UNREAD_SECONDS / 4)
            await self.forget_unread(asyncio.get_running_loop().time() - UNREAD_SECONDS)

    async def forget_unread(self, since: float) -> None:
        """Remove the copies that nobody has read since then, by the loop's clock."""
        copies = tuple(self._copies.items())
        await self._remove(
            [key for key, copy in copies if copy.read_at < since and not copy.is_busy]
        )

    async def _remove(self, attempt_ids: Iterable[str]) -> None:
        # All leave the list before the first wait: nobody begins to read what is being removed.
        for copy in [self._copies.pop(attempt_id) for attempt_id in attempt_ids]:
            if copy.size:
                await asyncio.to_thread(shutil.rmtree, copy.log.folder, ignore_errors=True)

    @asynccontextmanager
    async def held(self, installation_id: str, attempt_id: str) -> AsyncIterator[WholeLog]:
        """Keep the copy of this log, whose attempt is final, on the disk within the block.

        Raises NeedsLeader if the log is not whole in the bucket, is too long, or does not come
        soon.
        """
        if self._bucket is None:
            self._bucket = self._opened(installation_id)
        if self._bucket is None:
            raise NeedsLeader
        copy = self._copies.pop(attempt_id, None)
        if copy is None:
            copy = _Copy(WholeLog(self._folder / f"{self._life}-{next(self._numbers)}"))
        self._copies[attempt_id] = copy  # the last one: the first ones are removed first
        copy.read_at = asyncio.get_running_loop().time()
        copy.readers += 1
        try:
            if len(self._copies) > MAX_COPIES:
                first = next((key for key, one in self._copies.items() if not one.is_busy), None)
                await self._remove([] if first is None else [first])
            await self._until_here(self._bucket, attempt_id, copy)
            yield copy.log
        finally:
            copy.readers -= 1

    async def _until_here(self, bucket: LogBucket, attempt_id: str, copy: _Copy) -> None:
        now = asyncio.get_running_loop().time
        if copy.coming is None and now() >= copy.fresh_until:
            coming = sum(one.coming is not None for one in self._copies.values())
            if now() < self._away_until or coming >= MAX_FETCHES:
                raise NeedsLeader
            copy.coming = asyncio.create_task(self._come(bucket, attempt_id, copy))
        elif copy.coming is not None and now() < self._away_until:
            raise NeedsLeader
        if copy.coming is not None:
            try:
                async with asyncio.timeout(WAIT_SECONDS):
                    # Several readers wait for it: one that leaves must not end it for the others.
                    await asyncio.shield(copy.coming)
            except TimeoutError:
                self._away_until = now() + AWAY_SECONDS
        if not copy.is_here:
            raise NeedsLeader

    async def _come(self, bucket: LogBucket, attempt_id: str, copy: _Copy) -> None:
        """Let the copy be here if the bucket has the whole log."""
        was_here, copy.is_here = copy.is_here, False
        try:
            found = await self._threads.ask(bucket.parts, attempt_id)
            if found.is_whole:
                copy.is_here = was_here or await self._fetched(bucket, attempt_id, copy, found)
        # BadFrame: a part is damaged. What is said of it is the leader's.
        except (OSError, BadFrame) as error:
            log.info("the log of attempt %s is left to the leader: %s", attempt_id, error)
        finally:
            seconds = CHECK_SECONDS if copy.is_here else AWAY_SECONDS
            copy.fresh_until = asyncio.get_running_loop().time() + seconds
            copy.coming = None

    async def _fetched(self, bucket: LogBucket, attempt_id: str, copy: _Copy, found: Parts) -> bool:
        if found.size > MAX_LOG_BYTES or not await self._make_room(found.size, copy):
            return False
        folder = copy.log.folder
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True, mode=0o700)
        if (await asyncio.to_thread(shutil.disk_usage, folder)).free < found.size + MIN_FREE_BYTES:
            return False
        await self._threads.ask(parts.fill, bucket, folder, attempt_id)
        return await asyncio.to_thread(copy.log.goes_to, found.end)

    async def _make_room(self, size: int, copy: _Copy) -> bool:
        """Give the copy so many bytes of the folder; return whether there are so many."""
        others = {key: one for key, one in self._copies.items() if one is not copy}
        left = MAX_BYTES - size - sum(one.size for one in others.values())
        leaving = []
        for key, one in others.items():
            if left >= 0:
                break
            if not one.is_busy:
                left += one.size
                leaving.append(key)
        if left >= 0:
            copy.size = size
            await self._remove(leaving)
        return left >= 0
