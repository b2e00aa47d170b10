"""The times at which RunPipeline looks at a run again, and the callers that wait for a commit."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterable
from typing import NamedTuple

from controller.store.base import Commits
from controller.store.errors import StoreError


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


class Callers:
    """The callers that wait for the next commit."""

    def __init__(self, wake: asyncio.Event) -> None:
        """`wake`: set when somebody waits, so that a turn follows."""
        self.ended: StoreError | None = None
        """Why there are no more commits."""
        self._waiters: list[Waiter] = []
        self._wake = wake

    async def next_commit(self, of: str | None) -> None:
        # Nobody takes turns any more, so nobody would ever resolve the waiter.
        if self.ended is not None:
            raise self.ended
        await self.waiter(of).done
        Commits.note()

    def waiter(self, of: str | None) -> Waiter:
        waiter = Waiter(asyncio.get_running_loop().create_future(), of)
        self._waiters.append(waiter)
        self._wake.set()
        return waiter

    def take(self) -> list[Waiter]:
        waiters, self._waiters = self._waiters, []
        return waiters

    def put_back(self, waiters: Iterable[Waiter]) -> None:
        """Let these wait for the next commit, before those that came meanwhile."""
        self._waiters[:0] = waiters

    def end(self, why: StoreError) -> None:
        """Answer all callers, those of later too: there are no more commits."""
        self.ended = why
        resolve(self.take(), why)
