"""Helpers for asyncio: flags, who waits for which change, waits between tries, slots, and work in
stretches."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import takewhile
from typing import TypeVar


class Flag:
    """An `asyncio.Event` of 104 bytes: an Event takes 850, and each node with a job has five."""

    __slots__ = ("_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[asyncio.Future[None]] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Set the flag and wake all that wait, even if it is cleared before they run."""
        self._is_set = True
        for waiter in self._waiting:
            # Set before and not run since, or cancelled: a future takes no second result.
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        self._is_set = False

    async def wait(self) -> None:
        """Return when the flag is set, and at once if it is."""
        if self._is_set:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        finally:
            self._waiting.remove(waiter)


Key = str | None
"""The id of a run or a node; None: any."""
_MAX_REMEMBERED = 10_000


class Watchers:
    """Callers that wait for changes. They are woken in the order in which they began to watch, so
    that equal simulations stay equal.

    `revision` counts the changes, so that a caller who read a state earlier can ask whether it is
    still the latest.
    """

    def __init__(self) -> None:
        self._events: dict[Key, dict[Flag, None]] = {}
        self._changed_at: dict[Key, int] = {}
        """The revision of the latest change of each key, the oldest first."""
        self._forgotten = 0
        self.revision = 0

    def wake(self, keys: Iterable[Key], revision: int | None = None) -> None:
        """`revision`: that of the changes, if it is another one's; None: the next one."""
        self.revision = self.revision + 1 if revision is None else revision
        for key in dict.fromkeys(keys):
            # A dict keeps the place of a key that it has, and the oldest key must stand first.
            self._changed_at.pop(key, None)
            self._changed_at[key] = self.revision
            for event in list(self._events.get(key, ())):
                event.set()
        while len(self._changed_at) > _MAX_REMEMBERED:
            self._forgotten = self._changed_at.pop(next(iter(self._changed_at)))

    def changed_since(self, key: Key, revision: int) -> bool:
        """Return whether it changed after this revision; also True where that is forgotten."""
        return self._changed_at.get(key, self._forgotten) > revision

    def changed_after(self, revision: int) -> list[Key] | None:
        """Return what changed after this revision; None: some of it is forgotten."""
        if revision < self._forgotten:
            return None
        latest_first = reversed(self._changed_at.items())
        return [key for key, _ in takewhile(lambda one: one[1] > revision, latest_first)]

    def begin_at(self, revision: int) -> None:
        """Wake all: anything may have changed, and nothing is known of revisions before this."""
        self.revision = self._forgotten = revision
        self._changed_at.clear()
        for events in self._events.values():
            for event in events:
                event.set()

    def add(self, key: Key, event: Flag) -> None:
        self._events.setdefault(key, {})[event] = None

    def remove(self, key: Key, event: Flag) -> None:
        events = self._events[key]
        del events[event]
        if not events:
            del self._events[key]


class Watch:
    """`async with pipeline.watch(run_id) as changed: await changed.wait(); changed.clear()`."""

    def __init__(self, watchers: Watchers, key: Key) -> None:
        self._watchers = watchers
        self._key = key
        self._event = Flag()

    async def __aenter__(self) -> Flag:
        self._watchers.add(self._key, self._event)
        return self._event

    async def __aexit__(self, *_: object) -> None:
        self._watchers.remove(self._key, self._event)


class Backoff:
    """Waits `first` seconds, then twice as long each time up to `most`, ±20 % by `jitter`."""

    def __init__(self, first: float, most: float, jitter: Callable[[], float]) -> None:
        self._first = first
        self._most = most
        self._jitter = jitter
        self._next = first

    def reset(self) -> None:
        self._next = self._first

    async def wait(self, kick: Flag | None = None) -> None:
        """Wait; return earlier when `kick` is set, and clear it. Then the waits begin again at
        `first`."""
        # Spread, so that all that a restart has cut off do not come back at the same moment.
        delay = self._next * (1.0 + 0.2 * self._jitter())
        self._next = min(self._most, self._next * 2)
        if kick is None:
            await asyncio.sleep(delay)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                # A kick means that something has changed: the next failure waits for a short time.
                await kick.wait()
                self.reset()
        kick.clear()


class Slots:
    """Lets `at_once` tasks work at once."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def slot(self, lent_for: float) -> Slot:
        """Return a context manager that waits for a slot, first come, first served. After so many
        seconds the next task gets it, even if this one is not done."""
        return Slot(self, lent_for)

    async def take(self) -> None:
        given = asyncio.get_running_loop().create_future()
        self._waiting.append(given)
        self._give_out()
        try:
            await given
        except asyncio.CancelledError:
            # Cancelled after it got the slot and before it ran: the slot goes to the next.
            if not given.cancelled():
                self.give_back()
            raise

    def give_back(self) -> None:
        self._taken -= 1
        self._give_out()

    def _give_out(self) -> None:
        while self._waiting and self._taken < self._at_once:
            given = self._waiting.popleft()
            # A task that was cancelled leaves its place in the line.
            if not given.done():
                self._taken += 1
                given.set_result(None)


class Slot:
    """A slot while it is lent. A task inside may live as long as its job, so this is small."""

    __slots__ = ("_lent_for", "_slots", "_timer")

    def __init__(self, slots: Slots, lent_for: float) -> None:
        self._slots = slots
        self._lent_for = lent_for
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Slot:
        await self._slots.take()
        self._timer = asyncio.get_running_loop().call_later(self._lent_for, self.give_back)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.give_back()

    def give_back(self) -> None:
        """Let the next task in; a slot that was given back stays so."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            self._slots.give_back()


T = TypeVar("T")
MAX_AT_A_STRETCH = 32
"""Items are counted, time is not, so that equal simulations stay equal."""


async def in_stretches(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items and let other tasks run in between. `items` must not change meanwhile."""
    for number, item in enumerate(items):
        if number and number % MAX_AT_A_STRETCH == 0:
            # A loop that counts thousands of items would hold up heartbeats and probes.
            await asyncio.sleep(0)
        yield item
