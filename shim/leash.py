"""The leash of a rented machine: without a task and without a controller it ends itself.

A controller that is gone for good ends no machine, and each costs until somebody looks. Where the
provider bills no machine that is powered off, or ends it then, that ends the bill.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
from collections.abc import Callable

log = logging.getLogger(__name__)
_MAX_LOOK_SECONDS = 60.0


def power_off() -> None:
    """Ask systemd to power the machine off. Raises OSError, subprocess.SubprocessError."""
    subprocess.run(["systemctl", "--no-block", "poweroff"], check=True, timeout=60)


class Leash:
    """`silent_for`: seconds since a controller was heard; `has_tasks`: whether a task is on the
    machine, also one that has ended and that no controller has removed."""

    def __init__(
        self,
        seconds: float,
        silent_for: Callable[[], float],
        has_tasks: Callable[[], bool],
        end: Callable[[], None] = power_off,
    ) -> None:
        self._seconds = seconds
        self._silent_for = silent_for
        self._has_tasks = has_tasks
        self._end = end
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._loop = asyncio.create_task(self._run(), name="leash")

    async def close(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loop

    async def look(self) -> float:
        """End the machine if it is time; return the seconds until the next look."""
        left = self._seconds - self._silent_for()
        if left <= 0 and not self._has_tasks():
            log.warning("no controller was heard for %g s: the machine powers off", self._seconds)
            try:
                await asyncio.to_thread(self._end)
            except (OSError, subprocess.SubprocessError) as error:
                log.error("the machine could not be powered off: %s", error)
        return min(_MAX_LOOK_SECONDS, left) if left > 0 else _MAX_LOOK_SECONDS

    async def _run(self) -> None:
        while True:
            seconds = await self.look()
            await asyncio.sleep(seconds)
