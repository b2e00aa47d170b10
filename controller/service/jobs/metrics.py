"""What running jobs use now: runners and shims give it on request, and nothing is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import msgspec

from common.links.errors import LinkError
from controller.lifecycle.model import Attempt, Job
from controller.links.base import NodeConnection
from controller.service.jobs.access import Connect, Runs, find_job
from fairlead.model.statuses import AttemptStatus
from fairlead.wire.node import GpuMetrics
from fairlead.wire.runner import JobMetrics
from runner.client import RunnerError, RunnerUnavailable
from shim.client import ShimError, ShimUnavailable

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
            # In this order: the wait for a free place is not counted as the node's silence.
            async with free, asyncio.timeout(ANSWER_SECONDS):
                connection = await self._connect(attempt.node_id or "")
                used = await connection.runner(attempt.task.runner_socket or "").metrics()
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
    if not attempt.task.gpus:
        return ()
    metrics = await connection.shim.node_metrics()
    return tuple(gpu for gpu in metrics.gpus if gpu.uuid in attempt.task.gpus)
