"""A run begins when its time has come and the runs that it waits for have come so far.

Until then it is PENDING and none of its jobs has an attempt, so nothing of it is in the queue
(docs/rules.md 4.17). A run that does not run by its `start_before` ends as unschedulable (4.18).
"""

from __future__ import annotations

from controller.lifecycle.draft import Draft
from controller.lifecycle.model import Job, Run
from controller.lifecycle.runs import dependencies, ending
from controller.lifecycle.sweeps import sets
from controller.lifecycle.sweeps.begin import lost_sets
from fairlead.model.reasons import RunReason
from fairlead.model.statuses import FINAL_RUN_STATUSES, RunStatus


def waits(draft: Draft) -> bool:
    """Return whether no job of the run may begin yet. A sweep all of whose sets were stopped waits
    for nothing."""
    run = draft.run
    if run.sweep is not None and sets.is_empty(run.sweep):
        return False
    return dependencies.waits_for_runs(run) or _is_early(draft)


def _is_early(draft: Draft) -> bool:
    """Return whether its time has not come. It has for good once a job has an attempt: a clock
    that was ahead, and is put right, takes nothing back."""
    at = begins_at(draft.run)
    if at is None or draft.now >= at:
        return False
    return not any(job.attempts for job in draft.all_jobs)


def begins_at(run: Run) -> float | None:
    """Return the earliest time at which its jobs may begin; None: at once."""
    begin = run.policy.begin
    return None if begin is None else begin.after(run.submitted_at)


def must_start_at(run: Run) -> float | None:
    """Return the time by which one of its jobs must have been RUNNING; None: there is none."""
    latest = run.policy.start_before
    return None if latest is None else latest.after(run.submitted_at)


def why_waits(run: Run, job: Job | None = None) -> str | None:
    """Return what the run, or a job of it without attempts, waits for before it begins; None: for
    nothing that is known here."""
    if run.status in (*FINAL_RUN_STATUSES, RunStatus.TERMINATING) or not run.policy.is_held_back:
        return None
    if job is not None and (job.attempts or job.scaled_down or job.abandoned):
        return None
    # A run that has left PENDING was let in by its time. What is known without a clock comes first.
    begin = run.policy.begin if run.status is RunStatus.PENDING else None
    begins = None if begin is None else f"begins {begin.words()}"
    return dependencies.why_waits(run, job) or begins


def settle(draft: Draft) -> None:
    """Give first attempts to the jobs that may begin, or end the run if none ever can."""
    dependencies.settle(draft)
    _let_in(draft)
    dependencies.keep_prospects(draft)


def _let_in(draft: Draft) -> None:
    if draft.run.status is RunStatus.TERMINATING or draft.run.suspended:
        return
    latest = draft.run.policy.start_before
    if latest is not None and _is_late(draft):
        message = f"none of its jobs was running by its start_before, {latest.words()}"
        ending.end_run(draft, RunReason.UNSCHEDULABLE, "limit start_before", message)
    elif draft.run.policy.is_held_back and not waits(draft):
        dependencies.first_attempts(draft, [job for job in draft.jobs if _is_new(job)])


def timer(draft: Draft) -> float | None:
    """Return when `settle` has something to do although nothing is reported; None: never."""
    run = draft.run
    if run.suspended or run.status is RunStatus.TERMINATING:
        return None
    at = begins_at(run)
    times = [at] if at is not None and _is_early(draft) else []
    latest = must_start_at(run)
    if latest is not None and not _has_begun(draft):
        times.append(latest)
    if not waits(draft) and lost_sets(draft, dependencies.held_sets(draft)):
        times.append(draft.now)  # a turn ends only some of them
    return min(times, default=None)


def _is_late(draft: Draft) -> bool:
    latest = must_start_at(draft.run)
    return latest is not None and draft.now >= latest and not _has_begun(draft)


def _has_begun(draft: Draft) -> bool:
    return bool(draft.ended.ran) or sets.has_run(draft.jobs)


def _is_new(job: Job) -> bool:
    return not (job.attempts or job.abandoned or job.scaled_down)
