"""Termination ends attempts and makes them final.

An attempt ends when its reason is set; the first reason wins. Only the terminating stage makes it
final. It releases an allocation when the shim has confirmed that task and allocation are gone: if
the controller offered it earlier, the shim would still count it as taken.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from controller.lifecycle import outputs
from controller.lifecycle.attempts import again, allocations
from controller.lifecycle.draft import Draft
from controller.lifecycle.events import EventKind
from controller.lifecycle.membership import members
from controller.lifecycle.model import Attempt, Run, RunPolicy
from controller.lifecycle.reports import EngineGone, NodeGone, Report
from fairlead.model.reasons import (
    ROWS,
    SHORT_GRACE,
    GraceClass,
    Reason,
    RunReason,
)
from fairlead.model.statuses import (
    FINAL_ATTEMPT_STATUSES,
    AllocationState,
    AttemptStatus,
)


def grace(policy: RunPolicy, reason: Reason, *, was_running: bool) -> float:
    """Return the seconds between the reason and `remove_at`; 0 before RUNNING, when there is
    nothing to save."""
    if not was_running:
        return 0.0
    match ROWS[reason].grace:
        case GraceClass.NONE:
            return 0.0
        case GraceClass.SHORT:
            return SHORT_GRACE
        case GraceClass.STOP_DURATION:
            return policy.stop_duration


def whole_grace(run: Run, attempt: Attempt) -> float:
    """Return the seconds of grace, from its beginning, that an attempt has by its reasons.

    Its times do not tell: the grace may have begun anew since, by another controller's clock.
    """
    if attempt.reason is None or attempt.remove_at is None:
        return 0.0
    if attempt.reason is Reason.INTERRUPTED and attempt.interruption is not None:
        return 0.0  # it had its time before
    was_running = attempt.running_at is not None
    whole = min(
        grace(run.policy, reason, was_running=was_running)
        for reason in (attempt.reason, *attempt.later_reasons)
        if reason is attempt.reason or not keeps_its_grace(run, reason)
    )
    if attempt.reason is Reason.INTERRUPTED_BY_NO_CAPACITY and attempt.terminating_at is not None:
        # The provider takes the node back at its own time.
        whole = min(whole, max(0.0, attempt.remove_at - attempt.terminating_at))
    return whole


def end(
    draft: Draft,
    attempt: Attempt,
    reason: Reason,
    cause: str,
    message: str | None = None,
    *,
    within: float | None = None,
) -> Attempt:
    """Give the attempt its reason, or record a later reason, which may bring `remove_at` forward.

    `within`: seconds instead of the grace of the reason. A final attempt stays as it is.
    """
    if attempt.status in FINAL_ATTEMPT_STATUSES:
        return attempt
    if attempt.reason is not None:
        return _record_later(draft, attempt, reason, cause, message)
    if within is None:
        was_running = attempt.status is AttemptStatus.RUNNING
        within = grace(draft.run.policy, reason, was_running=was_running)
    if (result := again.own_result(attempt, reason, cause)) is not None:
        later = () if reason is result.reason else (reason,)
        attempt = draft.change_attempt(attempt, exit_code=result.exit_code, later_reasons=later)
        for one in later:
            draft.record(
                EventKind.LATER_REASON, cause, attempt=attempt, reason=one, message=message
            )
        reason, message = result.reason, result.message
    drains = _drain_seconds(draft, attempt, reason)
    paused_since = attempt.limit_pause.since if attempt.disconnected else None
    if attempt.serving.registered_at is not None:
        draft.record(EventKind.TRAFFIC, cause, attempt=attempt, to_status="unregistered")
    return draft.move_attempt(
        attempt,
        AttemptStatus.TERMINATING,
        cause,
        reason=reason,
        message=message,
        pending_reason=None,
        renting=None,
        terminating_at=draft.now,
        remove_at=draft.now + drains + within,
        serving=replace(attempt.serving, ready=False, registered_at=None),
        drains_until=draft.now + drains if drains else None,
        limit_pause=replace(attempt.limit_pause, since=paused_since),
    )


def _drain_seconds(draft: Draft, attempt: Attempt, reason: Reason) -> float:
    """Return how long requests in flight may take before the attempt is asked to stop; 0 when it
    never got any, is over already, or is to end at once. An IDE keeps connections open for as long
    as it runs."""
    if draft.run.policy.dev_environment is not None or _is_over(attempt):
        return 0.0
    serving = _serving(draft, attempt)
    if serving is None or not serving.serving.was_registered or _is_over(serving):
        return 0.0
    if ROWS[reason].grace is GraceClass.NONE:
        return 0.0
    if serving.reason is not None and serving is not attempt:
        return max(0.0, (serving.drains_until or draft.now) - draft.now)
    return draft.run.policy.limits.drain


def _is_over(attempt: Attempt) -> bool:
    return attempt.seen.runner_exited or attempt.seen.container_gone


def _serving(draft: Draft, attempt: Attempt) -> Attempt | None:
    """Return the attempt that gets the requests for which this one works."""
    job = draft.job(attempt.job_id)
    if job is None or not (members.is_member(draft.run, job) and job.rank):
        return attempt
    return members.primary_attempt(draft.jobs, job)


def _record_later(
    draft: Draft, attempt: Attempt, reason: Reason, cause: str, message: str | None
) -> Attempt:
    if reason is attempt.reason or reason in attempt.later_reasons:
        return attempt
    draft.record(EventKind.LATER_REASON, cause, attempt=attempt, reason=reason, message=message)
    later = (*attempt.later_reasons, reason)
    if keeps_its_grace(draft.run, reason):
        return draft.change_attempt(attempt, later_reasons=later)
    asked = draft.now + grace(draft.run.policy, reason, was_running=attempt.running_at is not None)
    drains_until = attempt.drains_until
    if drains_until is not None and ROWS[reason].grace is GraceClass.NONE:
        drains_until = None
    elif drains_until is not None:
        asked += drains_until - draft.now
    remove_at = asked if attempt.remove_at is None else min(attempt.remove_at, asked)
    return draft.change_attempt(
        attempt,
        later_reasons=later,
        remove_at=remove_at,
        drains_until=drains_until,
    )


def keeps_its_grace(run: Run, later: Reason) -> bool:
    """Return whether this later reason leaves the grace alone (rule 2.9).

    The end of a run follows from the end of a job, at max_duration from all of them in the same
    turn. If it shortened their graces, no job would ever have the whole stop_duration.
    """
    return later is Reason.TERMINATED_BY_SERVER and run.reason is not RunReason.COMPLETED_BY_USER


def cleanup_confirmed(attempt: Attempt) -> bool:
    """Return whether nothing of the attempt is left on a node: it had no node, or the shim
    confirmed it."""
    if attempt.node_id is None and not attempt.carrier:
        return True
    return attempt.seen.container_gone and attempt.seen.logs_complete and attempt.seen.task_removed


def settle(draft: Draft) -> None:
    """Make final every attempt that is confirmed clean, and free the allocations of lost attempts
    whose cleanup is now known."""
    for attempt in draft.live():
        if attempt.status is AttemptStatus.TERMINATING and cleanup_confirmed(attempt):
            _finish(draft, attempt, "cleanup confirmed")
    for job in draft.jobs:
        for attempt in job.attempts:
            if attempt.cleanup_unknown and attempt.seen.task_removed:
                clean = draft.change_attempt(attempt, cleanup_unknown=False)
                allocations.free_orphaned(draft, clean, "cleanup confirmed")
    allocations.settle(draft)
    allocations.settle_nominations(draft)


def lose_nodes(draft: Draft, reports: Sequence[Report]) -> None:
    """Make final the attempts on a node that is gone.

    Their cleanup stays unknown and their allocations occupied, unless the node's new life proves
    that nothing runs there.
    """
    for report in reports:
        if isinstance(report, EngineGone):
            for attempt in draft.attempts_on(report.node_id):
                if _cannot_be_cleaned(draft, attempt):
                    _lose_sight(draft, attempt, "EngineGone")
    gone = [report for report in reports if isinstance(report, NodeGone)]
    # In a fixed order: the arrival of reports within a turn decides nothing (docs/rules.md 2.5).
    for report in sorted(gone, key=lambda r: (r.node_id, not r.cleanup_confirmed, r.message)):
        for attempt in draft.attempts_on(report.node_id):
            _lose(draft, attempt, report)
        allocations.lose(draft, report)


def _lose(draft: Draft, attempt: Attempt, report: NodeGone) -> None:
    if attempt.status is AttemptStatus.TERMINATING:
        if report.cleanup_confirmed:
            released = report.removed or allocations.goes_with_its_task(draft, attempt)
            seen = replace(attempt.seen, container_gone=True, allocation_released=released)
            attempt = draft.change_attempt(attempt, seen=seen)
        if attempt.seen.container_gone:
            _finish(draft, attempt, "NodeGone")
        else:
            _lose_sight(draft, attempt, "NodeGone")
    elif attempt.cleanup_unknown and report.cleanup_confirmed:
        seen = replace(attempt.seen, container_gone=True)
        clean = draft.change_attempt(attempt, cleanup_unknown=False, seen=seen)
        if not report.removed:
            allocations.free_orphaned(draft, clean, "NodeGone")


def _cannot_be_cleaned(draft: Draft, attempt: Attempt) -> bool:
    """Return whether an attempt has ended, and only the engine could do what is left: end its
    container, or remove its task."""
    if attempt.status is not AttemptStatus.TERMINATING or attempt.remove_at is None:
        return False
    # The shim serves log and outputs from its disk, and needs no engine for that.
    if attempt.seen.container_gone and (not attempt.seen.logs_complete or outputs.wanted(attempt)):
        return False
    return attempt.reason is Reason.INSTANCE_UNREACHABLE or draft.now >= attempt.remove_at


def _lose_sight(draft: Draft, attempt: Attempt, cause: str) -> None:
    """Make the attempt final although nothing confirms its cleanup; its allocation stays occupied
    until the shim does."""
    # A carried attempt holds nothing: its carrier's task is what is left there.
    lost = draft.change_attempt(attempt, cleanup_unknown=not attempt.carrier)
    _finish(draft, lost, cause)
    draft.move_allocation(lost, AllocationState.ORPHANED, cause)


def _finish(draft: Draft, attempt: Attempt, cause: str) -> Attempt:
    assert attempt.reason is not None, "an attempt is TERMINATING only with a reason"
    final = draft.move_attempt(
        attempt,
        ROWS[attempt.reason].final,
        cause,
        renting=None,
        finished_at=draft.now,
        disconnected=False,
        limit_pause=replace(attempt.limit_pause, since=None),
        drains_until=None,
    )
    outputs.note_loss(draft, final, cause)
    return final
