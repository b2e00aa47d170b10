"""Keeps calls of one kind apart, because clouds count them for each account and region."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Pace:
    """Lets one call begin in `every` seconds; others wait for their turn, first come, first
    served."""

    def __init__(self, every: float) -> None:
        self._every = every
        self._lock = asyncio.Lock()
        self._next = 0.0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until a call may begin, and keep others out while it lasts."""
        async with self._lock:
            now = asyncio.get_running_loop().time
            if (wait := self._next - now()) > 0:
                await asyncio.sleep(wait)
            self._next = now() + self._every
            yield
