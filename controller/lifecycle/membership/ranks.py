"""Queries read a run with gangs; none of them changes anything.

A run is a gang run when one of its groups has a `gang_size`. All its jobs then live in
incarnations: each attempt carries one, and an attempt of an older one is history. A *ranked*
attempt has a rank (all jobs of a plain group next to a gang have one); a *reserved* attempt has
none. The scheduler uses `waiting_ranked`, `anchors` and `waiting_reserved`; the code that starts
jobs uses `ranked_hold_allocations`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from controller.lifecycle.model import Allocation, Attempt, Group, Job, Run, RunState
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AllocationState, AttemptStatus


def is_gang_run(run: Run) -> bool:
    return run.incarnation is not None


def group_of(run: Run, job: Job) -> Group | None:
    return next((group for group in run.groups if group.name == job.group), None)


def in_gang_group(run: Run, job: Job) -> bool:
    """Return whether the job's group is a gang, not a plain group next to a gang."""
    group = group_of(run, job)
    return group is not None and group.gang_size is not None


def is_current(run: Run, attempt: Attempt) -> bool:
    """Return whether the attempt belongs to the run's present occurrence and incarnation."""
    return attempt.occurrence == run.occurrence and attempt.incarnation == run.incarnation


def is_reserved(attempt: Attempt) -> bool:
    """Return whether the attempt runs in a gang without a rank."""
    return attempt.incarnation is not None and attempt.rank is None


def current_attempts(run: Run, jobs: Iterable[Job]) -> Iterator[Attempt]:
    """Yield the last attempt of each job that has one in the present incarnation."""
    for job in jobs:
        if job.attempts and is_current(run, job.attempts[-1]):
            yield job.attempts[-1]


def ranked_attempts(run: Run, jobs: Iterable[Job]) -> list[Attempt]:
    """Return the ranked attempts of the present incarnation, ended ones included, in the order of
    the jobs."""
    if not is_gang_run(run):
        return []
    return [one for one in current_attempts(run, jobs) if one.rank is not None]


def waiting_ranked(state: RunState) -> list[Attempt]:
    """Return the ranked attempts without an allocation: they are placed all or nothing.

    Empty for a run without a gang.
    """
    ranked = ranked_attempts(state.run, state.jobs)
    return [attempt for attempt in ranked if attempt.status is AttemptStatus.SUBMITTED]


def waiting_reserved(state: RunState) -> list[Attempt]:
    """Return the reserved attempts without an allocation: each is placed on its own, after all
    ranked ones.

    Empty while a rank comes back that will need their room.
    """
    if a_rank_comes_back(state.run, state.jobs):
        return []
    return [
        attempt
        for attempt in current_attempts(state.run, state.jobs)
        if is_reserved(attempt) and attempt.status is AttemptStatus.SUBMITTED
    ]


def a_rank_comes_back(run: Run, jobs: Iterable[Job]) -> bool:
    """Return whether a rank of a plain group next to the gang will be tried again.

    Reserved jobs of its own run must not take its room: they end only with the run, and the ranks
    that have not begun wait for this one, so the run would never go on.
    """
    over = (None, Reason.DONE_BY_RUNNER, Reason.ABANDONED)
    return any(one.reason not in over for one in ranked_attempts(run, jobs))


def ranked_hold_allocations(run: Run, jobs: Iterable[Job]) -> bool:
    """Return whether every rank of the present incarnation has an allocation, or had it and has
    ended.

    False while a switch waits, and for a run without a gang.
    """
    ranked = ranked_attempts(run, jobs)
    return bool(ranked) and all(one.status is not AttemptStatus.SUBMITTED for one in ranked)


def anchors(state: RunState) -> list[Allocation]:
    """Return the allocations that the ranked attempts of the present incarnation hold.

    The attempts of `waiting_ranked` must get the same fleet and the same `placement`. Empty: they
    may go anywhere.
    """
    ids = {one.allocation_id for one in ranked_attempts(state.run, state.jobs)}
    return [a for a in state.allocations if a.id in ids and is_held(a)]


def is_held(allocation: Allocation) -> bool:
    """Return whether the allocation is held and not about to be given back."""
    return allocation.state is AllocationState.HELD and not allocation.releasing


def keeps_allocation(run: Run, attempt: Attempt) -> bool:
    """Return whether the allocation of this ended attempt is kept for its job's next one."""
    own, now = attempt.incarnation, run.incarnation
    if own is None or now is None or attempt.occurrence != run.occurrence:
        return False
    if own.number == now.number:
        return attempt.reason is Reason.DONE_BY_RUNNER and not is_reserved(attempt)
    if own.number != now.number - 1 or (run.switches and run.switches[-1].whole):
        return False
    if attempt.reason is Reason.DONE_BY_RUNNER:
        return not is_reserved(attempt)
    return attempt.reason is Reason.INCARNATION_CHANGED


def is_there(attempt: Attempt) -> bool:
    """Return whether the shim reported `creating` or later in this incarnation (for
    `reincarnation_timeout`)."""
    began = attempt.pull.creating_seen or attempt.seen.container_started
    return began or attempt.running_at is not None


def is_whole(run: Run, jobs: Sequence[Job]) -> bool:
    """Return whether every rank of the present incarnation is, or was, there.

    Abandoned jobs do not count. A plain job that is replaced later does not make the gang
    incomplete again.
    """
    ranked = {one.job_id for one in ranked_attempts(run, jobs)}
    wanted = (job for job in jobs if job.id in ranked and not job.abandoned)
    return bool(ranked) and all(was_there(run, job) for job in wanted)


def was_there(run: Run, job: Job) -> bool:
    """Return whether an attempt of the job is, or was, there in the present incarnation."""
    own = (one for one in job.attempts if is_current(run, one))
    return any(is_there(one) or one.status is AttemptStatus.DONE for one in own)
