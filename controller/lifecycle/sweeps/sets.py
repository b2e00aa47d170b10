"""The sets of a sweep: which jobs belong to one, and what became of it (docs/rules.md 11.5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from msgspec.structs import replace

from controller.lifecycle.attempts.retry import ENDED_FOR_GOOD, Verdict, verdict
from controller.lifecycle.model import EndedSets, Job, Run, RunState, Sweep
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
        waiting=_number_unbegun(sweep) + len(again),
        active=found[SetStatus.ACTIVE],
        done=found[SetStatus.DONE] + ended.done,
        failed=found[SetStatus.FAILED] + ended.failed,
        stopped=found[SetStatus.STOPPED]
        + ended.stopped
        + sum(last - first + 1 for first, last in sweep.stopped),
    )


def unbegun(sweep: Sweep) -> Iterator[int]:
    """Yield the sets that have not begun and were not stopped, by number."""
    at = sweep.begun
    for first, last in sweep.stopped:
        yield from range(at, first)
        at = max(at, last + 1)
    yield from range(at, sweep.total)


def _number_unbegun(sweep: Sweep) -> int:
    """Return how many sets `unbegun` yields, without counting 10,000 of them in each turn."""
    stopped = sum(
        last - max(first, sweep.begun) + 1 for first, last in sweep.stopped if last >= sweep.begun
    )
    return sweep.total - sweep.begun - stopped


def in_ranges(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return the numbers as ranges (first, last), in their order, none next to another."""
    found: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return tuple(found)


def numbers_in(ranges: Iterable[tuple[int, int]]) -> Iterator[int]:
    for first, last in ranges:
        yield from range(first, last + 1)
