"""Access to what a job offers while it runs: its log, its ports, its metrics.

Ports go through the node's link and the job's runner. Runners and shims give metrics on request;
none are stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Protocol

import msgspec

from controller.clock import Clock
from controller.lifecycle.model import Attempt, Job, RunState
from controller.lifecycle.statuses import FINAL_ATTEMPT_STATUSES, AttemptStatus
from controller.links.base import LinkError, NodeConnection
from controller.logs.search import Found, Wanted
from controller.logs.windows import Window
from controller.service.errors import Conflict, Gone, NotFound, ServiceError, Unavailable
from controller.service.users import require_control
from controller.store.base import User
from runner.client import PortStream, RunnerError, RunnerUnavailable
from runner.schemas import JobMetrics
from shim.client import ShimError, ShimUnavailable
from shim.schemas import GpuMetrics


class Logs(Protocol):
    """Raw frames (`runner.schemas.frames`); each piece holds whole ones."""

    async def is_kept(self, attempt_id: str) -> bool:
        """Return whether any part of its log is here, an empty log included."""

    def read(self, attempt_id: str, offset: int) -> AsyncIterator[bytes]:
        """Yield what is stored now."""

    def follow(self, attempt_id: str, offset: int) -> AsyncIterator[bytes]:
        """Yield what is stored, then what comes, until the log is complete or the attempt final."""

    async def window(
        self,
        attempt_id: str,
        size: int,
        most: int,
        *,
        start: int | None,
        before: int | None,
        near: int | None,
    ) -> Window:
        """Return some `size` bytes as at most `most` rows; the log's end if no place is given."""

    async def offset_at(self, attempt_id: str, time_ns: int) -> int:
        """Return the offset of what was written at this time or next after it."""

    async def search(self, attempt_id: str, wanted: Wanted, offset: int, most: int) -> Found:
        """Search a bounded part of the log from `offset` on."""


def find_job(state: RunState, key: str | None) -> Job:
    """Return the job with this id, index over all groups, or `GROUP/COOKIE`; None: the first that
    was not scaled down. Raises NotFound."""
    if key is None:
        return next((job for job in state.jobs if not job.scaled_down), state.jobs[0])
    for job in state.jobs:
        if key in (job.id, str(job.index), f"{job.group}/{job.cookie}"):
            return job
    raise NotFound(
        f"run {state.run.name} has no job {key!r}; give an id, GROUP/COOKIE or an index below "
        f"{len(state.jobs)}",
        field="job",
    )


def find_attempt(state: RunState, job_key: str | None, attempt_key: str | None) -> Attempt | None:
    """Return the attempt with this id (of any job) or number within the job; None: the job's
    latest, if any.

    Raises NotFound.
    """
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
    """Knows which logs were removed. `kept_for`: seconds after the last byte of a log."""

    def __init__(self, logs: Logs, clock: Clock, kept_for: float) -> None:
        self._logs = logs
        self._clock = clock
        self._kept_for = kept_for

    async def require(self, state: RunState, attempt: Attempt | None) -> None:
        """Raise Gone for a log that was removed because of its age; a log that was never written is
        empty."""
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


class AttemptLookup(Protocol):
    async def get(self, key: str) -> RunState: ...

    async def attempt(
        self, state: RunState, job_key: str | None, attempt_key: str | None
    ) -> Attempt | None: ...


async def follow_log(
    runs: AttemptLookup, logs: Logs, run_id: str, attempt_id: str, offset: int
) -> AsyncIterator[bytes]:
    """Yield what is stored, then what comes, until the attempt has ended.

    A final attempt's log is read and never followed, because nothing would report its end. So its
    status is read here, with no wait between that and the start of the follower.
    """
    attempt = await runs.attempt(await runs.get(run_id), None, attempt_id)
    ended = attempt is None or attempt.status in FINAL_ATTEMPT_STATUSES
    pieces = logs.read(attempt_id, offset) if ended else logs.follow(attempt_id, offset)
    async for piece in pieces:
        yield piece


CONNECT_SECONDS = 15.0
Connect = Callable[[str], Awaitable[NodeConnection]]
"""Returns the live connection of a node; waits for it as long as necessary."""


class PortUnusable(ServiceError):
    """The job is there, but no connection to this port is possible now."""

    status = 502
    code = "port_unusable"


class Runs(Protocol):
    """Finds the run that a user names by id or name."""

    async def get(self, key: str) -> RunState: ...


class PortService:
    def __init__(self, runs: Runs, connect: Connect) -> None:
        self._runs = runs
        self._connect = connect

    async def open(self, key: str, job_key: str | None, port: int, *, user: User) -> PortStream:
        """Open a connection to `port` of the job's loopback; the caller closes it.

        Raises NotFound, Forbidden, Conflict (`not_running`), Unavailable, PortUnusable.
        """
        state = await self._runs.get(key)
        require_control(user, state.run)
        job = find_job(state, job_key)
        attempt = job.attempts[-1] if job.attempts else None
        if attempt is None or attempt.status is not AttemptStatus.RUNNING:
            status = "not started" if attempt is None else attempt.status.lower()
            raise Conflict(
                f"the job of {state.run.name} does not run ({status})", code="not_running"
            )
        assert attempt.node_id is not None
        socket = attempt.runner_socket or ""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                connection = await self._connect(attempt.node_id)
                return await connection.runner(socket).connect_port(port)
        except TimeoutError:
            raise Unavailable(
                "the job's node is not connected at the moment", code="node_unreachable"
            ) from None
        except (LinkError, RunnerUnavailable) as error:
            raise Unavailable(f"the job cannot be reached: {error}") from error
        except RunnerError as error:
            raise PortUnusable(error.message, code=error.code, field=error.field) from error


ANSWER_SECONDS = 5.0
AT_ONCE = 64
_LAST_MOMENT = 1e11
"""Unix seconds. A job may answer in its runner's place; a later time would overflow the
calendar."""


class JobUse(msgspec.Struct, frozen=True, kw_only=True):
    """The use of one job. `used` None: its runner gave no answer, and `message` says why."""

    job: Job
    attempt: Attempt
    used: JobMetrics | None
    gpus: tuple[GpuMetrics, ...]
    message: str | None


class MetricsService:
    def __init__(self, runs: Runs, connect: Connect) -> None:
        self._runs = runs
        self._connect = connect

    async def of(self, key: str, job_key: str | None) -> list[JobUse]:
        """Return the use of the running jobs, or of one of them. Raises NotFound,
        StoreUnavailable."""
        state = await self._runs.get(key)
        jobs = state.jobs if job_key is None else (find_job(state, job_key),)
        return await self.use_of(
            [
                (job, job.attempts[-1])
                for job in jobs
                if job.attempts and job.attempts[-1].status is AttemptStatus.RUNNING
            ]
        )

    async def use_of(self, pairs: Collection[tuple[Job, Attempt]]) -> list[JobUse]:
        """Return the use of these running attempts."""
        free = asyncio.Semaphore(AT_ONCE)
        return await asyncio.gather(*(self._use(job, attempt, free) for job, attempt in pairs))

    async def _use(self, job: Job, attempt: Attempt, free: asyncio.Semaphore) -> JobUse:
        used, gpus, message = None, tuple[GpuMetrics, ...](), None
        try:
            async with free, asyncio.timeout(ANSWER_SECONDS):
                connection = await self._connect(attempt.node_id or "")
                used = await connection.runner(attempt.runner_socket or "").metrics()
                if not 0 <= used.at < _LAST_MOMENT:
                    used, message = None, "its runner's answer is impossible"
                gpus = await _gpus(connection, attempt)
        except TimeoutError:
            message = f"its node did not answer within {ANSWER_SECONDS:g} s"
        except (LinkError, RunnerUnavailable, ShimUnavailable) as error:
            message = f"it cannot be reached: {error}"
        except (RunnerError, ShimError) as error:
            message = error.message
        return JobUse(job=job, attempt=attempt, used=used, gpus=gpus, message=message)


async def _gpus(connection: NodeConnection, attempt: Attempt) -> tuple[GpuMetrics, ...]:
    if not attempt.gpus:
        return ()
    metrics = await connection.shim.node_metrics()
    return tuple(gpu for gpu in metrics.gpus if gpu.uuid in attempt.gpus)
