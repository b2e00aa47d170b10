"""When a simulated shim last heard of a controller, for jobs that are to end when none is heard.

The rules are those of `shim.tasks.controller_silence`, over virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fairlead.wire.shim import Fence, TaskInfo, TaskReason, TerminateRequest
from shim.tasks.controller_silence import GRACE_SECONDS
from tests.simulation.task import SimulatedTask


class ControllerSilence:
    """`serving` is set while the shim works; `stopped` is told of each task that it stops."""

    def __init__(self, serving: asyncio.Event, stopped: Callable[[TaskInfo], None]) -> None:
        self._serving = serving
        self._stopped = stopped
        self._newest: Fence | None = None
        self._heard_at = 0.0

    def heard(self, fence: Fence | None) -> None:
        """Only the newest controller counts, and only what it says as one."""
        if fence is not None and (self._newest is None or fence >= self._newest):
            self._newest = fence
            self.begin()

    def begin(self) -> None:
        """As after a boot."""
        self._heard_at = asyncio.get_running_loop().time()

    async def mind(self, task: SimulatedTask, patience: float) -> None:
        """Until the task has ended or was told to stop."""
        loop = asyncio.get_running_loop()
        while not task.ended and task.stop is None:
            await self._serving.wait()
            left = self._heard_at + patience - loop.time()
            if left > 0:
                await asyncio.sleep(left)
                continue
            message = f"its node had no contact to a controller for {patience:g} s"
            order = TerminateRequest(
                grace=GRACE_SECONDS, reason=TaskReason.INSTANCE_UNREACHABLE, message=message
            )
            task.order_stop(order)
            self._stopped(task.info)
