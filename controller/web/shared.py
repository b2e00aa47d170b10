"""Fragments that many open pages of one user ask for at once: made once for each change.

A change wakes all open pages, and all of them ask for the same rows. An answer is shared until the
next change of any run or node, and for a second at most.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable, Hashable
from contextlib import AbstractAsyncContextManager

import msgspec

from controller.aio import Flag

MAX_SECONDS = 1.0
_MAX_KEPT = 256


class Fragment(msgspec.Struct, frozen=True):
    content: bytes
    compressed: bytes

    @classmethod
    def of(cls, text: str) -> Fragment:
        content = text.encode()
        return cls(content, gzip.compress(content, compresslevel=4))


class SharedFragments:
    """`changes`: a watch on all runs and nodes. `now`: seconds that only grow."""

    def __init__(
        self, changes: AbstractAsyncContextManager[Flag], now: Callable[[], float]
    ) -> None:
        self._changes = changes
        self._now = now
        self._changed: Flag | None = None
        self._kept: dict[Hashable, tuple[float, asyncio.Task[Fragment | None]]] = {}

    async def get(
        self, key: Hashable, make: Callable[[], Awaitable[Fragment | None]]
    ) -> Fragment | None:
        """Return what `make` gives for this key now. `make` must depend on the key and on runs and
        nodes alone."""
        if self._changed is None:
            self._changed = await self._changes.__aenter__()  # as long as the controller lives
        if self._changed.is_set() or len(self._kept) >= _MAX_KEPT:
            self._changed.clear()
            self._kept.clear()
        made_at, task = self._kept.get(key, (0.0, None))
        if task is None or not 0 <= self._now() - made_at < MAX_SECONDS:
            task = asyncio.ensure_future(make())
            self._kept[key] = (self._now(), task)
        # A page that leaves must not cancel the answer for which others wait.
        return await asyncio.shield(task)
