"""What ended long ago is forgotten (LIFECYCLE.md section 9): runs, their events, and logs.

Never what is live, nor what still occupies a place on a node. Each transaction is small, so that
decisions go on between them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

import msgspec

from controller.clock import Clock
from controller.lifecycle.model import RunState
from controller.logs.store import LogStore
from controller.store.base import Store, StoreUnavailable

log = logging.getLogger(__name__)

DAY = 86400.0
SWEEP_SECONDS = 3600.0
RUNS_AT_ONCE = 50


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds after the end of a run, and after the last byte of a log."""

    runs: float = 90 * DAY
    logs: float = 30 * DAY


class Retention:
    """`live` gives the runs that are not final."""

    def __init__(
        self,
        store: Store,
        logs: LogStore,
        clock: Clock,
        keep: Keep,
        live: Callable[[], Iterable[RunState]],
    ) -> None:
        self._store = store
        self._logs = logs
        self._clock = clock
        self._keep = keep
        self._live = live

    async def run(self) -> None:
        """Sweep until cancelled. Raises LeaseLost."""
        while True:
            try:
                await self.sweep()
            except (StoreUnavailable, OSError) as error:
                log.warning("what is old could not be removed: %s", error)
            await asyncio.sleep(SWEEP_SECONDS)

    async def sweep(self) -> None:
        """Forget all that is due now. Raises LeaseLost, StoreUnavailable, OSError."""
        now = self._clock.now()
        runs, found = 0, RUNS_AT_ONCE
        while found == RUNS_AT_ONCE:
            found = await self._store.forget(
                finished_before=now - self._keep.runs, limit=RUNS_AT_ONCE
            )
            runs += found
        needed = {
            job.attempts[-1].id for state in self._live() for job in state.jobs if job.attempts
        }
        logs = await self._logs.sweep(needed, now - min(self._keep.logs, self._keep.runs))
        if runs or logs:
            log.info("forgot %d runs and %d logs that were too old", runs, logs)
