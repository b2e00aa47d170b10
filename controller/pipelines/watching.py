"""Who waits for a commit that concerns a run, a node, or anything."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from controller.flags import Flag

Key = str | None
"""The id of a run or a node; None: any."""


class Watchers:
    """Woken in the order in which they began to watch, so that equal runs of a simulation stay
    equal."""

    def __init__(self) -> None:
        self._events: dict[Key, dict[asyncio.Event, None]] = {}

    def wake(self, keys: Iterable[Key]) -> None:
        for key in dict.fromkeys(keys):
            for event in list(self._events.get(key, ())):
                event.set()

    def add(self, key: Key, event: asyncio.Event) -> None:
        self._events.setdefault(key, {})[event] = None

    def remove(self, key: Key, event: asyncio.Event) -> None:
        events = self._events[key]
        del events[event]
        if not events:
            del self._events[key]


class Watch:
    """`async with turns.watch(run_id) as changed: await changed.wait(); changed.clear()`."""

    def __init__(self, watchers: Watchers, key: Key) -> None:
        self._watchers = watchers
        self._key = key
        self._event = Flag()

    async def __aenter__(self) -> asyncio.Event:
        self._watchers.add(self._key, self._event)
        return self._event

    async def __aexit__(self, *_: object) -> None:
        self._watchers.remove(self._key, self._event)
