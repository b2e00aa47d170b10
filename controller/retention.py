"""Retention forgets what ended long ago (docs/rules.md 9): runs, earlier occurrences of live runs,
their events, and logs.

It never forgets what is live, or what still occupies an allocation on a node. Each transaction is
small, so that decisions go on between them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from controller.clock import Clock
from controller.lifecycle.model import RunState
from controller.logs.store import LogStore
from controller.outputs.store import OutputStore
from controller.store.base import Store
from controller.store.errors import LeaseLost, StoreError

log = logging.getLogger(__name__)

DAY = 86400.0
MAX_BETWEEN_SWEEPS = 3600.0
MIN_BETWEEN_SWEEPS = 1.0
RUNS_AT_ONCE = 50
ATTEMPTS_AT_ONCE = 500


class Forget(Protocol):
    async def __call__(self, *, finished_before: float, limit: int) -> int: ...


class RetentionTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The times for which ended things are kept: seconds after the end of a run, after the last
    byte of a log, and after outputs were stored."""

    runs: float = 90 * DAY
    logs: float = 30 * DAY
    outputs: float = 30 * DAY

    @property
    def effective_logs(self) -> float:
        """Seconds after its last byte for which a log of an ended run is kept: no longer than the
        run."""
        return min(self.logs, self.runs)

    @property
    def effective_outputs(self) -> float:
        """Seconds for which outputs of an ended run are kept."""
        return min(self.outputs, self.runs)

    @property
    def sweep_every(self) -> float:
        """Seconds between sweeps: nothing is kept an hour, or much more than a tenth of its time,
        too long."""
        shortest = min(self.effective_logs, self.effective_outputs)
        return min(MAX_BETWEEN_SWEEPS, max(MIN_BETWEEN_SWEEPS, shortest / 10))


class Retention:
    """Sweeps regularly. `live` gives the runs that are not final."""

    def __init__(
        self,
        store: Store,
        logs: LogStore,
        outputs: OutputStore,
        clock: Clock,
        keep: RetentionTimes,
        live: Callable[[], Iterable[RunState]],
    ) -> None:
        self._store = store
        self._logs = logs
        self._outputs = outputs
        self._clock = clock
        self._keep = keep
        self._live = live

    async def run(self) -> None:
        """Sweep until cancelled. Raises LeaseLost."""
        while True:
            try:
                await self.sweep()
            # Another controller works now: this one must stop, not try again.
            except LeaseLost:
                raise
            # What is due now is still due at the next sweep.
            except (StoreError, OSError) as error:
                log.warning("expired runs and logs could not be removed: %s", error)
            await asyncio.sleep(self._keep.sweep_every)

    async def sweep(self) -> None:
        """Forget all that is due now. Raises StoreError, OSError."""
        now = self._clock.now()
        runs = await self._repeat(self._store.forget, RUNS_AT_ONCE)
        attempts = await self._repeat(self._store.forget_attempts, ATTEMPTS_AT_ONCE)
        needed = {
            job.attempts[-1].id for state in self._live() for job in state.jobs if job.attempts
        }
        logs = await self._logs.sweep(needed, now - self._keep.effective_logs)
        outputs = await self._outputs.sweep(needed, now - self._keep.effective_outputs)
        if runs or attempts or logs or outputs:
            message = "removed %d runs, %d attempts of earlier occurrences, %d logs and %d outputs"
            log.info(message, runs, attempts, logs, outputs)

    async def _repeat(self, forget: Forget, at_once: int) -> int:
        before = self._clock.now() - self._keep.runs
        total, found = 0, at_once
        while found == at_once:
            found = await forget(finished_before=before, limit=at_once)
            total += found
        return total
