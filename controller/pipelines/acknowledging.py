"""Tells a runner what of its log is stored for good, so that it may let go of that.

Each time costs a sync of the disk and a request. A runner is in no hurry to let go of little, and
thousands of jobs say little all the time; the end of a log is acknowledged at once by whoever saw
it.
"""

from __future__ import annotations

import asyncio
import contextlib

from controller.flags import Flag
from controller.links.base import RunnerApi
from controller.logs.store import LogWriter

SOON_SECONDS = 0.5
LATE_SECONDS = 60.0
MUCH_BYTES = 1 << 20


class Acknowledging:
    """Soon after much came, later after anything did. At rest it is nothing but this object."""

    def __init__(self, runner: RunnerApi, writer: LogWriter) -> None:
        self._runner = runner
        self._writer = writer
        self._acknowledged = writer.end
        self._task: asyncio.Task[None] | None = None
        self._much = Flag()

    def came(self) -> None:
        """The writer has taken something over. Raises what the runner or the disk said to the
        acknowledgement before."""
        if self._task is not None and self._task.done():
            self._task.result()
            self._task = None
        if self._writer.end - self._acknowledged >= MUCH_BYTES:
            self._much.set()
        if self._task is None:
            self._task = asyncio.create_task(self._acknowledge())

    async def end(self) -> None:
        """What was not acknowledged is left so."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _acknowledge(self) -> None:
        while self._writer.end > self._acknowledged:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LATE_SECONDS - SOON_SECONDS):
                    await self._much.wait()
            await asyncio.sleep(SOON_SECONDS)
            self._much.clear()
            self._acknowledged = await self._writer.sync()
            await self._runner.ack(self._acknowledged)
