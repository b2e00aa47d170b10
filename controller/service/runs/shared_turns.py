"""Requests that are judged at the same time are admitted in one turn, as far as they are ready.

What a request needs beside the controller's memory, such as a bucket's answer, may take long. The
others wait for it for a moment only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from common.refusals import Unavailable

MOMENT_SECONDS = 0.005
"""A look at a disk, or at what is known of a bucket, takes about 1 ms; a turn takes 2."""
LATE_SECONDS = 1.0
MAX_LATE = 512
"""Each keeps a connection of its follower open."""
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


class LateRequests:
    """Counts the requests that wait for something outside for long, such as a bucket that hangs."""

    def __init__(self) -> None:
        self._late = 0

    @contextmanager
    def place(self) -> Iterator[None]:
        """Let a request wait for the time of this block. Raises Unavailable if too many do."""
        if self._late >= MAX_LATE:
            raise Unavailable(
                f"{self._late} submissions wait here for uploads, outputs, gateways or the end of "
                f"other runs, and get no answer; nothing was done of this one: try again later",
                code="too_many_wait",
            )
        is_late = False

        def note() -> None:
            nonlocal is_late
            is_late = True
            self._late += 1

        timer = asyncio.get_running_loop().call_later(LATE_SECONDS, note)
        try:
            yield
        finally:
            timer.cancel()
            self._late -= is_late
