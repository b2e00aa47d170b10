"""A nomination: a place that the scheduler keeps for a waiting attempt until those who have it now
are gone (LIFECYCLE.md section 6). The attempt stays SUBMITTED meanwhile.

It becomes the attempt's place when the attempt is `Placed` with it, and ends with the attempt.
"""

from __future__ import annotations

from controller.lifecycle.draft import Draft
from controller.lifecycle.history import EventKind
from controller.lifecycle.model import Attempt
from controller.lifecycle.reports import Nominated, NominationEnded
from controller.lifecycle.statuses import AllocationState, AttemptStatus, RunStatus


def nominate(draft: Draft, report: Nominated) -> None:
    attempt = draft.attempt(report.attempt_id)
    if attempt is None or attempt.status is not AttemptStatus.SUBMITTED:
        return
    if draft.run.suspended or draft.run.status is RunStatus.TERMINATING:
        return
    if attempt.allocation_id is not None:
        return
    place = report.allocation
    draft.add_allocation(place)
    attempt = draft.change_attempt(
        attempt, allocation_id=place.id, pending_reason=report.pending_reason
    )
    draft.note(EventKind.ALLOCATION, attempt, "Nominated", to_status=place.state)


def end(draft: Draft, report: NominationEnded) -> None:
    attempt = draft.attempt(report.attempt_id)
    if attempt is not None and attempt.status is AttemptStatus.SUBMITTED:
        give_up(draft, attempt, report.cause)


def settle(draft: Draft) -> None:
    """End the nominations of attempts that wait no longer."""
    for place in draft.allocations():
        if place.state is AllocationState.NOMINATED:
            job = draft.job(place.job_id)
            for attempt in () if job is None else job.attempts:
                if attempt.allocation_id == place.id and attempt.reason is not None:
                    draft.move_allocation(attempt, AllocationState.RELEASED, "the attempt ended")


def give_up(draft: Draft, attempt: Attempt, cause: str) -> Attempt:
    """The waiting attempt is in the queue again, if a place was kept for it."""
    place = draft.allocation_of(attempt)
    if place is None or place.state is not AllocationState.NOMINATED:
        return attempt
    draft.move_allocation(attempt, AllocationState.RELEASED, cause)
    return draft.change_attempt(attempt, allocation_id=None)
