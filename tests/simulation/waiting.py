"""Checks of runs that wait for others (docs/rules.md 4.17), judged by what is committed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from controller.lifecycle.model import RunState
from controller.lifecycle.predecessors import Predecessor
from controller.lifecycle.ranges import numbers_in
from controller.lifecycle.sweeps.sets import by_set, has_run
from fairlead.model.beginning import SameJob, When
from fairlead.model.reasons import Reason, RunReason
from fairlead.model.statuses import FINAL_RUN_STATUSES, RunStatus


def out_of_turn(
    before: RunState | None, after: RunState, runs: Mapping[str, RunState]
) -> Iterator[str]:
    """A sentence for each condition of the run that this commit disregards. `runs`: as this commit
    has them."""
    run = after.run
    if before is not None and before.run.status in FINAL_RUN_STATUSES:
        return
    begins = any(job.attempts for job in after.jobs)
    yield from _sets_out_of_turn(before, after, runs)
    for one in run.after:
        if one.job is SameJob.SAME:
            continue
        status = _status(one, runs)
        if begins and not one.met:
            yield f"run {run.name} began, and {one.name} has not come so far ({one.when})"
        if one.met and status is not None and not _may_be(one.when, status):
            yield f"run {run.name} waits no more until {one.name} is {one.when}: it is {status}"
    lost = [one for one in run.after if not one.met and one.job is SameJob.ALL]
    if run.reason is RunReason.DEPENDENCY_FAILED and not any(
        (status := _status(one, runs)) is None or status in FINAL_RUN_STATUSES for one in lost
    ):
        yield f"run {run.name} ended as dependency_failed, and what it waited for may still come"


def _sets_out_of_turn(
    before: RunState | None, after: RunState, runs: Mapping[str, RunState]
) -> Iterator[str]:
    """Judge the sets of a sweep that began in this commit, each after one of another sweep."""
    known = {} if before is None else {job.id: len(job.attempts) for job in before.all_jobs}
    fresh = [job for job in after.all_jobs if len(job.attempts) > known.get(job.id, 0)]
    for one in after.run.after:
        state = runs.get(one.run_id)
        if one.job is not SameJob.SAME or state is None or not fresh:
            continue
        is_over = state.run.status in (*FINAL_RUN_STATUSES, RunStatus.TERMINATING)
        theirs = by_set(state.all_jobs)
        for job in fresh:
            lasts = [other.attempts[-1] for other in theirs.get(job.replica, ())]
            reasons = {last.reason for last in lasts}
            named = f"set {job.replica} of {after.run.name}"
            about = f"{one.name} has {sorted(map(str, reasons))} ({one.when})"
            lost = job.attempts[-1].reason is Reason.DEPENDENCY_FAILED
            has_ended = bool(lasts) and None not in reasons
            if lost and len(after.run.after) == 1 and not (is_over or has_ended or not lasts):
                yield f"{named} ended, and its predecessor still lives: {about}"
            if lost or len(job.attempts) > 1:
                continue
            if one.when is When.DONE and reasons != {Reason.DONE_BY_RUNNER}:
                yield f"{named} began out of turn: {about}"
            never_began = one.when is When.ENDED and _was_stopped(state, job.replica)
            if one.when in (When.ENDED, When.FAILED) and not (is_over or has_ended or never_began):
                yield f"{named} began out of turn: {about}"
            if one.when is When.RUNNING and not has_run(theirs.get(job.replica, ())):
                yield f"{named} began out of turn: {about}"


def _was_stopped(state: RunState, number: int) -> bool:
    """Return whether a user stopped the set before it began: it has ended without a job."""
    sweep = state.run.sweep
    return sweep is not None and number in numbers_in(sweep.stopped)


def _status(one: Predecessor, runs: Mapping[str, RunState]) -> RunStatus | None:
    """None: its history is not known here."""
    if one.ended is not None:
        return one.ended.status
    state = runs.get(one.run_id)
    return None if state is None else state.run.status


def _may_be(when: When, status: RunStatus) -> bool:
    """Whether the condition can have come true for a run that now has this status."""
    match when:
        case When.DONE:
            return status is RunStatus.DONE
        case When.FAILED:
            return status is RunStatus.FAILED
        case When.ENDED:
            return status in FINAL_RUN_STATUSES
        case When.RUNNING:
            return True
