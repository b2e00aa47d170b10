"""Which jobs may start before which: `startup_order`, and who the master is.

A gang's job that waits for its turn has its container, so that it can start at once; its runner is
not given the job yet, and `waiting_runner` stands still meanwhile. A job of its own that waits for
its turn takes no place yet: held places of jobs that wait for each other could lock a full cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from controller.lifecycle.gangs.reading import (
    a_rank_comes_back,
    is_current,
    is_gang_run,
    is_reserved,
    ranked_hold_places,
)
from controller.lifecycle.model import Attempt, Job, Run, StartupOrder
from controller.lifecycle.retry import ENDED_FOR_GOOD, Verdict, verdict
from controller.lifecycle.statuses import AttemptStatus

SUSPENDED: Final = "the run is suspended"
A_RANK_COMES_BACK: Final = "it is reserved: a rank of its run comes back and is placed first"

_NEEDS_NO_START = ENDED_FOR_GOOD | {Verdict.DONE, Verdict.ABANDONED}


def master_of(jobs: Sequence[Job]) -> Job | None:
    """Rank 0, else cookie 0, of the first group; None when there is none among `jobs`."""
    if not jobs:
        return None
    first = min(jobs, key=lambda job: job.index).group
    group = [job for job in jobs if job.group == first]
    ranked = [job for job in group if job.attempts and job.attempts[-1].rank is not None]
    if ranked:
        return next((job for job in ranked if job.attempts[-1].rank == 0), None)
    return next((job for job in group if job.cookie == 0), None)


def may_start(run: Run, jobs: Sequence[Job], attempt: Attempt) -> bool:
    """Whether the runner of this attempt may be given its job now: a gang's once every rank has its
    place, for they are told of each other."""
    if is_gang_run(run) and not ranked_hold_places(run, jobs):
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


def may_take_place(run: Run, jobs: Sequence[Job], attempt: Attempt) -> bool:
    return is_gang_run(run) or may_start(run, jobs, attempt)


def waits_for_its_turn(run: Run, jobs: Sequence[Job], attempt: Attempt) -> bool:
    """Whether nothing but the others is what this attempt waits for now."""
    match attempt.status:
        case AttemptStatus.SUBMITTED:
            return not may_take_place(run, jobs, attempt)
        case AttemptStatus.PULLING:
            return attempt.container_started and not may_start(run, jobs, attempt)
        case _:
            return False


def why_not_queued(run: Run, jobs: Sequence[Job], attempt: Attempt) -> str | None:
    """Why the scheduler does not look for a place for this attempt; None: it does."""
    if run.suspended:
        return SUSPENDED
    if not may_take_place(run, jobs, attempt):
        return words_for_its_turn(run)
    if is_reserved(attempt) and a_rank_comes_back(run, jobs):
        return A_RANK_COMES_BACK
    return None


def is_why_not_queued(run: Run, sentence: str | None) -> bool:
    return sentence in (SUSPENDED, A_RANK_COMES_BACK, words_for_its_turn(run))


def words_for_its_turn(run: Run) -> str:
    """The `pending_reason` of what waits for its turn."""
    return f"waits for its turn (startup_order: {run.policy.startup_order})"


def _counts(job: Job) -> bool:
    """Nobody waits for a reserved job, which may never find a place."""
    return not (job.scaled_down or (job.attempts and is_reserved(job.attempts[-1])))


def _has_started(run: Run, job: Job) -> bool:
    if verdict(run, job) in _NEEDS_NO_START:
        return True
    if not job.attempts:
        return False
    last = job.attempts[-1]
    return is_current(run, last) and last.status is AttemptStatus.RUNNING
