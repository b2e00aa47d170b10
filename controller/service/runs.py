"""Questions of users about runs: their state, why they wait, and where a run would go now.

Every answer that reports a change is given after the change is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Container, Iterable
from contextlib import asynccontextmanager

import msgspec

from controller.clock import Clock
from controller.lifecycle.awaited import Awaited, awaited
from controller.lifecycle.events import Event
from controller.lifecycle.gangs import incarnation
from controller.lifecycle.model import Attempt, Band, RunState
from controller.lifecycle.reasons import Reason
from controller.lifecycle.schedules import waits_for_trigger
from controller.lifecycle.services.replicas import SLEEPS, sleeps
from controller.lifecycle.statuses import FINAL_RUN_STATUSES, AttemptStatus, RunStatus
from controller.pipelines.live_state import Watch
from controller.pipelines.run_pipeline import RunPipeline
from controller.scheduling.answers import PlannedPlace, Waiting
from controller.scheduling.feasibility import as_begun, why_queued
from controller.service.errors import Invalid, NotFound
from controller.service.job_access import find_attempt, find_job
from controller.service.progress import ProgressWatch, PullsInProgress
from controller.service.submissions import Submission, SubmissionService
from controller.service.users import names_for, sees_all
from controller.store.base import Store, StoredEvent, User


class UnderWay(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that wait for the same thing, after the queue or before it.

    `until` and `ends_as` are those of the job whose wait ends first.
    """

    jobs: tuple[str, ...]
    status: AttemptStatus
    what: str
    until: float | None
    ends_as: Reason | None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run waits. `about`: what it waits for besides allocations; always set when `waiting` is
    empty."""

    state: RunState
    about: str | None
    waiting: tuple[Waiting, ...]
    under_way: tuple[UnderWay, ...]


class ExplainService:
    def __init__(self, turns: RunPipeline, runs: RunService, clock: Clock) -> None:
        self._turns = turns
        self._runs = runs
        self._clock = clock

    async def explain(self, key: str, user: User) -> Explanation:
        """Explain the run. Raises NotFound, Forbidden, StoreUnavailable."""
        state = await self._runs.seen(key, user)
        now = self._clock.now()
        found = self._turns.scheduler.explain(state.run.id, now, names_for(user))
        about = why_not_whole(state, now) or (None if found else why_nothing_waits(state))
        queued = {label for waiting in found for label in waiting.jobs}
        return Explanation(
            state=state, about=about, waiting=tuple(found), under_way=under_way(state, queued)
        )


def under_way(state: RunState, queued: Container[str] = ()) -> tuple[UnderWay, ...]:
    """Return what every job with a live attempt waits for, without the `queued` ones."""
    alike: dict[tuple[object, ...], list[tuple[str, AttemptStatus, Awaited]]] = {}
    for job in state.jobs:
        label = f"{job.group}/{job.cookie}"
        found = awaited(state, job.attempts[-1]) if job.attempts else None
        if found is not None and label not in queued:
            status = job.attempts[-1].status
            alike.setdefault((status, found.what, found.ends_as), []).append((label, status, found))
    return tuple(_as_one(same) for same in alike.values())


def _as_one(same: list[tuple[str, AttemptStatus, Awaited]]) -> UnderWay:
    _, status, first = same[0]
    untils = [found.until for _, _, found in same if found.until is not None]
    return UnderWay(
        jobs=tuple(label for label, _, _ in same),
        status=status,
        what=first.what,
        until=min(untils, default=None),
        ends_as=first.ends_as,
    )


def why_not_whole(state: RunState, now: float) -> str | None:
    """Return why a gang that holds allocations is not whole; None: it is whole, or waits for all of
    them."""
    gathers = incarnation.gathering(state.run, state.jobs)
    if gathers is None:
        return None
    left = max(0.0, gathers.gives_up_at - now)
    unless = "unless a pull or a placement makes progress"
    return f"{gathers}; it releases its allocations in {left:.0f} s {unless}"


def why_nothing_waits(state: RunState) -> str:
    """Return, for a run without jobs in the queue, one sentence that says why."""
    run = state.run
    if run.status in FINAL_RUN_STATUSES:
        return f"it has ended: {run.status}"
    if run.suspended:
        return f"it is suspended; `fairlead resume {run.name}` continues it"
    if waits_for_trigger(run):
        return "it waits for its next trigger"
    if sleeps(run):
        return SLEEPS
    if any(job.retry_at is not None for job in state.jobs):
        return "it waits before a job is tried again"
    return _why_jobs_wait(state) or "none of its jobs waits for an allocation"


def _why_jobs_wait(state: RunState) -> str | None:
    """Return what the first job without an allocation waits for, if that is not an allocation."""
    waiting = [
        (f"{job.group}/{job.cookie}", job.attempts[-1].pending_reason)
        for job in state.jobs
        if job.attempts and job.attempts[-1].status is AttemptStatus.SUBMITTED
    ]
    told = [(label, reason) for label, reason in waiting if reason is not None]
    if not told:
        return None
    first, why = told[0]
    alike = sum(reason == why for _, reason in told) - 1
    label = f"{first} and {alike} more" if alike else first
    return f"{label}: {why.sentence()}"


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """The planned placement of a run. `refused`: why a submit would be refused, and `field` the
    field; then nothing is planned."""

    state: RunState
    allocations: tuple[PlannedPlace, ...] = ()
    refused: str | None = None
    field: str | None = None
    warning: str | None = None


class PlanService:
    def __init__(self, turns: RunPipeline, submissions: SubmissionService, clock: Clock) -> None:
        self._turns = turns
        self._submissions = submissions
        self._clock = clock

    def plan(self, submission: Submission, *, user: User) -> Preview:
        """Preview a submission. Raises ConfigurationError, Invalid, Refused (a band that was not
        granted)."""
        state = as_begun(self._submissions.would_make(submission, user=user))
        nodes = tuple(self._turns.nodes.values())
        never = self._submissions.why_not_changed(state, user)
        never = never or self._turns.scheduler.why_never(state)
        if never is not None:
            field, sentence = never
            return Preview(state=state, refused=sentence, field=field)
        scheduler, now = self._turns.scheduler, self._clock.now()
        allocations = tuple(scheduler.preview(state, now, names_for(user)))
        warnings = (self._submissions.why_not_named_so(state, user), why_queued(state, nodes))
        warning = "; ".join(one for one in warnings if one is not None)
        return Preview(state=state, allocations=allocations, warning=warning or None)


def names_in(state: RunState) -> dict[str, str]:
    """Return the names of a run, its jobs and its attempts for people, by id."""
    names = {state.run.id: state.run.name}
    for job in state.jobs:
        names[job.id] = f"{job.group}/{job.cookie}"
        names |= {one.id: f"{names[job.id]} #{one.number}" for one in job.attempts}
    return names


MOST_NAMES = 10_000
MOST_CHILDREN = 1000
"""The number of stored children that are listed, the latest first; live ones come in addition."""


class RunWatch:
    """The states of one run: the present one first, then one after each change of it or of its pull
    progress."""

    def __init__(
        self, runs: RunService, run_id: str, changed: asyncio.Event, progress: ProgressWatch
    ) -> None:
        self._runs = runs
        self._run_id = run_id
        self._changed = changed
        self._progress = progress
        changed.set()

    async def next(self, patience: float) -> RunState | None:
        """Return the next state; None when nothing has changed for `patience` seconds."""
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
        turns: RunPipeline,
        store: Store,
        progress: PullsInProgress,
    ) -> None:
        self._turns = turns
        self._store = store
        self._progress = progress
        self._names: dict[str, str] = {}

    async def get(self, key: str) -> RunState:
        """Return the run with this id or name; a live run with the name comes before finished ones.
        Raises NotFound."""
        live = self._turns.runs.get(key)
        if live is None:
            live = self._turns.runs.get(self._turns.live_run_named(key) or "")
        found = live or await self._store.find_run(key)
        if found is None:
            raise _no_run(key)
        return self._turns.runs.get(found.run.id, found)

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
        """Return attempts of the run's whole history, oldest first; `after`: the id of the last
        known one.

        Raises NotFound, Invalid (the run has no attempt `after`), StoreUnavailable.
        """
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
        """Return the attempt as `find_attempt` does, from the history too. Raises NotFound,
        StoreUnavailable."""
        try:
            return find_attempt(state, job_key, attempt_key)
        except NotFound:
            job_id = find_job(state, job_key).id
            known = await self._store.attempts(state.run.id, key=attempt_key)
            of_job = [one for one in known if job_id == one.job_id or one.id == attempt_key]
            if not of_job:
                raise
            return of_job[0]

    async def names(self, events: Iterable[Event]) -> dict[str, str]:
        """Return the names of the runs, jobs and attempts of these events by id, as far as they are
        still stored. Raises StoreUnavailable."""
        wanted: dict[str, set[str]] = {}
        for event in events:
            about = (event.run_id, event.job_id, event.attempt_id)
            wanted.setdefault(event.run_id, set()).update(one for one in about if one is not None)
        if len(self._names) > MOST_NAMES:
            self._names.clear()
        found: dict[str, str] = {}
        for run_id, ids in wanted.items():
            live = self._turns.runs.get(run_id)
            if live is not None or not ids <= self._names.keys():
                state = live or await self._store.find_run(run_id)
                known = {} if state is None or state.run.id != run_id else names_in(state)
                self._names |= {one: known.get(one, "") for one in ids}
            found |= {one: self._names[one] for one in ids if self._names[one]}
        return found

    def children(self, state: RunState) -> list[RunState]:
        """Return the live runs that were submitted with this one as their parent."""
        return self._turns.children_of(state.run.id)

    async def family(self, state: RunState) -> list[RunState]:
        """Return all its stored children, ended ones too, oldest first. Raises StoreUnavailable."""
        stored = await self._store.list_runs(parent_id=state.run.id, limit=MOST_CHILDREN)
        known = [self._turns.runs.get(child.run.id, child) for child in reversed(stored)]
        ids = {child.run.id for child in known}
        return [*(one for one in self.children(state) if one.run.id not in ids), *known]

    async def page(
        self,
        *,
        include_finished: bool,
        limit: int,
        before: str | None,
        user: User,
        owner: str | None = None,
        statuses: Collection[RunStatus] = (),
        name: str | None = None,
        band: Band | None = None,
    ) -> list[RunState]:
        """Return the runs that the user may see, newest first.

        `owner`, `statuses`, `name` (a pattern with `*` and `?`) and `band` leave out others.

        Raises Invalid (`before` is no run's id), StoreUnavailable.
        """
        if owner is not None and not sees_all(user) and owner != user.name:
            return []
        stored = await self._store.list_runs(
            include_finished=include_finished or not FINAL_RUN_STATUSES.isdisjoint(statuses),
            limit=limit,
            before=before,
            user=owner if sees_all(user) else user.name,
            statuses=statuses,
            name=name,
            band=band,
        )
        if before is not None and not stored:
            last = await self._store.find_run(before)
            _require_known(before, [] if last is None else [last.run.id])
        return [self._turns.runs.get(state.run.id, state) for state in stored]

    async def events(
        self,
        key: str | None,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int,
        user: User,
        node_id: str | None = None,
    ) -> list[StoredEvent]:
        """Return the events of the run `key`, or of all runs that the user may see, oldest first.
        With `before`: the latest of those with a lower `seq`; with `node_id`: those of attempts on
        that node.

        Raises NotFound, Forbidden, StoreUnavailable.
        """
        run_id = None if key is None else (await self.seen(key, user)).run.id
        owner = None if sees_all(user) else user.name
        return await self._store.events(
            run_id=run_id, after=after, before=before, limit=limit, user=owner, node_id=node_id
        )

    def changes(self, run_id: str | None) -> Watch:
        """Return a watch that wakes after each commit that changed this run; None: any run or
        node."""
        return self._turns.watch(run_id)

    @property
    def revision(self) -> int:
        """The number of changes so far. It begins again when the controller starts."""
        return self._turns.revision

    def changed_since(self, key: str | None, revision: int) -> bool:
        """Return whether this run or node (None: any) may have changed after that revision."""
        return self._turns.changed_since(key, revision)

    @asynccontextmanager
    async def watch(self, run_id: str) -> AsyncIterator[RunWatch]:
        async with self._turns.watch(run_id) as changed:
            progress = self._progress.watch(changed)
            try:
                yield RunWatch(self, run_id, changed, progress)
            finally:
                progress.attend(())


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
