"""RunReader finds runs, lists them with their attempts and events; RunService also watches them.

Every answer that reports a change is given after the change is committed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

import msgspec
from msgspec.structs import replace

from common.refusals import Invalid, NotFound
from controller.aio import Flag, Watch
from controller.lifecycle.events import NO_RUN, Event
from controller.lifecycle.model import Attempt, RunState, RunType
from controller.pipelines.run_pipeline import RunPipeline
from controller.service.accounts.rights import may_see, sees_all
from controller.service.jobs.access import find_attempt, find_job
from controller.service.runs.progress import ProgressWatch, PullsInProgress
from controller.store.accounts import User
from controller.store.base import StoredEvent
from fairlead.queries import AttemptQuery, EventQuery, RunQuery

MAX_NAMES = 10_000
MAX_CHILDREN = 1000
"""The number of stored children that are listed, the latest first; live ones come in addition."""


KEEP_ENDED_SECONDS = 2.0
_ID = re.compile(r"[0-9a-f]{16}")


class _EndedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The ended run that was read last. A page asks for the same one five times (itself, its
    events, its stream, its log), and 300 jobs take 25 ms to read."""

    key: str | None = None
    state: RunState | None = None
    read_at: float = 0.0
    revision: int = 0

    def is_right(self, now: float, revision: int) -> bool:
        """`now`: seconds that only grow. Retention removes runs without a commit of the pipeline,
        so a run is kept for a short time only."""
        is_fresh = now - self.read_at < KEEP_ENDED_SECONDS
        return self.state is not None and self.revision == revision and is_fresh


class LiveRuns(Protocol):
    """The runs that a controller has in memory, as they were committed."""

    @property
    def runs(self) -> Mapping[str, RunState]: ...
    @property
    def revision(self) -> int:
        """The number of commits so far."""

    def live_run_named(self, name: str) -> str | None:
        """Return the id of the live run with this name."""

    def children_of(self, run_id: str) -> list[RunState]:
        """Return the live runs that were submitted as children of this one."""


class StoredRuns(Protocol):
    """The part of a store that has the runs; see `Store`."""

    async def find_run(self, key: str, *, user: str | None = None) -> RunState | None: ...
    async def list_runs(self, query: RunQuery) -> list[RunState]: ...
    async def events(self, query: EventQuery) -> list[StoredEvent]: ...
    async def attempts(self, run_id: str, query: AttemptQuery) -> list[Attempt]: ...


class RunReader:
    """Finds runs, with what belongs to them, among the live ones and in the store."""

    def __init__(self, live: LiveRuns, store: StoredRuns) -> None:
        self._live = live
        self._store = store
        self._names: dict[str, str] = {}
        self._ended = _EndedRun()

    async def get(self, key: str) -> RunState:
        """Return the run with this id, else with this name; a live run with the name comes before
        finished ones. Raises NotFound."""
        live = self._live.runs.get(key)
        if live is None and not _ID.fullmatch(key):
            live = self._live.runs.get(self._live.live_run_named(key) or "")
        # Of what may be an id, the store tells whether it is an ended run's or a live one's name.
        found = live or await self._find_stored(key)
        if found is None:
            raise _no_run(key)
        # It may have been admitted while the store was asked: the live state is the newer one.
        return self._live.runs.get(found.run.id, found)

    async def _find_stored(self, key: str) -> RunState | None:
        # Both before the query: a commit during it makes the answer an old one.
        now, revision = asyncio.get_running_loop().time(), self._live.revision
        if self._ended.key == key and self._ended.is_right(now, revision):
            return self._ended.state
        found = await self._store.find_run(key)
        self._ended = _EndedRun(key=key, state=found, read_at=now, revision=revision)
        return found

    async def seen(self, key: str, user: User) -> RunState:
        """Return the run as `get` does, if this user may see it; own runs come before others' with
        the same name. To others a run is as if it were not there, so nobody learns its name.

        Raises NotFound, StoreUnavailable.
        """
        found = await self.get(key)
        if sees_all(user) or found.run.user == user.name:
            return found
        own = await self._store.find_run(key, user=user.name)
        if own is None:
            raise _no_run(key)
        return self._live.runs.get(own.run.id, own)

    async def attempts(self, state: RunState, query: AttemptQuery) -> list[Attempt]:
        """Return attempts of the run's whole history.

        Raises NotFound, Invalid (the run has no attempt with the id in `cursor`), StoreUnavailable.
        """
        job_id = None if query.job is None else find_job(state, query.job).id
        found = await self._store.attempts(state.run.id, replace(query, job=job_id))
        if query.cursor is not None and not found:
            known = await self._store.attempts(state.run.id, AttemptQuery(key=query.cursor))
            _require_known(query.cursor, [attempt.id for attempt in known])
        return found

    async def attempt(
        self, state: RunState, job_key: str | None, attempt_key: str | None
    ) -> Attempt | None:
        """Return the attempt as `find_attempt` does, from the history too. Raises NotFound,
        StoreUnavailable."""
        try:
            return find_attempt(state, job_key, attempt_key)
        except NotFound:
            job_id = find_job(state, job_key).id
            known = await self._store.attempts(state.run.id, AttemptQuery(key=attempt_key))
            of_job = [one for one in known if job_id == one.job_id or one.id == attempt_key]
            if not of_job:
                raise
            return of_job[0]

    async def names(self, events: Iterable[Event]) -> dict[str, str]:
        """Return the names of the runs, jobs and attempts of these events by id, as far as they are
        still stored. Raises StoreUnavailable."""
        wanted: dict[str, set[str]] = {}
        for event in events:
            if event.run_id == NO_RUN:
                continue
            about = (event.run_id, event.job_id, event.attempt_id)
            wanted.setdefault(event.run_id, set()).update(one for one in about if one is not None)
        if len(self._names) > MAX_NAMES:
            self._names.clear()
        found: dict[str, str] = {}
        for run_id, ids in wanted.items():
            live = self._live.runs.get(run_id)
            if live is not None or not ids <= self._names.keys():
                state = live or await self._store.find_run(run_id)
                known = {} if state is None or state.run.id != run_id else names_in(state)
                self._names |= {one: known.get(one, "") for one in ids}
            found |= {one: self._names[one] for one in ids if self._names[one]}
        return found

    def children(self, state: RunState) -> list[RunState]:
        """Return the live runs that were submitted with this one as their parent."""
        return self._live.children_of(state.run.id)

    async def family(self, state: RunState) -> list[RunState]:
        """Return all its stored children, ended ones too, oldest first. Raises StoreUnavailable."""
        query = RunQuery(all=True, parent_id=state.run.id, limit=MAX_CHILDREN)
        stored = await self._store.list_runs(query)
        known = [self._live.runs.get(child.run.id, child) for child in reversed(stored)]
        ids = {child.run.id for child in known}
        return [*(one for one in self.children(state) if one.run.id not in ids), *known]

    async def page(self, query: RunQuery, *, user: User) -> list[RunState]:
        """Return the runs that the user may see.

        Raises Invalid (the cursor is no run's id), StoreUnavailable.
        """
        if not sees_all(user):
            if query.user not in (None, user.name):
                return []
            query = replace(query, user=user.name)
        stored = await self._store.list_runs(query)
        last_known = query.last_known
        if last_known is not None and not stored:
            last = await self._store.find_run(last_known)
            _require_known(last_known, [] if last is None else [last.run.id])
        return [self._live.runs.get(state.run.id, state) for state in stored]

    def live_of(self, kind: RunType, user: User) -> list[RunState]:
        """Return all live runs of this type that the user may see, the newest first."""
        # Not pages of all live runs: a service can be older than thousands of tasks.
        found = [
            state
            for state in self._live.runs.values()
            if state.run.type is kind and may_see(user, state.run)
        ]
        return sorted(found, key=lambda one: (one.run.submitted_at, one.run.id), reverse=True)

    async def events(self, query: EventQuery, *, user: User) -> list[StoredEvent]:
        """Return the events of a run, or of all runs that the user may see.

        Raises NotFound, Forbidden, StoreUnavailable.
        """
        if query.run is not None:
            query = replace(query, run=(await self.seen(query.run, user)).run.id)
        if not sees_all(user):
            query = replace(query, user=user.name)
        return await self._store.events(query)


class RunService(RunReader):
    """Also watches runs, where they change."""

    def __init__(
        self, *, pipeline: RunPipeline, store: StoredRuns, progress: PullsInProgress
    ) -> None:
        super().__init__(pipeline, store)
        self._pipeline = pipeline
        self._progress = progress

    def changes(self, run_id: str | None) -> Watch:
        """Return a watch that wakes after each commit that changed this run; None: any run or
        node."""
        return self._pipeline.watch(run_id)

    @property
    def revision(self) -> int:
        """The number of changes so far. It begins again when the controller starts."""
        return self._pipeline.revision

    def changed_since(self, key: str | None, revision: int) -> bool:
        """Return whether this run or node (None: any) may have changed after that revision."""
        return self._pipeline.changed_since(key, revision)

    def changed_after(self, revision: int) -> list[str | None] | None:
        """Return the runs and nodes that changed after this revision; None: some are forgotten."""
        return self._pipeline.changed_after(revision)

    @asynccontextmanager
    async def watch(self, run_id: str) -> AsyncIterator[RunWatch]:
        async with self._pipeline.watch(run_id) as changed:
            progress = self._progress.watch(changed)
            try:
                yield RunWatch(self, run_id, changed, progress)
            finally:
                progress.attend(())


def names_in(state: RunState) -> dict[str, str]:
    """Return the names of a run, its jobs and its attempts for people, by id."""
    names = {state.run.id: state.run.name}
    for job in state.all_jobs:
        names[job.id] = f"{job.group}/{job.cookie}"
        names |= {one.id: f"{names[job.id]} #{one.number}" for one in job.attempts}
    return names


class RunWatch:
    """The states of one run: the present one first, then one after each change of it or of its pull
    progress."""

    def __init__(
        self, runs: RunService, run_id: str, changed: Flag, progress: ProgressWatch
    ) -> None:
        self._runs = runs
        self._run_id = run_id
        self._changed = changed
        self._progress = progress
        changed.set()

    async def next(self, patience: float) -> RunState | None:
        """Return the next state; None when nothing has changed for `patience` seconds."""
        return await self.state() if await self.wait(patience) else None

    async def wait(self, patience: float) -> bool:
        """Return True when there is a next state; False after `patience` seconds."""
        try:
            async with asyncio.timeout(patience):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def look_again(self) -> None:
        """Let the present state be the next one, changed or not."""
        self._changed.set()

    async def state(self) -> RunState:
        # Before the read: a change during it wakes the next wait.
        self._changed.clear()
        state = await self._runs.get(self._run_id)
        self._progress.attend(job.attempts[-1].id for job in state.jobs if job.attempts)
        return state


def _no_run(key: str) -> NotFound:
    return NotFound(f"there is no run {key!r}; `fairlead ps -a` shows all runs", field="run")


def _require_known(cursor: str, known: Collection[str]) -> None:
    """Raise Invalid for an unknown cursor: an empty page would mean that the list is over."""
    if cursor not in known:
        raise Invalid(
            f"{cursor!r} is not (or no longer) a cursor of this list: give the next_cursor of "
            f"the previous page, or begin again",
            field="cursor",
        )
