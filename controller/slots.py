"""How much of one kind is under way at once; who waits longest is next."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Slots:
    """`at_once` is asked whenever a slot is given out, and is never less than 1."""

    def __init__(self, at_once: Callable[[], int]) -> None:
        self._at_once = at_once
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def slot(self, lent_for: float) -> AsyncIterator[None]:
        """First come, first served. After so many seconds it goes to the next, even if its holder
        is not done."""
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
            if not given.cancelled():
                self._give_back()
            raise

    def _give_back(self) -> None:
        self._taken -= 1
        self._give_out()

    def _give_out(self) -> None:
        while self._waiting and self._taken < self._at_once():
            given = self._waiting.popleft()
            if not given.done():
                self._taken += 1
                given.set_result(None)
