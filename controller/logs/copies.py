"""The copies of logs on this disk, where the bucket decides: whether one is as new as the bucket's
log, and whether it is whole.

A reader first asks for what its disk lacks. A bucket that is away keeps nobody from what is here.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from controller.logs import parts
from controller.logs.parts import LogBucket, PartWriter
from controller.outputs.bucket import BucketError
from controller.outputs.bucket_threads import BucketThreads

P = ParamSpec("P")
R = TypeVar("R")

SLOW_SECONDS = 5.0
"""A bucket that failed after so long doesn't answer."""
AWAY_SECONDS = 10.0
"""Readers are refused at once for so long then: each of them would else wait, one after another."""
REMEMBERED_COPIES = 10_000


class Copies:
    """`bucket`: None, each log here is all that there is of it. `pool`: for the disk, `threads`:
    for the bucket. `is_written`: whether a log has a writer here, which keeps the copy newer than
    the bucket. `renewed`: hears of a copy that may have been dropped."""

    def __init__(
        self,
        bucket: LogBucket | None,
        folder_of: Callable[[str], Path],
        pool: ThreadPoolExecutor,
        threads: BucketThreads,
        is_written: Callable[[str], bool],
        renewed: Callable[[str], None],
    ) -> None:
        self._bucket = bucket
        self._folder_of = folder_of
        self._pool = pool
        self._threads = threads
        self._is_written = is_written
        self._renewed = renewed
        self._copies: dict[str, Copy] = {}
        self._away_until = -math.inf
        self._why_away = ""

    def of(self, attempt_id: str) -> Copy:
        """Return what is known of the copy; those that were asked for longest ago are forgotten."""
        copy = self._copies.pop(attempt_id, None) or Copy()
        self._copies[attempt_id] = copy
        if len(self._copies) > REMEMBERED_COPIES:
            oldest = next(iter(self._copies))
            if not self._copies[oldest].is_in_use:
                del self._copies[oldest]
        return copy

    async def settle(self, attempt_id: str) -> None:
        """Make sure that the copy is not older than the bucket. Raises BucketError."""
        if self._bucket is not None:
            copy = self.of(attempt_id)
            async with copy.lock:
                await self._settle(self._bucket, attempt_id, copy)

    async def fill(self, attempt_id: str) -> None:
        """Fetch what this disk lacks of the log. Raises BucketError."""
        folder = self._folder_of(attempt_id)
        if self._bucket is None or await self._in_thread(parts.is_final, folder):
            return
        copy = self.of(attempt_id)
        async with copy.lock:
            try:
                await self._settle(self._bucket, attempt_id, copy)
                if not await self._in_thread(parts.is_whole, folder):
                    await self._ask(copy, parts.fill, self._bucket, folder, attempt_id)
            except BucketError:
                # A bucket that is away keeps nobody from what is here.
                if not await self._in_thread(parts.is_whole, folder):
                    raise

    async def reach(self, attempt_id: str) -> None:
        """Raise BucketError if neither this disk nor the bucket gives the log now."""
        folder = self._folder_of(attempt_id)
        if self._bucket is None or await self._in_thread(parts.is_final, folder):
            return
        copy = self.of(attempt_id)
        async with copy.lock:
            if not await self._in_thread(parts.is_whole, folder):
                await self._ask(copy, self._bucket.parts, attempt_id)

    async def writer(self, attempt_id: str) -> PartWriter | None:
        """Return what puts this log into the bucket, from where that ends; None: there is no
        bucket. Raises BucketError."""
        if self._bucket is None:
            return None
        folder, copy = self._folder_of(attempt_id), self.of(attempt_id)
        async with copy.lock:
            await self._settle(self._bucket, attempt_id, copy)
            await self._in_thread(parts.begin_at, folder, copy.end)
            return PartWriter(self._bucket, folder, attempt_id, copy.end)

    async def _settle(self, bucket: LogBucket, attempt_id: str, copy: Copy) -> None:
        # A writer keeps the copy newer than the bucket.
        if not copy.is_settled and not self._is_written(attempt_id):
            folder = self._folder_of(attempt_id)
            settling = self._ask(copy, parts.settle, bucket, folder, attempt_id, copy.drop)
            copy.end = await settling
            copy.is_settled = True
            self._renewed(attempt_id)

    async def _ask(self, copy: Copy, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a call that asks the bucket about a copy, whose lock is held.

        Its thread goes on when the caller is cancelled, as by a reader that leaves. Two at once
        would mix their files, so the next call waits for that thread.
        """
        while copy.running is not None and not copy.running.done():
            # Its own caller gets the error; only its end matters here.
            with contextlib.suppress(Exception):
                await asyncio.wrap_future(copy.running)
        began = time.monotonic()
        if began < self._away_until:
            raise BucketError(self._why_away)
        copy.running = running = self._threads.submit(call, *args, **kwargs)
        try:
            return await asyncio.wrap_future(running)
        except BucketError as error:
            ended = time.monotonic()
            # A refusal at once costs no time. A bucket that is slow to fail would hold up each
            # caller.
            if ended - began >= SLOW_SECONDS:
                self._away_until, self._why_away = ended + AWAY_SECONDS, str(error)
            raise

    async def _in_thread(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: call(*args, **kwargs))


class Copy:
    """What is known of one log's copy."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.running: Future[Any] | None = None
        """What works on it in a thread; its caller may be gone."""
        self.is_settled = False
        self.end = 0
        """The bucket's end of the log, when it was settled."""
        self._drops = 0

    @property
    def is_in_use(self) -> bool:
        return self.lock.locked() or (self.running is not None and not self.running.done())

    def drop(self) -> None:
        """Note that it goes. Called in the thread that removes it, before that does."""
        self._drops += 1

    def kept(self) -> Callable[[], None]:
        """Return what raises BucketError if the copy has been dropped since.

        One that another controller has passed can be read while the bucket is away. When that is
        back, the copy goes on where the bucket ends, beyond what its readers have. Without this
        they would miss the bytes between, and not notice; so they are cut, and come again.
        """
        drops = self._drops

        def require_kept() -> None:
            if self._drops != drops:
                raise BucketError("this disk's copy of the log was older than the bucket's")

        return require_kept
