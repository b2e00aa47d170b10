"""LogStore writes what runners send and gives it to any number of readers as it arrives."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

from controller.aio import Flag
from controller.logs import parts, segments, windows
from controller.logs.copies import Copies
from controller.logs.newest import NewestPieces
from controller.logs.parts import LogBucket, PartWriter
from controller.logs.search import LogSearch, Wanted, search
from controller.logs.segments import SegmentWriter, Written
from controller.logs.windows import KnownLog, LogWindow
from controller.outputs.bucket import BucketError
from controller.outputs.bucket_threads import BucketThreads
from fairlead.queries import WindowQuery
from fairlead.wire.frames import Decoder, Frame

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

HearStored = Callable[[str, list[Frame]], None]

THREADS = 4
BUCKET_THREADS = 8
SMALL_BYTES = 16 << 10
"""A larger piece is sent at once: a reader's rests would hold up a log that comes fast."""
REMEMBERED_LOGS = 16
"""So many logs that were read in windows are remembered with what was learnt of them."""
REMEMBERED_FINALS = 10_000
"""So many final attempts are remembered: a reader that begins just as one becomes final must learn
of it."""


def _nobody_hears(attempt_id: str, frames: list[Frame]) -> None: ...


class _Follow:
    """The events on which the readers of one attempt wait."""

    def __init__(self) -> None:
        self.readers: set[Flag] = set()
        self.ended = False
        self._end = Flag()

    def finish(self) -> None:
        self.ended = True
        self._end.set()
        self.wake()

    async def rest(self, seconds: float) -> None:
        """Return after this time, and at once when the log ends."""
        if seconds:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._end.wait()

    def wake(self) -> None:
        for event in self.readers:
            event.set()


class LogWriter:
    """Appends to one attempt's log.

    `end` is the offset up to which it is written; resume the source there. The next writer of the
    same attempt is given out when this one is closed.
    """

    def __init__(self, store: LogStore, attempt_id: str, turn: asyncio.Lock) -> None:
        self._store = store
        self._attempt_id = attempt_id
        self._turn = turn
        self._writer = SegmentWriter(store.folder_of(attempt_id))
        self._parts: PartWriter | None = None
        self._decoder = Decoder()
        self._is_closed = False
        self.is_complete = False
        """Whether the log here was complete when this writer was opened."""

    @property
    def is_for_bucket(self) -> bool:
        """Whether `sync` puts a part into the bucket."""
        return self._parts is not None

    @property
    def waiting(self) -> int:
        """Bytes that are to come to the bucket and are not there."""
        return 0 if self._parts is None else max(0, self.end - self._parts.end)

    @property
    def end(self) -> int:
        return self._writer.end

    @property
    def torn(self) -> int:
        """Bytes of a frame that is not whole yet."""
        return self._decoder.pending

    async def open(self) -> None:
        self._parts = await self._store.part_writer(self._attempt_id)
        self.is_complete = await self._store.in_thread(self._writer.open)

    async def append(self, data: bytes) -> list[Frame]:
        """Append a piece of a stream of frames; return those that are whole now.

        Raises BadFrame (frames before the bad one are stored) and OSError (begin again at `end`,
        with a new writer).
        """
        frames: list[Frame] = []
        came_whole, encoded = not self._decoder.pending, None
        try:
            for frame in self._decoder.feed(data):
                frames.append(frame)
            if came_whole and not self._decoder.pending:
                encoded = data
        finally:
            if frames:
                # Its thread goes on when the caller is cancelled, and what it writes is heard of.
                appending = self._store.begin_in_thread(self._writer.append, frames, encoded)
                appending.add_done_callback(partial(self._appended, frames))
                await asyncio.shield(appending)
        return frames

    def _appended(self, frames: list[Frame], appending: asyncio.Future[Written | None]) -> None:
        """Tell of frames that are stored. A disk that took them, but no new segment after them,
        raised an error."""
        has_failed = appending.cancelled() or appending.exception() is not None
        written = None if has_failed or self._is_closed else appending.result()
        stored = [one for one in frames if one.end <= self._writer.end] if has_failed else frames
        self._store.stored(self._attempt_id, stored)
        if written is None:
            self._store.forget_newest(self._attempt_id)
        self._store.wake(self._attempt_id, written)

    async def sync(self) -> int:
        """Make everything before the returned offset survive a power cut; with a bucket, the loss
        of this disk. Raises OSError."""
        end = await self._store.in_thread(self._writer.sync)
        if self._parts is not None:
            with self._store.noting(self._attempt_id):
                return await self._store.in_bucket_thread(self._parts.put, end)
        return end

    async def close(self) -> None:
        """Close the writer in its thread, also when cancelled; only then the next writer begins."""
        self._is_closed = True
        self._store.closed(self._attempt_id, self)
        closing = asyncio.ensure_future(self._store.in_thread(self._writer.close))
        # Not in a `finally`: when this caller is cancelled, the next writer waits for the thread.
        closing.add_done_callback(lambda _: self._turn.release())
        await asyncio.shield(closing)


async def read_from(
    pool: ThreadPoolExecutor | None, folder: Path, offset: int
) -> AsyncGenerator[bytes, None]:
    """Yield the whole frames in a log's folder from `offset` on. None: the loop's own threads."""
    in_thread = asyncio.get_running_loop().run_in_executor
    position = await in_thread(pool, segments.locate, folder, offset)
    while True:
        data, position = await in_thread(pool, segments.read_frames, folder, position)
        if not data:
            return
        yield segments.cut(data, offset)


class LogStore:
    """The logs of all attempts below one folder, which is a copy where there is a bucket.

    Complete logs that were here before the bucket stay here. With a bucket, every method may raise
    BucketError. `stored` hears of frames that were stored; it must not wait.
    """

    def __init__(
        self, folder: Path, bucket: LogBucket | None = None, stored: HearStored = _nobody_hears
    ) -> None:
        self.stored = stored
        self._folder = folder
        self._bucket = bucket
        self._writers: dict[str, LogWriter] = {}
        self._ended: asyncio.Queue[str] = asyncio.Queue()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="logs")
        # Of its own: what waits for a slow bucket keeps no log from the disk.
        self._bucket_threads = BucketThreads(BUCKET_THREADS, "log-parts")
        self._copies = Copies(
            bucket,
            self.folder_of,
            self._pool,
            self._bucket_threads,
            is_written=lambda attempt_id: attempt_id in self._writers,
            renewed=self._copy_renewed,
        )
        self._follows: dict[str, _Follow] = {}
        self._newest = NewestPieces()
        self._lately_final: dict[str, None] = {}
        self._known: dict[str, KnownLog] = {}
        self._turns_to_write: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._refused: set[str] = set()
        self._left: dict[str, int] = {}
        """Bytes that wait of logs that nobody writes at the moment: their bucket failed."""

    def close(self) -> None:
        # A bucket that doesn't answer must not hold up the next leader.
        if self._bucket is not None:
            self._bucket.close()
        self._bucket_threads.close()
        self._pool.shutdown(wait=True)

    @property
    def waiting(self) -> int:
        """Bytes that are to come to the bucket and are not there."""
        left = sum(size for id, size in self._left.items() if id not in self._writers)
        return left + sum(writer.waiting for writer in self._writers.values())

    @property
    def refused(self) -> int:
        """Logs of live attempts for which the bucket failed when it was last asked. Next to
        `waiting`: a leader that began while the bucket is away has no bytes to count."""
        return len(self._refused)

    @contextlib.contextmanager
    def noting(self, attempt_id: str) -> Iterator[None]:
        """Note whether the bucket fails what stores this log."""
        try:
            yield
        except BucketError:
            self._refused.add(attempt_id)
            raise
        self._refused.discard(attempt_id)

    async def writer(self, attempt_id: str) -> LogWriter:
        """Return a writer; waits until the previous one is closed. Raises OSError."""
        turn = self._turns_to_write.get(attempt_id)
        if turn is None:
            turn = self._turns_to_write[attempt_id] = asyncio.Lock()
        await turn.acquire()
        writer = LogWriter(self, attempt_id, turn)
        try:
            with self.noting(attempt_id):
                await writer.open()
        # Also when it is cancelled: nobody else would close it.
        except BaseException:
            await writer.close()
            raise
        self._left.pop(attempt_id, None)
        self._writers[attempt_id] = writer
        return writer

    async def writer_of_rest(self, attempt_id: str) -> LogWriter | None:
        """Return a writer as `writer` does; None: the log is complete. Raises OSError."""
        # What is here of a log in a bucket may be older, so that is asked before anything is cut.
        if self._bucket is not None and await self.is_complete(attempt_id):
            return None
        writer = await self.writer(attempt_id)
        if not writer.is_complete:
            return writer
        await writer.close()
        return None

    async def part_writer(self, attempt_id: str) -> PartWriter | None:
        """Return what puts this log into the bucket; None: there is no bucket."""
        return await self._copies.writer(attempt_id)

    def closed(self, attempt_id: str, writer: LogWriter) -> None:
        self._newest.forget(attempt_id)
        if self._writers.get(attempt_id) is writer:
            del self._writers[attempt_id]
            if writer.waiting and attempt_id in self._refused:
                self._left[attempt_id] = writer.waiting
            # The next writer begins where the bucket ends then.
            self._copies.of(attempt_id).is_settled = False

    async def complete(self, attempt_id: str) -> None:
        """Record durably that no byte will follow; readers come to their end."""
        if self._bucket is not None:
            with self.noting(attempt_id):
                await self.in_bucket_thread(self._bucket.complete, attempt_id)
            self._ended.put_nowait(attempt_id)
        await self.in_thread(segments.mark_complete, self.folder_of(attempt_id))
        self.finish(attempt_id)

    async def join_ended(self) -> None:
        """Join the parts of each log that is complete, until cancelled. A log that this misses
        stays in its parts."""
        while True:
            attempt_id = await self._ended.get()
            assert self._bucket is not None
            try:
                await self._copies.fill(attempt_id)
                folder = self.folder_of(attempt_id)
                await self.in_bucket_thread(parts.join, self._bucket, folder, attempt_id)
            # Apart they are read as well: joined, a long log only costs fewer questions.
            except OSError as error:
                log.warning("the parts of the log of %s stay apart: %s", attempt_id, error)

    async def is_complete(self, attempt_id: str) -> bool:
        """Return whether all is stored. For what collects the log, which asks until it is told."""
        with self.noting(attempt_id):
            return await self._has(attempt_id, self.folder_of(attempt_id) / segments.COMPLETE_NAME)

    async def is_kept(self, attempt_id: str) -> bool:
        """Return whether any part of its log is stored, an empty log included."""
        return await self._has(attempt_id, self.folder_of(attempt_id))

    async def _has(self, attempt_id: str, path: Path) -> bool:
        # What is here is in the bucket, or older than that.
        if self._bucket is not None and not await self.in_thread(path.exists):
            await self._copies.settle(attempt_id)
        return await self.in_thread(path.exists)

    async def reach(self, attempt_id: str) -> None:
        """Raise BucketError if neither this disk nor the bucket gives the log now. Ask before an
        answer begins, which could only break."""
        await self._copies.reach(attempt_id)

    async def sweep(self, needed: Collection[str], written_before: float) -> int:
        """Remove the logs of attempts that are not `needed` and were last written before then (Unix
        time).

        Return how many, of those here. Raises OSError.
        """
        removed = await self.in_thread(segments.sweep, self._folder, needed, written_before)
        if self._bucket is not None:
            try:
                await self.in_bucket_thread(self._bucket.sweep, needed, written_before)
            # What is due stays due: the next sweep asks again.
            except BucketError as error:
                log.warning("expired logs stay in their bucket for now: %s", error)
        return removed

    def finish(self, attempt_id: str) -> None:
        """End the attempt's readers after what is stored: the attempt is final."""
        self._refused.discard(attempt_id)
        self._left.pop(attempt_id, None)
        self._lately_final[attempt_id] = None
        if len(self._lately_final) > REMEMBERED_FINALS:
            del self._lately_final[next(iter(self._lately_final))]
        follow = self._follows.get(attempt_id)
        if follow is not None:
            follow.finish()

    async def read(self, attempt_id: str, offset: int) -> AsyncGenerator[bytes, None]:
        """Yield whole frames, from `offset` to what is stored now."""
        await self._copies.fill(attempt_id)
        require_kept = self._copies.of(attempt_id).kept()
        async for piece in read_from(self._pool, self.folder_of(attempt_id), offset):
            require_kept()
            yield piece
        require_kept()

    async def follow(
        self, attempt_id: str, offset: int, rest: float = 0.0
    ) -> AsyncGenerator[bytes, None]:
        """Yield as `read` does, then what is added, until the log is complete or the attempt
        final. `rest`: seconds after a small piece in which more is gathered."""
        await self._copies.fill(attempt_id)
        require_kept, folder = self._copies.of(attempt_id).kept(), self.folder_of(attempt_id)
        follow = self._follows.setdefault(attempt_id, _Follow())
        event = Flag()
        follow.readers.add(event)
        try:
            # Registered first: an end that comes while the disk is asked is told through `follow`.
            marker = folder / segments.COMPLETE_NAME
            ended = attempt_id in self._lately_final or await self.in_thread(marker.exists)
            position = await self.in_thread(segments.locate, folder, offset)
            while True:
                # Both before the read: what comes during it wakes the reader again, and what was
                # stored before the end is still given.
                event.clear()
                ended = ended or follow.ended
                if newest := self._newest.at(attempt_id, position):
                    data, after = newest.data, newest.after
                elif not ended and self._newest.is_end(attempt_id, position):
                    data, after = b"", position
                else:
                    data, after = await self.in_thread(segments.read_frames, folder, position)
                require_kept()
                if data:
                    yield segments.cut(data, offset)
                    position = after
                    if len(data) < SMALL_BYTES:
                        await follow.rest(rest)
                elif ended:
                    return
                else:
                    await event.wait()
        finally:
            follow.readers.discard(event)
            if not follow.readers:
                self._follows.pop(attempt_id, None)
                self._newest.forget(attempt_id)

    async def window(self, attempt_id: str, query: WindowQuery) -> LogWindow:
        await self._copies.fill(attempt_id)
        known, folder = self._know(attempt_id), self.folder_of(attempt_id)
        return await self.in_thread(windows.window, known, folder, query)

    async def search(self, attempt_id: str, wanted: Wanted, offset: int, most: int) -> LogSearch:
        """Search a bounded part of the log from `offset` on."""
        await self._copies.fill(attempt_id)
        known, folder = self._know(attempt_id), self.folder_of(attempt_id)
        return await self.in_thread(search, known, folder, wanted, offset, most)

    def _know(self, attempt_id: str) -> KnownLog:
        """Return what is known of the log; the one that was asked for longest ago is forgotten."""
        known = self._known.pop(attempt_id, None) or KnownLog(self.folder_of(attempt_id))
        self._known[attempt_id] = known
        if len(self._known) > REMEMBERED_LOGS:
            del self._known[next(iter(self._known))]
        return known

    def wake(self, attempt_id: str, written: Written | None = None) -> None:
        follow = self._follows.get(attempt_id)
        if follow is not None:
            if written is not None:
                self._newest.add(attempt_id, written)
            follow.wake()

    def _copy_renewed(self, attempt_id: str) -> None:
        # If the copy was dropped, its index leads nowhere, and its readers must not wait.
        self._known.pop(attempt_id, None)
        self.wake(attempt_id)

    def forget_newest(self, attempt_id: str) -> None:
        """Let the log's readers ask the disk."""
        self._newest.forget(attempt_id)

    async def in_thread(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.begin_in_thread(call, *args, **kwargs)

    def begin_in_thread(
        self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[R]:
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._pool, lambda: call(*args, **kwargs))

    async def in_bucket_thread(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a call that asks the bucket."""
        return await self._bucket_threads.ask(call, *args, **kwargs)

    def folder_of(self, attempt_id: str) -> Path:
        return self._folder / attempt_id[:2] / attempt_id
