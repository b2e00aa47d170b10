"""Stores that misbehave in one named way each, around a store that does not."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Collection

from controller.lifecycle.machines.cost import DayCosts
from controller.lifecycle.model import Attempt, RunState
from controller.store.base import Boot, Changes, Sight, Snapshot, Store, StoredEvent
from controller.store.errors import LeaseTaken, StoreRefused, StoreUnavailable
from fairlead.queries import AttemptQuery, EventQuery, RunQuery


class _Around:
    def __init__(self, inner: Store) -> None:
        self._inner = inner

    async def open(self) -> Boot:
        return await self._inner.open()

    async def load(self) -> Snapshot:
        return await self._inner.load()

    async def commit(self, changes: Changes) -> None:
        await self._inner.commit(changes)

    async def find_run(self, key: str, *, user: str | None = None) -> RunState | None:
        return await self._inner.find_run(key, user=user)

    async def find_submissions(
        self, keys: Collection[tuple[str, str]]
    ) -> dict[tuple[str, str], RunState]:
        return await self._inner.find_submissions(keys)

    async def submission_marks(self) -> array[int]:
        return await self._inner.submission_marks()

    async def list_runs(self, query: RunQuery) -> list[RunState]:
        return await self._inner.list_runs(query)

    async def events(self, query: EventQuery) -> list[StoredEvent]:
        return await self._inner.events(query)

    async def attempts_on(
        self, node_ids: Collection[str], *, since: float, limit: int = 1000
    ) -> list[tuple[str, Attempt]]:
        return await self._inner.attempts_on(node_ids, since=since, limit=limit)

    async def costs_of_days(self, first: str) -> list[DayCosts]:
        return await self._inner.costs_of_days(first)

    async def peers(self) -> Sight | None:
        return await self._inner.peers()

    async def attempts(self, run_id: str, query: AttemptQuery) -> list[Attempt]:
        return await self._inner.attempts(run_id, query)

    async def forget_attempts(self, *, finished_before: float, limit: int) -> int:
        return await self._inner.forget_attempts(finished_before=finished_before, limit=limit)

    async def forget(self, *, finished_before: float, limit: int) -> int:
        return await self._inner.forget(finished_before=finished_before, limit=limit)

    async def renew_lease(self) -> None:
        await self._inner.renew_lease()

    async def close(self) -> None:
        await self._inner.close()


class DiskFull(_Around):
    """Commits fail while `full`; reading still works."""

    full = True

    async def commit(self, changes: Changes) -> None:
        if self.full:
            raise StoreUnavailable("the database can't be used now: database or disk is full")
        await super().commit(changes)


class Refusing(_Around):
    """A commit that changes one of these runs or nodes (or tells of one) is refused, however often;
    `takes` says what of a run is taken all the same."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.runs: set[str] = set()
        self.nodes: set[str] = set()
        self.takes: Callable[[RunState], bool] = lambda _: False
        self.refused = 0

    async def commit(self, changes: Changes) -> None:
        runs = {
            run_id
            for run_id, (_, state) in changes.runs.items()
            if run_id in self.runs and not self.takes(state)
        }
        nodes = self.nodes & (changes.nodes.keys() | set(changes.removed_nodes))
        if runs or nodes:
            self.refused += 1
            raise StoreRefused("the database refuses it: out of range", runs=runs, nodes=nodes)
        await super().commit(changes)


class SlowCommit(_Around):
    """A commit waits until the test sets `go_on`; `waiting` says that one does."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.go_on = asyncio.Event()
        self.waiting = asyncio.Event()

    def hold(self) -> None:
        """Let the next commit wait again."""
        self.go_on.clear()
        self.waiting.clear()

    async def commit(self, changes: Changes) -> None:
        self.waiting.set()
        await self.go_on.wait()
        await super().commit(changes)


class TakenOver(_Around):
    """Another controller took the lease after `commits` commits of this one."""

    def __init__(self, inner: Store, commits: int = 0) -> None:
        super().__init__(inner)
        self._commits_left = commits

    async def commit(self, changes: Changes) -> None:
        if self._commits_left <= 0:
            raise LeaseTaken("another controller has taken over; this one leads no more")
        self._commits_left -= 1
        await super().commit(changes)

    async def renew_lease(self) -> None:
        if self._commits_left <= 0:
            raise LeaseTaken("another controller has taken over; this one leads no more")
        await super().renew_lease()


class Crash(BaseException):
    """The controller was killed: nothing after this line of it ever happened."""


class CrashBeforeCommit(_Around):
    """Killed when a turn was decided but not committed; `crash` arms it."""

    crash = True

    async def commit(self, changes: Changes) -> None:
        if self.crash:
            raise Crash
        await super().commit(changes)


class CrashAfterCommit(_Around):
    """Killed when a turn was committed but nobody was told."""

    crash = True

    async def commit(self, changes: Changes) -> None:
        await super().commit(changes)
        if self.crash:
            raise Crash


class CountedCommits(DiskFull):
    """Notes what was committed, and how often a commit failed. Not `full` at first."""

    full = False

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.commits: list[Changes] = []
        self.failures = 0

    async def commit(self, changes: Changes) -> None:
        try:
            await super().commit(changes)
        except StoreUnavailable:
            self.failures += 1
            raise
        self.commits.append(changes)
