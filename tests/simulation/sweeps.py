"""What each commit of a sweep must keep to: each set ends once unless a user retries it, never more
are active than may be, and the run ends when no set is left (docs/rules.md 11)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from controller.lifecycle.model import Job, RunState
from controller.lifecycle.ranges import numbers_in
from controller.lifecycle.sweeps.begin import MAX_QUEUED
from controller.lifecycle.sweeps.sets import counts
from fairlead.model.reasons import Reason, RunReason
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES, AttemptStatus, RunStatus


def breaches(before: RunState | None, after: RunState) -> Iterator[str]:
    """Yield what a commit may not do to a sweep."""
    run, sweep = after.run, after.run.sweep
    if sweep is None:
        return
    name = f"sweep {run.name}"
    yield from _wrong_jobs(after, name)
    found = counts(after)
    together = found.waiting + found.active + found.done + found.failed + found.stopped
    if together != sweep.total:
        yield f"{name} has {sweep.total} sets, and {together} are accounted for"
    ending = run.status is RunStatus.TERMINATING or run.finished_at is not None
    limit = sweep.stop_after_failures
    if limit is not None and found.failed >= limit and not ending:
        yield f"{name} goes on after {found.failed} failed sets, and stop_after_failures is {limit}"
    if (
        run.finished_at is not None
        and run.reason is RunReason.ALL_JOBS_DONE
        and (found.waiting or found.active or found.failed)
    ):
        yield f"{name} is done with {found}"
    if before is not None:
        yield from _changes(before, after, name)


def _wrong_jobs(state: RunState, name: str) -> Iterator[str]:
    sweep = state.run.sweep
    assert sweep is not None
    twice = [index for index, n in Counter(job.index for job in state.all_jobs).items() if n > 1]
    if twice:
        yield f"{name} has two jobs with the index {twice[0]}"
    begun = {job.replica for job in state.all_jobs}
    missing = set(range(sweep.begun)) - begun - set(numbers_in(sweep.stopped)) - set(sweep.again)
    if missing:
        yield f"{name} forgot the sets {sorted(missing)[:5]}"
    queued = {
        job.replica
        for job in state.jobs
        if job.attempts
        and job.attempts[-1].status is AttemptStatus.SUBMITTED
        and job.attempts[-1].carrier is None
    }
    if len(queued) > MAX_QUEUED:
        yield f"{name} has {len(queued)} sets in the queue"


def _changes(before: RunState, after: RunState, name: str) -> Iterator[str]:
    sweep = after.run.sweep
    assert sweep is not None
    old = {job.id: job for job in before.all_jobs}
    new = {job.id: job for job in after.all_jobs}
    for job_id in old.keys() - new.keys():
        yield f"{name} lost the job {job_id}"
    grown = [job for job in after.all_jobs if _attempts(job) > _attempts(old.get(job.id))]
    most = sweep.max_parallel
    held, known = len(_held(after)), _held(before)
    if before.run.suspended and before.run.sweep is not None:
        # What ended meanwhile comes back on resume, also when max_parallel got smaller (11.3).
        again = before.run.sweep.again
        known |= {job.replica for job in grown if job.id in old and job.replica not in again}
    if grown and most is not None and held > max(most, len(known)):
        yield f"{name} has {held} active sets, and max_parallel is {most}"
    for job in grown:
        last = old[job.id].attempts[-1] if job.id in old else None
        if last is None:
            continue
        if last.status not in FINAL_ATTEMPT_STATUSES and not _is_final_now(job, last.id):
            yield f"job {job.cookie} of {name} began again while it lived"
        # A job that is done begins again only with a set of several nodes that failed.
        if last.reason is Reason.DONE_BY_RUNNER and sweep.nodes == 1:
            yield f"job {job.cookie} of {name} began again although it was done"


def _is_final_now(job: Job, attempt_id: str) -> bool:
    return any(
        one.id == attempt_id and one.status in FINAL_ATTEMPT_STATUSES for one in job.attempts
    )


def _attempts(job: Job | None) -> int:
    """The number of attempts that the job ever had."""
    return 0 if job is None or not job.attempts else job.attempts[-1].number + 1


def _held(state: RunState) -> set[int]:
    """Return the sets that live, by what their attempts themselves say."""
    return {
        job.replica
        for job in state.jobs
        if job.attempts
        # What is carried has its place with its carrier, or none yet.
        and job.attempts[-1].carrier is None
        and (
            job.attempts[-1].status not in FINAL_ATTEMPT_STATUSES
            or job.retry_at is not None
            # It comes back on resume, also when max_parallel got smaller meanwhile (11.3).
            or job.attempts[-1].reason is Reason.SUSPENDED
        )
    }
