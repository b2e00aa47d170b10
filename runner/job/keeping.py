"""What a job leaves is copied after its end, and a stop of the job ends that too."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

CUT_OFF = "outputs: the job was stopped while they were copied; the rest is left out"


class Keeping:
    """Runs one copying at a time."""

    def __init__(self) -> None:
        self._task: asyncio.Task[list[str]] | None = None

    async def lines(self, copying: Coroutine[None, None, list[str]]) -> list[str]:
        """Copy, and return the lines for the log."""
        task = self._task = asyncio.create_task(copying)
        try:
            return await task
        except asyncio.CancelledError:
            # Without this, a cancel of our own task would look like the end of the copying.
            if not task.cancelled():
                raise
            return [CUT_OFF]
        finally:
            self._task = None

    def stop(self, grace: float) -> None:
        """End the copying that runs after `grace` seconds."""
        if self._task is not None:
            asyncio.get_running_loop().call_later(grace, self._task.cancel)
