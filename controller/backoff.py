"""Waits between tries: growing, jittered, and cut short when there is a reason to hope."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable


class Backoff:
    """`first`, then twice as long each time up to `most` seconds, ±20 % by `jitter`."""

    def __init__(self, first: float, most: float, jitter: Callable[[], float]) -> None:
        self._first = first
        self._most = most
        self._jitter = jitter
        self._next = first

    def reset(self) -> None:
        self._next = self._first

    async def wait(self, kick: asyncio.Event | None = None) -> None:
        """Returns earlier when `kick` is set, which it clears; then the waits begin anew."""
        delay = self._next * (1.0 + 0.2 * self._jitter())
        self._next = min(self._most, self._next * 2)
        if kick is None:
            await asyncio.sleep(delay)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await kick.wait()
                self.reset()
        kick.clear()
