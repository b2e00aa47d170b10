"""Helpers for asyncio: waits between tries, slots, and work in stretches."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar


class Backoff:
    """Waits `first` seconds, then twice as long each time up to `most`, ±20 % by `jitter`."""

    def __init__(self, first: float, most: float, jitter: Callable[[], float]) -> None:
        self._first = first
        self._most = most
        self._jitter = jitter
        self._next = first

    def reset(self) -> None:
        self._next = self._first

    async def wait(self, kick: asyncio.Event | None = None) -> None:
        """Wait; return earlier when `kick` is set, and clear it. Then the waits begin again at
        `first`."""
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


class Slots:
    """Lets `at_once` tasks work at once."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def slot(self, lent_for: float) -> AsyncIterator[None]:
        """Wait for a slot, first come, first served. After so many seconds the next task gets it,
        even if this one is not done."""
        await self._take()
        lent = True

        def give_back() -> None:
            nonlocal lent
            if lent:
                lent = False
                self._give_back()

        timer = asyncio.get_running_loop().call_later(lent_for, give_back)
        try:
            yield
        finally:
            timer.cancel()
            give_back()

    async def _take(self) -> None:
        given = asyncio.get_running_loop().create_future()
        self._waiting.append(given)
        self._give_out()
        try:
            await given
        except asyncio.CancelledError:
            # Cancelled after it got the slot and before it ran: the slot goes to the next.
            if not given.cancelled():
                self._give_back()
            raise

    def _give_back(self) -> None:
        self._taken -= 1
        self._give_out()

    def _give_out(self) -> None:
        while self._waiting and self._taken < self._at_once:
            given = self._waiting.popleft()
            if not given.done():
                self._taken += 1
                given.set_result(None)


T = TypeVar("T")
MAX_AT_A_STRETCH = 32
"""Items are counted, time is not, so that equal simulations stay equal."""


async def in_stretches(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items and let other tasks run in between. `items` must not change meanwhile."""
    for number, item in enumerate(items):
        if number and number % MAX_AT_A_STRETCH == 0:
            await asyncio.sleep(0)
        yield item
