"""Samples what the running jobs use, for the history."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from controller.clock import Clock
from controller.lifecycle.model import Attempt, Job, RunState
from controller.metric_bucket import MetricBucket
from controller.metric_history import (
    KEPT_SECONDS,
    OFTEN_SECONDS,
    SELDOM_SECONDS,
    YOUNG_SECONDS,
    MetricHistory,
    Sample,
    of_gpu,
)
from controller.service.jobs.metrics import JobUse
from fairlead.model.statuses import AttemptStatus

log = logging.getLogger(__name__)

SWEEP_SECONDS = 3600.0
MAX_AT_ONCE = 200
"""Jobs of one tick: with more of them, each is sampled less often, and the cost stays the same."""
_MAX_VALUE = 1 << 60


def sample_of(use: JobUse, now: float) -> Sample | None:
    """Return the sample of an answer; None without one. A job may answer in its runner's place, so
    only possible values are taken."""
    if use.used is None:
        return None
    busy = [gpu.utilization for gpu in use.gpus if gpu.utilization is not None]
    filled = [gpu.memory_used for gpu in use.gpus if gpu.memory_used is not None]
    return Sample(
        at=now,
        cpu_seconds=_possible(use.used.cpu_seconds),
        memory=_whole(use.used.memory_working_set),
        gpu_utilization=_possible(sum(busy) / len(busy)) if busy else None,
        gpu_memory=_whole(sum(filled)) if filled else None,
    )


def gpu_samples_of(use: JobUse, now: float) -> dict[str, Sample]:
    """Return the sample of each GPU, by the name of its history."""
    numbers = {uuid: number for number, uuid in enumerate(use.attempt.task.gpus)}
    return {
        of_gpu(use.attempt.id, numbers[gpu.uuid]): Sample(
            at=now,
            cpu_seconds=None,
            memory=None,
            gpu_utilization=_possible(gpu.utilization),
            gpu_memory=_whole(gpu.memory_used),
        )
        for gpu in use.gpus
        if gpu.uuid in numbers
    }


def _possible(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) and 0 <= value < _MAX_VALUE else None


def _whole(value: int | None) -> int | None:
    return value if value is not None and 0 <= value < _MAX_VALUE else None


class Uses(Protocol):
    async def use_of(self, pairs: Collection[tuple[Job, Attempt]]) -> list[JobUse]: ...


class MetricSampler:
    """Samples the running jobs until cancelled. `live` gives the runs that are not final; `bucket`
    keeps the history where this disk may be lost."""

    def __init__(
        self,
        uses: Uses,
        history: MetricHistory,
        clock: Clock,
        live: Callable[[], Iterable[RunState]],
        wall: Callable[[], float] = time.time,
        most_at_once: int = MAX_AT_ONCE,
        bucket: MetricBucket | None = None,
    ) -> None:
        self._uses = uses
        self._history = history
        self._clock = clock
        self._live = live
        self._wall = wall
        self._most_at_once = most_at_once
        self._bucket = bucket
        self._last: dict[str, float] = {}
        self._swept_at = -math.inf

    async def run(self) -> None:
        await self._fetch()
        while True:
            try:
                await self.tick()
            except OSError as error:
                log.warning("metrics of jobs could not be kept: %s", error)
            await asyncio.sleep(OFTEN_SECONDS)

    async def _fetch(self) -> None:
        """Before the first sample: a history is in the order of time."""
        if self._bucket is None:
            return
        try:
            found = await self._bucket.fetch(self._wall())
        except OSError as error:
            log.warning("metrics of before are shown as far as this disk has them: %s", error)
        else:
            log.info("%d objects with metrics came from the bucket", found)

    async def tick(self) -> None:
        """Sample what is due, `most_at_once` jobs at most; remove what is old. Raises OSError."""
        now = self._clock.now()
        running = {
            job.attempts[-1].id: (job, job.attempts[-1])
            for state in self._live()
            for job in state.jobs
            if job.attempts and job.attempts[-1].status is AttemptStatus.RUNNING
        }
        self._last = {key: at for key, at in self._last.items() if key in running}
        due = [pair for key, pair in running.items() if self._is_due(key, pair[1], now)]
        due.sort(key=lambda pair: self._last.get(pair[1].id, -math.inf))
        due = due[: self._most_at_once]
        # Before the answers: a job that gives none must not be the first again at each tick.
        for _, attempt in due:
            self._last[attempt.id] = now
        uses = await self._uses.use_of(due)
        samples = [(use.attempt.id, sample_of(use, now)) for use in uses]
        for use in uses:
            samples += gpu_samples_of(use, now).items()
        found = [(name, sample) for name, sample in samples if sample is not None]
        is_for_sweep = now - self._swept_at >= SWEEP_SECONDS
        if is_for_sweep:
            self._swept_at = now
        await asyncio.to_thread(self._keep, found, is_for_sweep=is_for_sweep)
        if self._bucket is not None:
            # In the bucket's threads: the controller's end waits for those of asyncio.
            await self._bucket.keep(found, now, is_for_sweep=is_for_sweep)

    def _is_due(self, key: str, attempt: Attempt, now: float) -> bool:
        is_young = now - (attempt.running_at or now) < YOUNG_SECONDS
        every = OFTEN_SECONDS if is_young else SELDOM_SECONDS
        # Not all of it: a wall clock that NTP slows down would skip each second tick.
        return now - self._last.get(key, -math.inf) >= every * 0.99

    def _keep(self, samples: Iterable[tuple[str, Sample]], *, is_for_sweep: bool) -> None:
        for name, sample in samples:
            self._history.append(name, sample)
        if is_for_sweep:
            self._history.sweep(self._wall() - KEPT_SECONDS)
