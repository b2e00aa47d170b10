"""The times at which RunPipeline looks at a run again, and the callers that wait for a commit."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterable
from typing import NamedTuple


class Deadlines:
    """The one deadline of each run. Older entries of the heap are skipped when their time comes."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._wake_at: dict[str, float] = {}

    def __len__(self) -> int:
        """Return the number of entries in the heap, skipped ones included."""
        return len(self._heap)

    def next(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def set(self, run_id: str, at: float | None) -> None:
        if at is None:
            self._wake_at.pop(run_id, None)
        elif self._wake_at.get(run_id) != at:
            self._wake_at[run_id] = at
            heapq.heappush(self._heap, (at, run_id))

    def due(self, now: float) -> list[str]:
        """Take out the runs whose deadline has come."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            at, run_id = heapq.heappop(self._heap)
            if self._wake_at.get(run_id) == at:
                del self._wake_at[run_id]
                due.append(run_id)
        return due


class Waiter(NamedTuple):
    """A caller that waits for a commit. `of`: the id of the run or node, or the fleet's name, that
    it concerns."""

    done: asyncio.Future[None]
    of: str | None


def resolve(waiters: Iterable[Waiter], error: Exception | None) -> None:
    """Answer these callers; `error`: why there was no commit."""
    for done, _ in waiters:
        # Its caller was cancelled meanwhile.
        if done.done():
            continue
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)
