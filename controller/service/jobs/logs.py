"""The log of a job: what is stored of it, what comes, and what was removed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from common.refusals import Gone
from controller.clock import Clock
from controller.lifecycle.model import Attempt, RunState
from controller.logs.search import LogSearch, Wanted
from controller.logs.windows import LogWindow
from controller.service.jobs.access import AttemptLookup
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES
from fairlead.queries import WindowQuery


class Logs(Protocol):
    """Raw frames (`fairlead.wire.frames`); each piece holds whole ones."""

    async def is_kept(self, attempt_id: str) -> bool:
        """Return whether any part of its log is here, an empty log included."""

    async def reach(self, attempt_id: str) -> None:
        """Raise if the log cannot be read now. An answer that has begun could only break."""

    def read(self, attempt_id: str, offset: int) -> AsyncIterator[bytes]:
        """Yield what is stored now."""

    def follow(self, attempt_id: str, offset: int, rest: float = 0.0) -> AsyncIterator[bytes]:
        """Yield what is stored, then what comes, until the log is complete or the attempt final.
        `rest`: seconds after a small piece in which more is gathered."""

    async def window(self, attempt_id: str, query: WindowQuery) -> LogWindow:
        """Return the rows at the query's place."""

    async def search(self, attempt_id: str, wanted: Wanted, offset: int, most: int) -> LogSearch:
        """Search a bounded part of the log from `offset` on."""


class KeptLogs:
    """Knows which logs were removed. `kept_for`: seconds after the last byte of a log."""

    def __init__(self, logs: Logs, clock: Clock, kept_for: float) -> None:
        self._logs = logs
        self._clock = clock
        self._kept_for = kept_for

    async def require(self, state: RunState, attempt: Attempt | None) -> None:
        """Raise Gone for a log that was removed because of its age, and what the store raises for
        one that cannot be read now; a log that was never written is empty."""
        if attempt is None:
            return
        await self._logs.reach(attempt.id)
        if attempt.running_at is None or attempt.finished_at is None:
            return
        young = self._clock.now() - attempt.running_at < self._kept_for
        if young or await self._logs.is_kept(attempt.id):
            return
        job = next(job for job in state.all_jobs if job.id == attempt.job_id)
        raise Gone(
            f"the log of job {job.group}/{job.cookie} of run {state.run.name}, attempt "
            f"{attempt.number}, was removed: it is older than logs are kept here (--keep-logs)",
            code="log_removed",
        )


async def follow_log(
    runs: AttemptLookup, logs: Logs, run_id: str, attempt_id: str, offset: int, rest: float = 0.0
) -> AsyncIterator[bytes]:
    """Yield what is stored, then what comes, until the attempt has ended.

    A final attempt's log is read and never followed, because nothing would report its end. So its
    status is read here, with no wait between that and the start of the follower.
    """
    attempt = await runs.attempt(await runs.get(run_id), None, attempt_id)
    ended = attempt is None or attempt.status in FINAL_ATTEMPT_STATUSES
    pieces = logs.read(attempt_id, offset) if ended else logs.follow(attempt_id, offset, rest)
    async for piece in pieces:
        yield piece
        del piece  # the next one may be long in coming
