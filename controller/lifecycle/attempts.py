"""How an attempt ends: the first reason wins, and how long its job may go on after it.

"Ends" means that the reason is set; that it becomes final is `terminating`'s business.
"""

from __future__ import annotations

from controller.lifecycle.draft import Draft
from controller.lifecycle.history import EventKind
from controller.lifecycle.model import Attempt, RunPolicy
from controller.lifecycle.reasons import ROWS, SHORT_GRACE, GraceClass, Reason
from controller.lifecycle.statuses import FINAL_ATTEMPT_STATUSES, AttemptStatus


def grace(policy: RunPolicy, reason: Reason, *, was_running: bool) -> float:
    """Seconds between the reason and `remove_at`; none before RUNNING, there is nothing to save."""
    if not was_running:
        return 0.0
    match ROWS[reason].grace:
        case GraceClass.NONE:
            return 0.0
        case GraceClass.SHORT:
            return SHORT_GRACE
        case GraceClass.STOP_DURATION:
            return policy.stop_duration


def end(
    draft: Draft,
    attempt: Attempt,
    reason: Reason,
    cause: str,
    message: str | None = None,
    *,
    within: float | None = None,
) -> Attempt:
    """Give the attempt its reason, or record a later one, which may bring `remove_at` forward.

    `within`: seconds instead of the grace of the reason. A final attempt is left alone.
    """
    if attempt.status in FINAL_ATTEMPT_STATUSES:
        return attempt
    if attempt.reason is not None:
        return _record_later(draft, attempt, reason, cause, message)
    if within is None:
        was_running = attempt.status is AttemptStatus.RUNNING
        within = grace(draft.run.policy, reason, was_running=was_running)
    return draft.move_attempt(
        attempt,
        AttemptStatus.TERMINATING,
        cause,
        reason=reason,
        message=message,
        pending_reason=None,
        terminating_at=draft.now,
        remove_at=draft.now + within,
    )


def _record_later(
    draft: Draft, attempt: Attempt, reason: Reason, cause: str, message: str | None
) -> Attempt:
    if reason is attempt.reason or reason in attempt.later_reasons:
        return attempt
    draft.note(EventKind.LATER_REASON, attempt, cause, reason=reason, message=message)
    asked = draft.now + grace(draft.run.policy, reason, was_running=attempt.running_at is not None)
    remove_at = asked if attempt.remove_at is None else min(attempt.remove_at, asked)
    return draft.change_attempt(
        attempt, later_reasons=(*attempt.later_reasons, reason), remove_at=remove_at
    )
