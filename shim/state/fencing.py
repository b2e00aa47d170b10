"""Fencing decides which controller may still command a run, and keeps that on disk.

A controller that lost its lease, or a delayed request, must revive nothing. The book keeps, for
each run, the highest `(epoch, token)` and incarnation that the shim has acted on, and the ids of
removed tasks, until seven days after the run's last task. The book is pure; `Fences` makes each
change durable before the request has an effect.
"""

from __future__ import annotations

import logging
import time

import msgspec

from fairlead.wire.errors import Refused
from fairlead.wire.shim import Fence, RefusalCode
from shim.state.records import FenceRecord, Records

KEPT_AFTER_LAST_TASK = 7 * 24 * 3600.0
UNKNOWN_REMEMBERED = 600.0
MAX_FORGOTTEN = 4096


class FenceBook:
    def __init__(self, records: dict[str, FenceRecord] | None = None) -> None:
        self._records = dict(records or {})

    def get(self, run_id: str) -> FenceRecord | None:
        return self._records.get(run_id)

    def check(self, run_id: str, fence: Fence, incarnation: int) -> None:
        """Raise Refused (409 `fenced`) for an older fence, or an older incarnation in the same
        epoch.

        A database that was restored from a backup counts incarnations from what it knew then.
        """
        known = self._records.get(run_id)
        if known is None:
            return
        if fence < known.fence:
            raise _fenced(
                f"fence {fence.header()} of run {run_id} is older than {known.fence.header()}"
            )
        if incarnation < known.incarnation and fence.epoch == known.fence.epoch:
            raise _fenced(
                f"incarnation {incarnation} of run {run_id} is older than {known.incarnation}"
            )

    def check_for_task(self, run_id: str, fence: Fence, incarnation: int, own: int | None) -> None:
        """Check a request about a task: its `own` incarnation and each later one may command it. An
        unknown task (None) accepts any."""
        if own is not None and incarnation < own:
            self.check(run_id, fence, incarnation)
        else:
            known = self._records.get(run_id)
            self.check(run_id, fence, incarnation if known is None else known.incarnation)

    def check_revival(self, run_id: str, task_id: str, now: float) -> None:
        """Raise Refused (409 `terminated`) for the id of a removed task."""
        known = self._records.get(run_id)
        if known is not None and known.forgotten.get(task_id, 0.0) > now:
            raise Refused(
                409,
                "terminated",
                f"task {task_id} was terminated or removed before this request; "
                "a new attempt needs a new id",
            )

    def raise_to(self, run_id: str, fence: Fence, incarnation: int) -> FenceRecord | None:
        """Remember the pair; return the record to keep, or None when nothing is new."""
        known = self._records.get(run_id)
        if known is None:
            return self._put(FenceRecord(run_id=run_id, fence=fence, incarnation=incarnation))
        newest = max(known.incarnation, incarnation)
        # A database restored from a backup counts its incarnations from there (docs/rules.md 7.8).
        if fence.epoch > known.fence.epoch:
            newest = incarnation
        higher = max(known.fence, fence), newest
        if higher == (known.fence, known.incarnation) and known.expires_at is None:
            return None
        return self._put(
            msgspec.structs.replace(known, fence=higher[0], incarnation=higher[1], expires_at=None)
        )

    def forget(self, run_id: str, task_id: str, until: float, now: float) -> FenceRecord | None:
        """Refuse a later PUT of `task_id` until `until`. The run must have a fence."""
        known = self._records.get(run_id)
        if known is None:
            return None
        kept = {key: at for key, at in known.forgotten.items() if at > now and key != task_id}
        if len(kept) >= MAX_FORGOTTEN:
            for oldest in sorted(kept, key=kept.__getitem__)[: len(kept) - MAX_FORGOTTEN + 1]:
                del kept[oldest]
        kept[task_id] = max(until, known.forgotten.get(task_id, 0.0))
        return self._put(msgspec.structs.replace(known, forgotten=kept))

    def expire(self, run_id: str, at: float) -> FenceRecord | None:
        known = self._records.get(run_id)
        if known is None:
            return None
        return self._put(msgspec.structs.replace(known, expires_at=at))

    def drop_expired(self, now: float) -> tuple[str, ...]:
        """Drop expired runs and return them; the caller deletes their files."""
        gone = tuple(
            run_id
            for run_id, record in self._records.items()
            if record.expires_at is not None and record.expires_at <= now
        )
        for run_id in gone:
            del self._records[run_id]
        return gone

    def _put(self, record: FenceRecord) -> FenceRecord:
        self._records[record.run_id] = record
        return record


def _fenced(message: str) -> Refused:
    return Refused(
        409, RefusalCode.FENCED, f"{message}: another controller speaks for this run now"
    )


log = logging.getLogger(__name__)


class Caller(msgspec.Struct, frozen=True):
    """The controller that makes a request, and the run: the fenced headers."""

    run_id: str
    fence: Fence
    incarnation: int


class Fences:
    """The fences of all runs. The checks raise Refused. Methods that write raise OSError and may
    then be called again."""

    def __init__(self, book: FenceBook, records: Records[FenceRecord]) -> None:
        self._book = book
        self._records = records
        self._unkept: set[str] = set()

    def check(self, caller: Caller) -> None:
        self._book.check(caller.run_id, caller.fence, caller.incarnation)

    def check_for_task(self, caller: Caller, own: int | None) -> None:
        """Check a request about a task of the incarnation `own`."""
        self._book.check_for_task(caller.run_id, caller.fence, caller.incarnation, own)

    def check_revival(self, task_id: str, caller: Caller) -> None:
        self._book.check_revival(caller.run_id, task_id, time.time())

    def incarnation_of(self, run_id: str) -> int:
        """Return the newest known incarnation; 0: none."""
        known = self._book.get(run_id)
        return 0 if known is None else known.incarnation

    async def hear(self, caller: Caller) -> None:
        """Refuse older fences from now on."""
        record = self._book.raise_to(caller.run_id, caller.fence, caller.incarnation)
        # An earlier write failed: the book knows what the disk does not.
        if record is None and caller.run_id in self._unkept:
            record = self._book.get(caller.run_id)
        await self._save(record)

    async def remember_unknown(self, task_id: str, caller: Caller, run_is_used: bool) -> None:
        """Refuse, for a while, a task that was stopped before it came."""
        now = time.time()
        self._book.raise_to(caller.run_id, caller.fence, caller.incarnation)
        record = self._book.forget(caller.run_id, task_id, now + UNKNOWN_REMEMBERED, now)
        if not run_is_used:
            record = self._book.expire(caller.run_id, now + KEPT_AFTER_LAST_TASK)
        await self._save(record)

    async def forget(self, run_id: str, task_id: str, run_is_used: bool) -> None:
        """Refuse the id of a removed task as long as its run's fence is kept."""
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
