"""Connections that are lost together are reported one after the other.

A cut of the network ends thousands of them in one round of the event loop. Each wakes a task with
much to clean up. If all of them woke at once, nothing else would run meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary

from aiohttp.client_proto import ResponseHandler

MOST_IN_A_ROUND = 8


class Pace:
    """Makes at most so many calls in one round of the loop; the others follow in their order."""

    def __init__(self, most: int = MOST_IN_A_ROUND) -> None:
        self._most = most
        self._made = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def call(self, callback: Callable[[], None]) -> None:
        """Call it at once while few calls were made in this round, else later."""
        if self._made == self._most:
            self._waiting.append(callback)
            return
        self._made += 1
        if self._made == 1:
            asyncio.get_running_loop().call_soon(self._next_round)
        callback()

    def _next_round(self) -> None:
        self._made = min(self._most, len(self._waiting))
        if self._made:
            asyncio.get_running_loop().call_soon(self._next_round)
        for _ in range(self._made):
            self._waiting.popleft()()


_paces: WeakKeyDictionary[asyncio.AbstractEventLoop, Pace] = WeakKeyDictionary()


class PacedHandler(ResponseHandler):
    """aiohttp's handler, which may learn a few rounds later that its connection is lost.

    Nothing uses it meanwhile: its transport is closed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._pace = _paces.get(loop) or _paces.setdefault(loop, Pace())

    def connection_lost(self, exc: BaseException | None) -> None:
        self._pace.call(partial(super().connection_lost, exc))
