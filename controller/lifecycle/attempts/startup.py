"""Startup says which jobs of a run may go on now, and which wait for others of it.

`startup_order` names who waits for whom. A gang's job that waits for its turn already has its
container; only the start of its commands waits. A single job that waits for its turn holds no
allocation yet: jobs that wait for each other could lock a full cluster.
"""

from __future__ import annotations

from collections.abc import Sequence

from controller.lifecycle.attempts.retry import ENDED_FOR_GOOD, Verdict, verdict
from controller.lifecycle.draft import Draft
from controller.lifecycle.membership.ranks import (
    a_rank_comes_back,
    is_current,
    is_gang_run,
    is_reserved,
    ranked_hold_allocations,
)
from controller.lifecycle.model import Attempt, Job, Run, StartupOrder
from controller.lifecycle.pending_reasons import (
    PendingReason,
    RankComesBack,
    RunSuspended,
    WaitsForContainer,
    WaitsForItsTurn,
)
from fairlead.model.statuses import AttemptStatus

_NEEDS_NO_START = ENDED_FOR_GOOD | {Verdict.DONE, Verdict.ABANDONED}
_NOT_QUEUED = (RunSuspended, RankComesBack, WaitsForItsTurn, WaitsForContainer)


def may_start(run: Run, jobs: Sequence[Job], attempt: Attempt) -> bool:
    """Return whether the runner of this attempt may get its job now.

    A gang's jobs start once every rank has its allocation, because each job is told the others'
    addresses.
    """
    if is_gang_run(run) and not ranked_hold_allocations(run, jobs):
        return False
    order = run.policy.startup_order
    if order is StartupOrder.ANY:
        return True
    counted = [job for job in jobs if _counts(job)]
    master = master_of(counted)
    if master is None:
        return True
    is_master = attempt.job_id == master.id
    if order is StartupOrder.MASTER_FIRST:
        return is_master or _has_started(run, master)
    return not is_master or all(_has_started(run, job) for job in counted if job is not master)


def may_take_allocation(run: Run, jobs: Sequence[Job], attempt: Attempt) -> bool:
    return is_gang_run(run) or may_start(run, jobs, attempt)


def waits_for_its_turn(run: Run, jobs: Sequence[Job], attempt: Attempt) -> bool:
    """Return whether this attempt waits for other jobs of its run and for nothing else."""
    match attempt.status:
        case AttemptStatus.SUBMITTED:
            return not may_take_allocation(run, jobs, attempt)
        case AttemptStatus.PULLING:
            return attempt.seen.container_started and not may_start(run, jobs, attempt)
        case _:
            return False


def why_not_queued(run: Run, jobs: Sequence[Job], attempt: Attempt) -> PendingReason | None:
    """Return why the scheduler does not look for an allocation for this attempt; None: it does."""
    if run.suspended:
        return RunSuspended()
    if attempt.carrier is not None:
        return WaitsForContainer()
    if not may_take_allocation(run, jobs, attempt):
        return its_turn(run)
    if is_reserved(attempt) and a_rank_comes_back(run, jobs):
        return RankComesBack()
    return None


def its_turn(run: Run) -> WaitsForItsTurn:
    return WaitsForItsTurn(startup_order=run.policy.startup_order)


def note_why_not_queued(draft: Draft, attempt: Attempt) -> Attempt:
    """Set or clear the attempt's pending reason.

    An attempt that has just come into the queue has none: the scheduler has not looked at it yet.
    """
    why = why_not_queued(draft.run, draft.jobs, attempt)
    if why is None and not isinstance(attempt.pending_reason, _NOT_QUEUED):
        return attempt
    return draft.change_attempt(attempt, pending_reason=why)


def master_of(jobs: Sequence[Job]) -> Job | None:
    """Return the job with rank 0, else with cookie 0, of the first group; None when `jobs` has
    none."""
    if not jobs:
        return None
    first = min(jobs, key=lambda job: job.index).group
    group = [job for job in jobs if job.group == first]
    ranked = [job for job in group if job.attempts and job.attempts[-1].rank is not None]
    if ranked:
        return next((job for job in ranked if job.attempts[-1].rank == 0), None)
    return next((job for job in group if job.cookie == 0), None)


def _counts(job: Job) -> bool:
    """Return whether others wait for this job. A reserved job does not count: it may never get an
    allocation."""
    return not (job.scaled_down or (job.attempts and is_reserved(job.attempts[-1])))


def _has_started(run: Run, job: Job) -> bool:
    if verdict(run, job) in _NEEDS_NO_START:
        return True
    if not job.attempts:
        return False
    last = job.attempts[-1]
    return is_current(run, last) and last.status is AttemptStatus.RUNNING
