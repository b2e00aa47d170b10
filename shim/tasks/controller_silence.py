"""Notes when a controller was last heard, for tasks that must end without one (`on_disconnect:
stop`).

Only a request with a fence counts, and only when its fence is the newest so far: other programs
read metrics too, and a controller that was taken over may still talk. The time is the kernel's
since the boot, so a restart of the shim or an adjusted clock does not change it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable
from concurrent.futures import Executor
from pathlib import Path

import msgspec

from fairlead.wire.shim import Fence, TaskReason
from shim.state.records import DiskRecords, Records
from shim.tasks.supervisor import Supervisor
from shim.tasks.task import TaskState

log = logging.getLogger(__name__)
GRACE_SECONDS = 30.0
_KEY = "heard"
_LOOK_SECONDS = 5.0
_KEEP_SECONDS = 5.0
# Linux counts CLOCK_MONOTONIC from the boot, for all processes (clock_gettime(2)).
_since_boot = time.monotonic


class HeardRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The last contact. `at`: seconds since the boot `boot_id`."""

    boot_id: str
    at: float


class ControllerSilence:
    def __init__(
        self,
        supervisor: Supervisor,
        records: Records[HeardRecord],
        boot_id: str,
        heard_at: float,
        fences: Iterable[Fence] = (),
    ) -> None:
        self._supervisor = supervisor
        self._records = records
        self._boot_id = boot_id
        self._heard_at = heard_at
        self._kept_at = heard_at
        self._newest = max(fences, default=None)
        self._loop = asyncio.create_task(self._run(), name="silence")

    @classmethod
    async def open(
        cls,
        supervisor: Supervisor,
        data: Path,
        executor: Executor,
        boot_id: str,
        fences: Iterable[Fence],
    ) -> ControllerSilence:
        """Continue from what the last life of the shim heard in this boot."""
        records = DiskRecords(data / "records" / "hearing", HeardRecord, executor)
        known = (await records.load()).records.get(_KEY)
        same_boot = known is not None and known.boot_id == boot_id
        heard_at = known.at if known is not None and same_boot else _since_boot()
        return cls(supervisor, records, boot_id, heard_at, fences)

    @property
    def silent_for(self) -> float:
        return _since_boot() - self._heard_at

    def heard(self, fence: Fence) -> None:
        if self._newest is None or fence >= self._newest:
            self._newest = fence
            self._heard_at = _since_boot()

    async def close(self) -> None:
        self._loop.cancel()
        # Awaiting a cancelled task raises its CancelledError here; ours is not meant.
        with contextlib.suppress(asyncio.CancelledError):
            await self._loop

    async def _run(self) -> None:
        while True:
            waiting = self._waiting()
            if waiting:
                await self._keep()
            silent = self.silent_for
            for task, patience in waiting:
                if silent >= patience:
                    await self._stop(task, patience)
            left = [patience - silent for _, patience in waiting if patience > silent]
            # A task that comes meanwhile may have a shorter limit than those that wait.
            await asyncio.sleep(min([_LOOK_SECONDS, *left]))

    def _waiting(self) -> list[tuple[TaskState, float]]:
        """Return the tasks that stop without a controller, each with its limit in seconds."""
        return [
            (task, task.request.stop_when_unheard_seconds)
            for task in self._supervisor.live
            if task.request.stop_when_unheard_seconds is not None and not task.stop_wanted.is_set()
        ]

    async def _keep(self) -> None:
        if self._heard_at - self._kept_at < _KEEP_SECONDS:
            return
        kept = self._heard_at
        try:
            await self._records.save(_KEY, HeardRecord(boot_id=self._boot_id, at=kept))
        except OSError as error:
            log.warning("cannot store when a controller was last heard: %s", error)
        else:
            self._kept_at = kept

    async def _stop(self, task: TaskState, patience: float) -> None:
        message = f"its node had no contact to a controller for {patience:g} s (on_disconnect)"
        log.warning("task %s is stopped: %s", task.info.id, message)
        try:
            await task.order_stop(GRACE_SECONDS, TaskReason.INSTANCE_UNREACHABLE, message)
        except OSError as error:
            log.error("task %s: its stop could not be stored: %s", task.info.id, error)
