"""Finds the runs that client keys made before, and asks the store only about keys it may have."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from controller.lifecycle.model import RunState
from controller.store.base import Store
from controller.store.rows import submission_mark

Key = tuple[str, str]
"""A user and a client key."""


class EarlierRuns:
    """Nearly all keys are new, and a query for each was a third of a submission's CPU time. A
    filter of all keys, made at the first submission, tells most of the new ones.

    Only the controller that leads makes runs, so what it asks for is all that can be added.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._filter: MarkFilter | None = None
        self._making = asyncio.Lock()

    async def of(self, user: str, client_key: str) -> RunState | None:
        """Return the newest run that this user submitted with this key. Raises StoreUnavailable."""
        key = (user, client_key)
        return (await self.of_all([key])).get(key)

    async def of_all(self, keys: Collection[Key]) -> dict[Key, RunState]:
        """Return the newest run of each of these keys that made one. Raises StoreUnavailable."""
        known = self._filter or await self._made_filter()
        # Added before any is made: a request may be cancelled while its run is committed.
        maybe = [key for key in keys if not known.add(submission_mark(*key))]
        return await self._store.find_submissions(maybe) if maybe else {}

    async def _made_filter(self) -> MarkFilter:
        async with self._making:
            if self._filter is None:
                self._filter = MarkFilter(await self._store.submission_marks())
            return self._filter


class MarkFilter:
    """A Bloom filter of numbers of 64 bits: it may take a new number for a known one, about once in
    400, and never the other way round. A number takes 2 to 4 bytes."""

    _MIN_ROOM = 1 << 14

    def __init__(self, marks: Sequence[int] = ()) -> None:
        room = self._MIN_ROOM
        while room < 2 * len(marks):
            room *= 2
        # One for each time that there was no room left, because bits cannot be told apart again.
        self._parts = [_Part(room)]
        for mark in marks:
            self.add(mark)

    def add(self, mark: int) -> bool:
        """Add a number. Return whether it is certain that it was not there."""
        # The second hash is made of the first (Kirsch and Mitzenmacher, 2008); it is odd, so that
        # the probes of a part differ.
        step = mark >> 32 | 1
        probes = [mark + number * step for number in range(_PROBES)]
        if any(part.has(probes) for part in self._parts):
            return False
        if not self._parts[-1].room_left:
            self._parts.append(_Part(2 * self._parts[-1].room))
        self._parts[-1].add(probes)
        return True


_PROBES = 4
_BITS_EACH = 16


class _Part:
    def __init__(self, room: int) -> None:
        self.room = self.room_left = room
        self._mask = room * _BITS_EACH - 1
        self._bits = bytearray(room * _BITS_EACH // 8)

    def has(self, probes: Sequence[int]) -> bool:
        bits = (probe & self._mask for probe in probes)
        return all(self._bits[bit >> 3] >> (bit & 7) & 1 for bit in bits)

    def add(self, probes: Sequence[int]) -> None:
        self.room_left -= 1
        for probe in probes:
            bit = probe & self._mask
            self._bits[bit >> 3] |= 1 << (bit & 7)
