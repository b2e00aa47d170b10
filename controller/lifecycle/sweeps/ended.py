"""Ended sets leave the state that each turn decides, so that a sweep of 10,000 costs no more in a
turn than the jobs that live.

They stay in memory, because a user may list or retry them. Call `folded` with a committed state
only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec.structs import replace

from controller.lifecycle.model import EndedSets, Job, RunState
from controller.lifecycle.ranges import Ranges, in_ranges, union, without
from controller.lifecycle.sweeps.sets import by_set, has_run, status_of
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES, AllocationState
from fairlead.model.sweep import SetStatus

_ENDED = (SetStatus.DONE, SetStatus.FAILED, SetStatus.STOPPED)


def folded(state: RunState) -> RunState:
    """Return the state without the jobs of ended sets; the same object when there are none."""
    sweep = state.run.sweep
    if sweep is None:
        return state
    occupied = {a.job_id for a in state.allocations if a.state is not AllocationState.RELEASED}
    again = frozenset(sweep.again)
    leaving: dict[int, list[Job]] = {}
    statuses: dict[int, SetStatus] = {}
    for number, jobs in by_set(state.jobs).items():
        if not _is_clean(jobs) or any(job.id in occupied for job in jobs):
            continue
        if number in again:
            leaving[number] = jobs
        elif (status := status_of(state.run, jobs)) in _ENDED:
            leaving[number] = jobs
            statuses[number] = status
    if not leaving:
        return state
    ended = counted(state.ended, statuses)
    ran = in_ranges(number for number, jobs in leaving.items() if has_run(jobs))
    ended = replace(ended, ran=union(ended.ran, ran))
    gone = [job for jobs in leaving.values() for job in jobs]
    ids = {job.id for job in gone}
    return replace(
        state,
        jobs=tuple(job for job in state.jobs if job.id not in ids),
        allocations=tuple(one for one in state.allocations if one.job_id not in ids),
        ended=replace(ended, jobs=(*ended.jobs, *gone)),
    )


def brought_back(state: RunState, numbers: Collection[int]) -> RunState:
    """Return the state with the jobs of these ended sets among its others again."""
    if not numbers or state.run.sweep is None:
        return state
    ended, again = state.ended, frozenset(state.run.sweep.again)
    back = {number: jobs for number, jobs in by_set(ended.jobs).items() if number in numbers}
    statuses = {
        number: status_of(state.run, jobs) for number, jobs in back.items() if number not in again
    }
    ended = uncounted(ended, statuses)
    left = tuple(job for job in ended.jobs if job.replica not in back)
    moved = (job for jobs in back.values() for job in jobs)
    return replace(state, jobs=(*state.jobs, *moved), ended=replace(ended, jobs=left))


def counted(ended: EndedSets, statuses: Mapping[int, SetStatus]) -> EndedSets:
    """Return it with these sets too, by their numbers."""
    changes = {name: union(getattr(ended, name), numbers) for name, numbers in _by_status(statuses)}
    return replace(ended, **changes)


def uncounted(ended: EndedSets, statuses: Mapping[int, SetStatus]) -> EndedSets:
    """Return it without these sets: a set that waits again counts in no status."""
    changes = {
        name: without(getattr(ended, name), numbers) for name, numbers in _by_status(statuses)
    }
    return replace(ended, **changes)


def _by_status(statuses: Mapping[int, SetStatus]) -> Iterator[tuple[str, Ranges]]:
    """Yield the field of each status with its sets."""
    found: defaultdict[SetStatus, list[int]] = defaultdict(list)
    for number, status in statuses.items():
        found[status].append(number)
    for status, numbers in found.items():
        yield status.value, in_ranges(numbers)


def _is_clean(jobs: Iterable[Job]) -> bool:
    return all(
        attempt.status in FINAL_ATTEMPT_STATUSES and not attempt.cleanup_unknown
        for job in jobs
        for attempt in job.attempts
    )
