"""The sets of a sweep: which jobs belong to one, and what became of it (docs/rules.md 11.5)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from controller.lifecycle.attempts.retry import ENDED_FOR_GOOD, Verdict, verdict
from controller.lifecycle.model import EndedSets, Job, Run, RunState, Sweep
from controller.lifecycle.predecessors import SetFacts
from controller.lifecycle.ranges import Ranges, in_ranges, size, union, without
from fairlead.model.reasons import ATTEMPT_REASON_OF_RUN
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES, FINAL_RUN_STATUSES, RunStatus
from fairlead.model.sweep import SetStatus

_WITH_ITS_RUN = frozenset(ATTEMPT_REASON_OF_RUN.values())
"""The reasons of attempts that end because their run does."""


class SetCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many sets of a sweep have each status; together they are all."""

    waiting: int
    active: int
    done: int
    failed: int
    stopped: int


def by_set(jobs: Iterable[Job]) -> dict[int, list[Job]]:
    """Return the jobs of each set that has begun, by the set's number."""
    found: dict[int, list[Job]] = {}
    for job in jobs:
        found.setdefault(job.replica, []).append(job)
    return found


def has_life(jobs: Iterable[Job]) -> bool:
    """Return whether an attempt of these jobs is not final."""
    return any(
        job.attempts and job.attempts[-1].status not in FINAL_ATTEMPT_STATUSES for job in jobs
    )


def has_run(jobs: Iterable[Job]) -> bool:
    """Return whether one of these jobs was RUNNING once."""
    return any(job.has_run for job in jobs)


def status_of(run: Run, jobs: Iterable[Job]) -> SetStatus:
    """Return the status of a set that has begun, by the ends of its attempts; what has ended may
    still be cleaned up."""
    jobs = tuple(jobs)
    # Nearly every set of a turn: with 200 of them, their verdicts were a fifth of the turn.
    if len(jobs) == 1 and jobs[0].attempts and jobs[0].attempts[-1].reason is None:
        return SetStatus.ACTIVE
    verdicts = {verdict(run, job) for job in jobs}
    reasons = {job.attempts[-1].reason for job in jobs if job.attempts}
    if Verdict.ABANDONED in verdicts or reasons & _WITH_ITS_RUN:
        return SetStatus.STOPPED
    if verdicts & ENDED_FOR_GOOD:
        return SetStatus.FAILED
    if verdicts == {Verdict.DONE}:
        return SetStatus.DONE
    # Its job would be tried again, for example because its node was lost before it began; but no
    # set begins once the run ends.
    return SetStatus.STOPPED if is_ending(run) and not has_life(jobs) else SetStatus.ACTIVE


def is_active(run: Run, jobs: Iterable[Job]) -> bool:
    """Return whether the set holds a place among those of `max_parallel` (docs/rules.md 11.3)."""
    jobs = tuple(jobs)
    return has_life(jobs) or status_of(run, jobs) is SetStatus.ACTIVE


def counts(state: RunState) -> SetCounts:
    """Return the counts of a sweep; what waits when the run ends counts as stopped."""
    run = state.run
    assert run.sweep is not None, "only a sweep has sets"
    found = counts_of(run, run.sweep, state.jobs, state.ended)
    if not is_ending(run):
        return found
    return replace(found, waiting=0, stopped=found.stopped + found.waiting)


def is_ending(run: Run) -> bool:
    return run.status is RunStatus.TERMINATING or run.status in FINAL_RUN_STATUSES


def counts_of(run: Run, sweep: Sweep, jobs: Iterable[Job], ended: EndedSets) -> SetCounts:
    found = dict.fromkeys(SetStatus, 0)
    again = frozenset(sweep.again)
    for number, of_set in by_set(jobs).items():
        if number not in again:
            found[status_of(run, of_set)] += 1
    return SetCounts(
        waiting=size(unbegun(sweep)) + len(again),
        active=found[SetStatus.ACTIVE],
        done=found[SetStatus.DONE] + size(ended.done),
        failed=found[SetStatus.FAILED] + size(ended.failed),
        stopped=found[SetStatus.STOPPED] + size(ended.stopped) + size(sweep.stopped),
    )


def unbegun(sweep: Sweep) -> Ranges:
    """Return the sets that have not begun and were not stopped."""
    if sweep.begun >= sweep.total:
        return ()
    return without(((sweep.begun, sweep.total - 1),), union(sweep.stopped, sweep.ahead))


def is_empty(sweep: Sweep) -> bool:
    """Return whether no set of it waits."""
    return not sweep.again and not unbegun(sweep)


def facts(state: RunState) -> SetFacts:
    """Return what a sweep that waits for this one, set for set, must know of it."""
    run, sweep, ended = state.run, state.run.sweep, state.ended
    assert sweep is not None, "only a sweep has sets"
    again = frozenset(sweep.again)
    found: dict[SetStatus, list[int]] = {status: [] for status in SetStatus}
    live, ran = [], []
    for number, jobs in by_set(state.jobs).items():
        if has_run(jobs):
            ran.append(number)
        if has_life(jobs):
            live.append(number)
        elif number not in again:
            found[status_of(run, jobs)].append(number)
    done = union(ended.done, in_ranges(found[SetStatus.DONE]))
    failed = union(ended.failed, in_ranges(found[SetStatus.FAILED]))
    over = union(done, failed, ended.stopped, sweep.stopped, in_ranges(found[SetStatus.STOPPED]))
    if is_ending(run):
        over = without(((0, sweep.total - 1),), in_ranges(live))
    return SetFacts(done=done, failed=failed, over=over, began=union(ended.ran, in_ranges(ran)))
