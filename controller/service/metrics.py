"""What the jobs of a run use now: asked of their runners and shims, kept nowhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from controller.lifecycle.model import Attempt, Job, RunState
from controller.lifecycle.statuses import AttemptStatus
from controller.links.base import LinkError, NodeConnection
from controller.service.logs import find_job
from runner.client import RunnerError, RunnerUnavailable
from runner.schemas import JobMetrics
from shim.client import ShimError, ShimUnavailable
from shim.schemas import GpuMetrics

ANSWER_SECONDS = 5.0
AT_ONCE = 64
_LAST_MOMENT = 1e11
"""Unix seconds. A job may answer in its runner's place, and no calendar goes on for ever."""

Connect = Callable[[str], Awaitable[NodeConnection]]


class Runs(Protocol):
    async def get(self, key: str) -> RunState: ...


class JobUse(msgspec.Struct, frozen=True, kw_only=True):
    """`used` None: it could not be asked, and `message` says why."""

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
        """Of the jobs that run, or of one of them. Raises NotFound, StoreUnavailable."""
        state = await self._runs.get(key)
        jobs = state.jobs if job_key is None else (find_job(state, job_key),)
        free = asyncio.Semaphore(AT_ONCE)
        return await asyncio.gather(
            *(
                self._use(job, job.attempts[-1], free)
                for job in jobs
                if job.attempts and job.attempts[-1].status is AttemptStatus.RUNNING
            )
        )

    async def _use(self, job: Job, attempt: Attempt, free: asyncio.Semaphore) -> JobUse:
        used, gpus, message = None, tuple[GpuMetrics, ...](), None
        try:
            async with free, asyncio.timeout(ANSWER_SECONDS):
                connection = await self._connect(attempt.node_id or "")
                used = await connection.runner(attempt.runner_socket or "").metrics()
                if not 0 <= used.at < _LAST_MOMENT:
                    used, message = None, "its runner's answer cannot be true"
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
