"""A user stops or retries chosen sets, or changes how many may be active (docs/rules.md 11.8 and
11.9)."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from controller.lifecycle.attempts import termination
from controller.lifecycle.attempts.retry import ENDED_FOR_GOOD, Verdict, verdict
from controller.lifecycle.draft import Draft
from controller.lifecycle.events import EventKind
from controller.lifecycle.model import Job, Run, Sweep
from controller.lifecycle.ranges import in_ranges, numbers_in
from controller.lifecycle.reports import SetsRetried, SetsStopped, SweepResized
from controller.lifecycle.sweeps.ended import counted, uncounted
from controller.lifecycle.sweeps.sets import by_set, status_of, unbegun
from fairlead.model.reasons import Reason
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES, RunStatus
from fairlead.model.sweep import SetStatus

_OVER = ENDED_FOR_GOOD | {Verdict.ABANDONED}


def resize(draft: Draft, request: SweepResized) -> None:
    sweep = draft.run.sweep
    if sweep is None or sweep.max_parallel == request.max_parallel:
        return
    draft.change_run(sweep=replace(sweep, max_parallel=request.max_parallel))
    most = "as many as there is room for" if request.max_parallel is None else request.max_parallel
    _note(draft, request, "scaled", f"max_parallel {most} by {request.by}")


def stop(draft: Draft, request: SetsStopped) -> None:
    sweep = draft.run.sweep
    if sweep is None or draft.run.status is RunStatus.TERMINATING:
        return
    wanted = set(numbers_in(request.sets))
    waiting = wanted.intersection(numbers_in(unbegun(sweep)))
    again = wanted.intersection(sweep.again)
    changed = _with_stopped(draft, sweep, waiting, again)
    message = f"stopped by {request.by}"
    ended = 0
    for number, jobs in by_set(draft.jobs).items():
        if number not in wanted or status_of(draft.run, jobs) is not SetStatus.ACTIVE:
            continue
        ended += 1
        for job in jobs:
            stopped = draft.change_job(job, abandoned=True, retry_at=None)
            last = stopped.attempts[-1]
            if last.status not in FINAL_ATTEMPT_STATUSES:
                termination.end(draft, last, Reason.ABANDONED, type(request).__name__, message)
    if changed is not sweep:
        draft.change_run(sweep=changed)
    if changed is not sweep or ended:
        _note(draft, request, "stopped", f"{len(waiting | again) + ended} sets {message}")


def has_ended(draft: Draft, job: Job) -> bool:
    """Return whether the job's set of a sweep has ended: then it stays as it is, although its last
    attempts may still be cleaned up, or carry others."""
    if draft.run.sweep is None:
        return False
    own = [one for one in draft.jobs if one.replica == job.replica]
    return status_of(draft.run, own) is not SetStatus.ACTIVE


def _with_stopped(draft: Draft, sweep: Sweep, waiting: set[int], again: set[int]) -> Sweep:
    """Return the sweep without these waiting sets. One that was to begin again is what it was
    before, but stopped if it never began."""
    if not waiting and not again:
        return sweep
    begun = {job.replica for job in (*draft.jobs, *draft.ended.jobs)}
    never = waiting | (again - begun)
    draft.ended = counted(draft.ended, _statuses(draft, again & begun))
    return replace(
        sweep,
        again=tuple(number for number in sweep.again if number not in again),
        stopped=in_ranges((*numbers_in(sweep.stopped), *never)) if never else sweep.stopped,
    )


def retry(draft: Draft, request: SetsRetried) -> None:
    sweep = draft.run.sweep
    if sweep is None or draft.run.status is RunStatus.TERMINATING:
        return
    if not _can_replace(draft, request):
        # One ended before this turn, or another retry was first: whoever asks looks again.
        return
    wanted = set(numbers_in(request.sets)) - set(sweep.again)
    never = wanted.intersection(numbers_in(sweep.stopped))
    again = {number for number in never if number < sweep.begun}
    again |= {
        number
        for number, jobs in by_set((*draft.jobs, *draft.ended.jobs)).items()
        if number in wanted and _ended_for_good(draft.run, jobs)
    }
    if not never and not again:
        return
    left = set(numbers_in(sweep.stopped)) - never
    draft.ended = uncounted(draft.ended, _statuses(draft, again - never))
    draft.change_run(
        sweep=replace(sweep, again=tuple(sorted({*sweep.again, *again})), stopped=in_ranges(left))
    )
    for before, now in request.instead:
        draft.change_run(after=tuple(now if one == before else one for one in draft.run.after))
    count = len(never | again)
    about = f"{count} set{'' if count == 1 else 's'} retried by {request.by}"
    runs = " and ".join(f"run {one.name} ({one.run_id})" for _, one in request.instead)
    _note(draft, request, "retried", f"{about}, after {runs}" if runs else about)


def _can_replace(draft: Draft, request: SetsRetried) -> bool:
    known = draft.context.predecessors
    return all(
        before in draft.run.after and (now.ended is not None or now.run_id in known)
        for before, now in request.instead
    )


def _ended_for_good(run: Run, jobs: Iterable[Job]) -> bool:
    """Return whether the set failed or was stopped; its last attempts may still be cleaned up."""
    return any(verdict(run, job) in _OVER for job in jobs)


def _statuses(draft: Draft, numbers: Iterable[int]) -> dict[int, SetStatus]:
    """Return what became of those of these sets that have left the decided state."""
    wanted = frozenset(numbers)
    ended = by_set(job for job in draft.ended.jobs if job.replica in wanted)
    return {number: status_of(draft.run, jobs) for number, jobs in ended.items()}


def _note(
    draft: Draft, request: SetsStopped | SetsRetried | SweepResized, to: str, message: str
) -> None:
    draft.record(EventKind.REQUEST, type(request).__name__, to_status=to, message=message)
