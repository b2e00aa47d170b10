"""Which attempt's log a reader gets, and when a reader of a live one has come to the end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from controller.clock import Clock
from controller.lifecycle.model import Attempt, Job, RunState
from controller.lifecycle.statuses import FINAL_ATTEMPT_STATUSES
from controller.service.errors import Gone, NotFound


class Logs(Protocol):
    """Raw frames (`runner.schemas.frames`), whole ones in each piece."""

    async def is_kept(self, attempt_id: str) -> bool:
        """Whether anything of its log, an empty one included, is here."""

    def read(self, attempt_id: str, offset: int) -> AsyncIterator[bytes]:
        """What is stored now."""

    def follow(self, attempt_id: str, offset: int) -> AsyncIterator[bytes]:
        """What is stored, then what comes, until the log is complete or the attempt final."""


def find_job(state: RunState, key: str | None) -> Job:
    """By id, by index over all groups, or as `GROUP/COOKIE`; None: the first. Raises NotFound."""
    if key is None:
        return state.jobs[0]
    for job in state.jobs:
        if key in (job.id, str(job.index), f"{job.group}/{job.cookie}"):
            return job
    raise NotFound(
        f"run {state.run.name} has no job {key!r}; give an id, GROUP/COOKIE or an index below "
        f"{len(state.jobs)}",
        field="job",
    )


def find_attempt(state: RunState, job_key: str | None, attempt_key: str | None) -> Attempt | None:
    """By id (of any job) or number within the job; None: the job's latest, if it has one yet.

    Raises NotFound."""
    if attempt_key is not None:
        for job in state.jobs:
            for attempt in job.attempts:
                if attempt.id == attempt_key:
                    return attempt
    job = find_job(state, job_key)
    if attempt_key is None:
        return job.attempts[-1] if job.attempts else None
    for attempt in job.attempts:
        if str(attempt.number) == attempt_key:
            return attempt
    raise NotFound(
        f"run {state.run.name} has no attempt {attempt_key!r}; give an id or a number from 0 to "
        f"{job.attempts[-1].number if job.attempts else 0}",
        field="attempt",
    )


class KeptLogs:
    """`kept_for`: seconds after the last byte of a log."""

    def __init__(self, logs: Logs, clock: Clock, kept_for: float) -> None:
        self._logs = logs
        self._clock = clock
        self._kept_for = kept_for

    async def require(self, state: RunState, attempt: Attempt | None) -> None:
        """Raises Gone for a log that was removed since it is old. One that never was is empty."""
        if attempt is None or attempt.running_at is None or attempt.finished_at is None:
            return
        young = self._clock.now() - attempt.running_at < self._kept_for
        if young or await self._logs.is_kept(attempt.id):
            return
        job = next(job for job in state.jobs if job.id == attempt.job_id)
        raise Gone(
            f"the log of job {job.group}/{job.cookie} of run {state.run.name}, attempt "
            f"{attempt.number}, was removed: it is older than logs are kept here (--keep-logs)",
            code="log_removed",
        )


class Runs(Protocol):
    async def get(self, key: str) -> RunState: ...

    async def attempt(
        self, state: RunState, job_key: str | None, attempt_key: str | None
    ) -> Attempt | None: ...


async def follow_log(
    runs: Runs, logs: Logs, run_id: str, attempt_id: str, offset: int
) -> AsyncIterator[bytes]:
    """What is stored, then what comes, until the attempt has ended.

    A final attempt's log is read and never followed: nobody would say that it has ended. So its
    state is looked at here, with nothing to wait for between the look and the follower's start."""
    attempt = await runs.attempt(await runs.get(run_id), None, attempt_id)
    ended = attempt is None or attempt.status in FINAL_ATTEMPT_STATUSES
    pieces = logs.read(attempt_id, offset) if ended else logs.follow(attempt_id, offset)
    async for piece in pieces:
        yield piece
