"""Switching decides when a gang starts a new incarnation, and what happens at once.

A switch ends every live attempt of the run and raises the incarnation number. `incarnation` makes
the new attempts when all old ones are final. A switch that is `whole` gives all allocations back,
so that the gang queues again as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from controller.lifecycle.attempts import termination
from controller.lifecycle.attempts.retry import Verdict, verdict
from controller.lifecycle.draft import Draft
from controller.lifecycle.events import EventKind
from controller.lifecycle.gangs import incarnation
from controller.lifecycle.gangs.incarnation import Phase
from controller.lifecycle.membership.ranks import in_gang_group, is_current, ranked_attempts
from controller.lifecycle.model import Attempt, Incarnation, Job, Run, Switch
from controller.lifecycle.reports import GangTooLarge, Report
from fairlead.model.reasons import ROWS, Reason, RetryEvent, SwitchReason
from fairlead.model.statuses import AttemptStatus

_SWITCHABLE: Final = (Phase.GATHERING, Phase.WHOLE)
_KEPT: Final = 100
"""The number of past switches that a run keeps; its events have all of them."""
SWITCHES: Final = (
    (SwitchReason.JOB_FAILED, False, "a rank ended with an error that is tried again"),
    (SwitchReason.JOB_ABORTED, False, "a rank lost its allocation, was preempted or aborted"),
    (SwitchReason.JOB_INTERRUPTED, False, "a rank was interrupted and ended by itself"),
    (
        SwitchReason.JOB_LACK_AFTER_REVIVAL,
        False,
        "a node that was reached again no longer had a rank's task",
    ),
    (SwitchReason.RESUMED, False, "a suspension had stopped what ran"),
    (SwitchReason.NO_CAPACITY, True, "an elastic fleet had no offer left for a rank"),
    (
        SwitchReason.REINCARNATION_TIMEOUT,
        True,
        "not every rank was there, and there was no progress for `reincarnation_timeout`",
    ),
    (
        SwitchReason.PLACEMENT_TOO_SMALL,
        True,
        "the placement value of the survivors can never hold the whole gang",
    ),
)
"""Each switch reason, whether it gives all allocations back, and a sentence that says when it
happens."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Why a gang switches now."""

    reason: SwitchReason
    attempt: Attempt | None = None
    message: str | None = None
    whole: bool = False


def switch_if_needed(draft: Draft, reports: Sequence[Report]) -> None:
    """Switch the gang if there is a cause; several ends at once make one switch."""
    phase = incarnation.phase(draft.run, draft.jobs)
    if phase not in _SWITCHABLE or draft.run.suspended:
        return
    cause = (
        _an_end_that_switches(draft.run, draft.jobs)
        or _resumed(draft.run, draft.jobs)
        or _too_large(draft, reports)
        or _not_whole_in_time(draft)
    )
    if cause is not None:
        incarnation.check_move(phase, Phase.STOPPING)
        _switch(draft, cause)


def stop_survivors_of_a_suspended_gang(draft: Draft) -> None:
    """End what runs of a suspended gang that cannot go on; `resume` starts all of it again.

    That is so when it lost a rank, or when ranks hold allocations while others wait for one, which
    a suspended run does not get.
    """
    phase = incarnation.phase(draft.run, draft.jobs)
    if not draft.run.suspended or phase not in _SWITCHABLE:
        return
    cause = _an_end_that_switches(draft.run, draft.jobs)
    if cause is None and not (phase is Phase.GATHERING and _waits_beside_allocations(draft)):
        return
    message = _sentence(cause) if cause else "suspended before the gang was whole"
    for attempt in draft.live():
        if attempt.reason is None:
            termination.end(draft, attempt, Reason.SUSPENDED, "suspended gang", message)


def _waits_beside_allocations(draft: Draft) -> bool:
    """Return whether some ranks have allocations and cannot begin before the others have theirs."""
    statuses = {one.status for one in ranked_attempts(draft.run, draft.jobs)}
    starting = {AttemptStatus.PROVISIONING, AttemptStatus.PULLING}
    waits = AttemptStatus.SUBMITTED in statuses and AttemptStatus.RUNNING not in statuses
    return waits and not statuses.isdisjoint(starting)


def _an_end_that_switches(run: Run, jobs: Sequence[Job]) -> Cause | None:
    """Return the end that causes a switch: the first one; of several at once the one with the
    smallest index."""
    ended = [(job, job.attempts[-1]) for job in jobs if _may_switch(run, job, jobs)]
    if not ended:
        return None
    _, attempt = min(ended, key=lambda one: (one[1].terminating_at or 0.0, one[0].index))
    assert attempt.reason is not None, "only an ended attempt may switch"
    return Cause(
        reason=_switch_reason(attempt.reason),
        attempt=attempt,
        message=attempt.message or ROWS[attempt.reason].sentence,
        whole=ROWS[attempt.reason].event is RetryEvent.NO_CAPACITY,
    )


def _may_switch(run: Run, job: Job, jobs: Sequence[Job]) -> bool:
    if not job.attempts or not in_gang_group(run, job):
        return False
    last = job.attempts[-1]
    if last.reason is None or last.rank is None or not is_current(run, last):
        return False
    row = ROWS[last.reason]
    switches = row.gang_switch is not None or row.event is RetryEvent.NO_CAPACITY
    return switches and verdict(run, job, jobs) is Verdict.RETRY


def _switch_reason(reason: Reason) -> SwitchReason:
    if reason is Reason.LOST_AFTER_REVIVAL:
        return SwitchReason.JOB_LACK_AFTER_REVIVAL
    return ROWS[reason].gang_switch or SwitchReason.NO_CAPACITY


def _resumed(run: Run, jobs: Sequence[Job]) -> Cause | None:
    """Return the cause when a suspension stopped an attempt: the gang comes back as a whole."""
    for job in jobs:
        last = job.attempts[-1] if job.attempts else None
        if last is not None and is_current(run, last) and last.reason is Reason.SUSPENDED:
            return Cause(reason=SwitchReason.RESUMED, message="the run was resumed")
    return None


def _too_large(draft: Draft, reports: Sequence[Report]) -> Cause | None:
    """Return the cause when the placement value of the survivors is too small for the gang.

    Only an incarnation that gathers and holds allocations can be too large. Once it was whole, only
    a job of a plain group waits, and such a job never triggers a switch.
    """
    gathers = incarnation.phase(draft.run, draft.jobs) is Phase.GATHERING
    if not gathers or incarnation.since(draft.run, draft.jobs) is None:
        return None
    words = sorted(report.message for report in reports if isinstance(report, GangTooLarge))
    if not words:
        return None
    return Cause(reason=SwitchReason.PLACEMENT_TOO_SMALL, message=words[0], whole=True)


def _not_whole_in_time(draft: Draft) -> Cause | None:
    gathers = incarnation.gathering(draft.run, draft.jobs)
    if gathers is None or gathers.gives_up_at > draft.now:
        return None
    limit = incarnation.patience(draft.run, draft.jobs)
    message = f"not whole, and no progress for {limit:g} s: {gathers}"
    return Cause(reason=SwitchReason.REINCARNATION_TIMEOUT, message=message, whole=True)


def _switch(draft: Draft, cause: Cause) -> None:
    old = draft.run.incarnation
    assert old is not None, "only a gang run switches"
    new = Incarnation(number=old.number + 1, id=draft.new_id())
    trigger = None if cause.attempt is None else cause.attempt.id
    switch = Switch(
        reason=cause.reason,
        attempt_id=trigger,
        attempt_reason=None if cause.attempt is None else cause.attempt.reason,
        message=cause.message,
        at=draft.now,
        incarnation=new.number,
        whole=cause.whole,
    )
    draft.change_run(incarnation=new, switches=(*draft.run.switches, switch)[-_KEPT:])
    _record(draft, cause, old, new)
    for job in list(draft.jobs):
        draft.set_retry_at(job, None)
    for attempt in draft.live():
        _end(draft, attempt, _sentence(cause))


def _record(draft: Draft, cause: Cause, old: Incarnation, new: Incarnation) -> None:
    draft.record(
        EventKind.SWITCH,
        "all allocations given back" if cause.whole else "in the allocations that survive",
        attempt=cause.attempt,
        from_status=str(old.number),
        to_status=str(new.number),
        reason=cause.reason,
        message=cause.message,
    )


def _end(draft: Draft, attempt: Attempt, message: str) -> None:
    """End the attempt and cut a grace that is still running.

    This holds also for a job that has exited: its container may stay for its followers, and the new
    incarnation would wait for it.
    """
    if not attempt.seen.container_gone or attempt.reason is None:
        termination.end(draft, attempt, Reason.INCARNATION_CHANGED, "switch", message)


def _sentence(cause: Cause) -> str:
    return f"{cause.reason}: {cause.message}" if cause.message else str(cause.reason)
