"""The history of the runs of a `MemoryStore`: what the SQL store does with rows."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from controller.lifecycle.model import Attempt, Job, Past, PastRunning, RunState
from controller.lifecycle.recent import KEPT_ATTEMPTS
from controller.lifecycle.statuses import AllocationState


def is_of_incarnation(attempt: Attempt, key: str) -> bool:
    incarnation = attempt.incarnation
    return incarnation is not None and key in (incarnation.id, str(incarnation.number))


def whole(old: RunState | None, new: RunState) -> RunState:
    """The committed state with all that it no longer has."""
    if old is None:
        return new
    before = {job.id: job for job in old.jobs}
    there = {place.id for place in new.allocations}
    earlier = tuple(place for place in old.allocations if place.id not in there)
    jobs = tuple(_whole_job(before.get(job.id), job) for job in new.jobs)
    if not earlier and all(job is one for job, one in zip(jobs, new.jobs, strict=True)):
        return new
    return RunState(
        run=replace(new.run, past_running=PastRunning()),
        jobs=jobs,
        allocations=(*earlier, *new.allocations),
    )


def _whole_job(old: Job | None, new: Job) -> Job:
    there = {attempt.id for attempt in new.attempts}
    earlier = [a for a in (old.attempts if old else ()) if a.id not in there]
    if not earlier:
        return new
    attempts = sorted((*earlier, *new.attempts), key=lambda attempt: attempt.number)
    return replace(new, attempts=tuple(attempts), past=Past())


def forgettable(state: RunState, finished_before: float) -> list[Attempt]:
    occupied = {p.id for p in state.allocations if p.state is not AllocationState.RELEASED}
    return [
        attempt
        for job in state.jobs
        for attempt in job.attempts
        if attempt.occurrence < state.run.occurrence
        and attempt.finished_at is not None
        and attempt.finished_at < finished_before
        and attempt.number <= job.attempts[-1].number - KEPT_ATTEMPTS
        and attempt.allocation_id not in occupied
    ]


def without(state: RunState, old: Collection[Attempt], released_before: float) -> RunState:
    gone = {attempt.id for attempt in old}
    jobs = tuple(
        replace(job, attempts=tuple(a for a in job.attempts if a.id not in gone))
        for job in state.jobs
    )
    used = {attempt.allocation_id for job in jobs for attempt in job.attempts}
    places = tuple(
        place
        for place in state.allocations
        if place.id in used or place.released_at is None or place.released_at >= released_before
    )
    return replace(state, jobs=jobs, allocations=places)
