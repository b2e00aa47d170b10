"""What ended jobs mean for the rest of their set and for their sweep, whose status is derived from
its sets (docs/rules.md 11.4 to 11.7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from controller.lifecycle.attempts import termination
from controller.lifecycle.draft import Draft
from controller.lifecycle.membership import members
from controller.lifecycle.model import Attempt, Job
from controller.lifecycle.sweeps.carrying import is_carried
from controller.lifecycle.sweeps.sets import SetCounts, counts_of, has_life
from fairlead.model.reasons import Reason, RunReason
from fairlead.model.statuses import AttemptStatus, RunStatus

_CAUSE = "sweep"


class SweepOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """`status` None: unchanged. `rule`: the number of the rule of docs/rules.md."""

    rule: str
    status: RunStatus | None
    reason: RunReason | None = None
    message: str | None = None


def end_together(draft: Draft) -> None:
    """End what lives of each set of several nodes of which one job has ended other than done."""
    if draft.run.sweep is None or draft.run.sweep.nodes == 1:
        return
    for jobs in members.of_several(draft.run, draft.jobs):
        lasts = [job.attempts[-1] for job in jobs if job.attempts]
        ended = (last for last in lasts if last.reason not in (None, Reason.DONE_BY_RUNNER))
        culprit = next(ended, None)
        if culprit is None:
            continue
        job = next(job for job in jobs if job.id == culprit.job_id)
        message = f"job {job.group}/{job.cookie} of its parameter set ended"
        message += f": {culprit.message or culprit.reason}"
        for last in lasts:
            if last.reason is None:
                termination.end(draft, last, Reason.SIBLING_FAILED, _CAUSE, message)


def derive(draft: Draft) -> SweepOutcome:
    sweep = draft.run.sweep
    assert sweep is not None, "only a sweep has sets"
    late = next(_by_max_duration(draft.jobs), None)
    if late is not None:
        return _ends("11.5", RunReason.JOB_FAILED, late.message)
    counts = counts_of(draft.run, sweep, draft.jobs, draft.ended)
    limit = sweep.stop_after_failures
    if limit is not None and counts.failed >= limit:
        stops = f"{failures(counts.failed, sweep.total)}; stop_after_failures is {limit}"
        return _ends("11.6", RunReason.JOB_FAILED, stops)
    if not counts.waiting and not counts.active and not has_life(draft.jobs):
        return _at_the_end(counts, sweep.total)
    return _by_what_lives(draft)


def failures(failed: int, total: int) -> str:
    return f"{failed:,} of {total:,} parameter sets failed"


def _at_the_end(counts: SetCounts, total: int) -> SweepOutcome:
    if counts.failed:
        return _ends("11.7", RunReason.JOB_FAILED, failures(counts.failed, total))
    return _ends("11.7", RunReason.ALL_JOBS_DONE, None)


def _ends(rule: str, reason: RunReason, message: str | None) -> SweepOutcome:
    return SweepOutcome(rule=rule, status=RunStatus.TERMINATING, reason=reason, message=message)


def _by_max_duration(jobs: Iterable[Job]) -> Iterator[Attempt]:
    lasts = (job.attempts[-1] for job in jobs if job.attempts)
    return (last for last in lasts if last.reason is Reason.MAX_DURATION_EXCEEDED)


def _by_what_lives(draft: Draft) -> SweepOutcome:
    """Apply rules 4.3 to 4.8 to the jobs that live."""
    statuses = {job.attempts[-1].status for job in draft.jobs if job.attempts}
    # The runner of a carrier may have begun it already.
    carried = any(is_carried(attempt) for attempt in draft.live())
    if AttemptStatus.RUNNING in statuses or carried:
        return SweepOutcome(rule="3", status=RunStatus.RUNNING)
    if statuses & {AttemptStatus.PROVISIONING, AttemptStatus.PULLING}:
        return SweepOutcome(rule="4", status=RunStatus.PROVISIONING)
    if AttemptStatus.SUBMITTED in statuses:
        return SweepOutcome(rule="5", status=RunStatus.SUBMITTED)
    if not has_life(draft.jobs):
        return SweepOutcome(rule="7", status=RunStatus.PENDING)
    return SweepOutcome(rule="8", status=None)
