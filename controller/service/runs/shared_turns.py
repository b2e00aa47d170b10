"""Requests that are judged at the same time are admitted in one turn, as far as they are ready.

What a request needs beside the controller's memory, such as a bucket's answer, may take long. The
others wait for it for a moment only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

MOMENT_SECONDS = 0.005
"""A look at a disk, or at what is known of a bucket, takes about 1 ms; a turn takes 2."""
Meet = Callable[[], Awaitable[None]]
"""Called before a request changes anything. Returns when its turn may begin."""


async def at_once() -> None:
    """For a request that shares its turn with no others in particular."""


class SharedTurn:
    """A turn for this number of requests."""

    def __init__(self, requests: int) -> None:
        self._missing = requests
        self._begun = asyncio.Event()
        self._timer = asyncio.get_running_loop().call_later(MOMENT_SECONDS, self._begun.set)

    def part(self) -> Part:
        """Return the part of one of the requests."""
        return Part(self)

    async def meet(self) -> None:
        """Return when all requests are ready, or the moment is over."""
        self.leave()
        # All who wait go on before the pipeline does, which they wake.
        await self._begun.wait()

    def leave(self) -> None:
        self._missing -= 1
        if self._missing <= 0:
            self._timer.cancel()
            self._begun.set()


class Part:
    """Counts a request once, whatever becomes of it."""

    def __init__(self, turn: SharedTurn) -> None:
        self._turn = turn
        self._is_counted = False

    async def meet(self) -> None:
        if not self._is_counted:
            self._is_counted = True
            await self._turn.meet()

    def leave(self) -> None:
        """Say that the request has ended."""
        if not self._is_counted:
            self._is_counted = True
            self._turn.leave()
