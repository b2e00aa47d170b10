"""Who may speak for a run, kept: the book of fences is on disk before a request has an effect."""

from __future__ import annotations

import logging
import time

import msgspec

from shim.fences import KEPT_AFTER_LAST_TASK, UNKNOWN_REMEMBERED, FenceBook
from shim.records import FenceRecord, Records
from shim.schemas import Fence

log = logging.getLogger(__name__)


class Speaker(msgspec.Struct, frozen=True):
    """Who asks, and for which run: the fenced headers of a request."""

    run_id: str
    fence: Fence
    incarnation: int


class Fences:
    """The checks raise ShimProblem; what writes raises OSError, and may be asked again then."""

    def __init__(self, book: FenceBook, records: Records[FenceRecord]) -> None:
        self._book = book
        self._records = records
        self._unkept: set[str] = set()

    def check(self, speaker: Speaker) -> None:
        self._book.check(speaker.run_id, speaker.fence, speaker.incarnation)

    def check_for_task(self, speaker: Speaker, own: int | None) -> None:
        """A task may be spoken for by its `own` incarnation and each later one; one that is not
        known (None), by any."""
        newest = self._book.get(speaker.run_id)
        latest = newest.incarnation if newest else speaker.incarnation
        fits = latest if own is None or speaker.incarnation >= own else speaker.incarnation
        self._book.check(speaker.run_id, speaker.fence, fits)

    def check_revival(self, task_id: str, speaker: Speaker) -> None:
        self._book.check_revival(speaker.run_id, task_id, time.time())

    async def hear(self, speaker: Speaker) -> None:
        """From now on an older fence is refused."""
        record = self._book.raise_to(speaker.run_id, speaker.fence, speaker.incarnation)
        if record is None and speaker.run_id in self._unkept:
            record = self._book.get(speaker.run_id)
        await self._save(record)

    async def remember_unknown(self, task_id: str, speaker: Speaker, run_is_used: bool) -> None:
        """A task that was stopped before it came is refused for a while."""
        now = time.time()
        self._book.raise_to(speaker.run_id, speaker.fence, speaker.incarnation)
        record = self._book.forget(speaker.run_id, task_id, now + UNKNOWN_REMEMBERED, now)
        if not run_is_used:
            record = self._book.expire(speaker.run_id, now + KEPT_AFTER_LAST_TASK)
        await self._save(record)

    async def forget(self, run_id: str, task_id: str, run_is_used: bool) -> None:
        """The id of a task that is gone is refused for as long as its run's fence is kept."""
        now = time.time()
        record = self._book.forget(run_id, task_id, now + KEPT_AFTER_LAST_TASK, now)
        if not run_is_used:
            record = self._book.expire(run_id, now + KEPT_AFTER_LAST_TASK)
        await self._save(record)

    async def drop_expired(self) -> None:
        for run_id in self._book.drop_expired(time.time()):
            try:
                await self._records.delete(run_id)
            except OSError as error:
                log.warning("the expired fence of run %s stays on disk: %s", run_id, error)

    async def _save(self, record: FenceRecord | None) -> None:
        if record is not None:
            self._unkept.add(record.run_id)
            await self._records.save(record.run_id, record)
            self._unkept.discard(record.run_id)
