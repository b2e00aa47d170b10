"""What a user can ask about runs. Every answer that says "done" is committed before it is given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from controller.lifecycle.model import Attempt, RunState
from controller.pipelines.turns import Turns
from controller.pipelines.watching import Watch
from controller.service.access import require_sight, sees_all
from controller.service.errors import Invalid, NotFound
from controller.service.logs import find_attempt, find_job
from controller.service.progress import ProgressWatch, PullBoard
from controller.store.base import Store, StoredEvent
from controller.store.users import User

MOST_CHILDREN = 1000
"""The latest ones; live ones beyond."""


class RunWatch:
    """The states of one run: the present one first, then one after each change of it or of its
    pull progress."""

    def __init__(
        self, runs: RunService, run_id: str, changed: asyncio.Event, progress: ProgressWatch
    ) -> None:
        self._runs = runs
        self._run_id = run_id
        self._changed = changed
        self._progress = progress
        changed.set()

    async def next(self, patience: float) -> RunState | None:
        """None when nothing has changed for `patience` seconds."""
        try:
            async with asyncio.timeout(patience):
                await self._changed.wait()
        except TimeoutError:
            return None
        self._changed.clear()
        state = await self._runs.get(self._run_id)
        self._progress.attend(job.attempts[-1].id for job in state.jobs if job.attempts)
        return state


class RunService:
    def __init__(
        self,
        *,
        turns: Turns,
        store: Store,
        progress: PullBoard,
    ) -> None:
        self._turns = turns
        self._store = store
        self._progress = progress

    async def get(self, key: str) -> RunState:
        """By id or name; the live run of a name before finished ones. Raises NotFound."""
        live = self._turns.runs.get(key)
        if live is None:
            live = self._turns.runs.get(self._turns.live_run_named(key) or "")
        found = live or await self._store.find_run(key)
        if found is None:
            raise NotFound(f"there is no run {key!r}; `fairlead ps -a` shows all runs", field="run")
        return self._turns.runs.get(found.run.id, found)

    async def seen(self, key: str, user: User) -> RunState:
        """As `get`, for this user's eyes: own runs before others' of the same name.

        Raises NotFound, Forbidden, StoreUnavailable."""
        found = await self.get(key)
        if sees_all(user) or found.run.user == user.name:
            return found
        own = await self._store.find_run(key, user=user.name)
        if own is None:
            require_sight(user, found.run)
            return found
        return self._turns.runs.get(own.run.id, own)

    async def attempts(
        self,
        state: RunState,
        *,
        job_key: str | None = None,
        occurrence: int | None = None,
        incarnation: str | None = None,
        after: str | None = None,
        limit: int = 1000,
    ) -> list[Attempt]:
        """Of its whole history, oldest first; `after`: the id of the last one that is known.

        Raises NotFound, Invalid (`after` is none of its attempts), StoreUnavailable."""
        job_id = None if job_key is None else find_job(state, job_key).id
        found = await self._store.attempts(
            state.run.id,
            job_id=job_id,
            occurrence=occurrence,
            incarnation=incarnation,
            after=after,
            limit=limit,
        )
        if after is not None and not found:
            known = await self._store.attempts(state.run.id, key=after)
            _require_known(after, [attempt.id for attempt in known])
        return found

    async def attempt(
        self, state: RunState, job_key: str | None, attempt_key: str | None
    ) -> Attempt | None:
        """As `find_attempt`, in the history too. Raises NotFound, StoreUnavailable."""
        try:
            return find_attempt(state, job_key, attempt_key)
        except NotFound:
            job_id = find_job(state, job_key).id
            known = await self._store.attempts(state.run.id, key=attempt_key)
            of_job = [one for one in known if job_id == one.job_id or one.id == attempt_key]
            if not of_job:
                raise
            return of_job[0]

    def children(self, state: RunState) -> list[RunState]:
        """The live runs that were submitted with this one as their parent."""
        return self._turns.children_of(state.run.id)

    async def family(self, state: RunState) -> list[RunState]:
        """All its children that are kept, ended ones too, oldest first. Raises StoreUnavailable."""
        stored = await self._store.list_runs(parent_id=state.run.id, limit=MOST_CHILDREN)
        known = [self._turns.runs.get(child.run.id, child) for child in reversed(stored)]
        ids = {child.run.id for child in known}
        return [*(one for one in self.children(state) if one.run.id not in ids), *known]

    async def page(
        self, *, include_finished: bool, limit: int, before: str | None, user: User
    ) -> list[RunState]:
        """Those that the user may see, newest first. Raises Invalid (`before` is the id of no run),
        StoreUnavailable."""
        stored = await self._store.list_runs(
            include_finished=include_finished,
            limit=limit,
            before=before,
            user=None if sees_all(user) else user.name,
        )
        if before is not None and not stored:
            last = await self._store.find_run(before)
            _require_known(before, [] if last is None else [last.run.id])
        return [self._turns.runs.get(state.run.id, state) for state in stored]

    async def events(
        self, key: str | None, *, after: int, limit: int, user: User
    ) -> list[StoredEvent]:
        """Oldest first; of the run `key`, or of all that the user may see.

        Raises NotFound, Forbidden, StoreUnavailable."""
        run_id = None if key is None else (await self.seen(key, user)).run.id
        owner = None if sees_all(user) else user.name
        return await self._store.events(run_id=run_id, after=after, limit=limit, user=owner)

    def changes(self, run_id: str | None) -> Watch:
        """Wakes after each commit that changed this run; None: anything."""
        return self._turns.watch(run_id)

    @asynccontextmanager
    async def watch(self, run_id: str) -> AsyncIterator[RunWatch]:
        async with self._turns.watch(run_id) as changed:
            progress = self._progress.watch(changed)
            try:
                yield RunWatch(self, run_id, changed, progress)
            finally:
                progress.attend(())


def _require_known(cursor: str, known: Collection[str]) -> None:
    """An empty page would say that the list is over."""
    if cursor not in known:
        raise Invalid(
            f"{cursor!r} is no cursor of this list (any more): give the next_cursor of the page "
            f"before, or begin anew",
            field="cursor",
        )
