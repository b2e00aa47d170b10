"""A time limit that can be paused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Countdown:
    """Calls `over` after so many seconds; None: never. It does not count before `start`, and while
    it is `held`."""

    def __init__(self, seconds: float | None, over: Callable[[], None]) -> None:
        self._left = seconds
        self._over = over
        self._held = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._go_on()

    def hold(self, held: bool) -> None:
        """Pause it, or continue with what is left."""
        self._held = held
        if held:
            self._stand_still()
        else:
            self._go_on()

    def stop(self) -> None:
        """Stop it for good."""
        self._stand_still()
        self._loop = None

    def _go_on(self) -> None:
        if self._loop is None or self._left is None or self._held or self._timer is not None:
            return
        self._timer = self._loop.call_later(self._left, self._over)

    def _stand_still(self) -> None:
        if self._loop is None or self._timer is None or self._left is None:
            return
        self._left = max(0.0, self._timer.when() - self._loop.time())
        self._timer.cancel()
        self._timer = None
