"""The TERMINATING stage: the only one that makes attempts and runs final and gives places back.

A place goes back when the shim has confirmed that task and allocation are gone, never earlier: what
the controller offered again too soon, the shim would still count as taken.
"""

from __future__ import annotations

from collections.abc import Sequence

from controller.lifecycle import attempts, confidential, nominations, occurrences, places
from controller.lifecycle.draft import Draft
from controller.lifecycle.gangs.reading import is_reserved
from controller.lifecycle.model import Attempt
from controller.lifecycle.reasons import (
    ATTEMPT_REASON_OF_RUN,
    FINAL_STATUS_OF_RUN,
    ROWS,
    Reason,
    RunReason,
)
from controller.lifecycle.reports import NodeGone, Report
from controller.lifecycle.statuses import (
    AllocationState,
    AttemptStatus,
    RunStatus,
)


def cleanup_confirmed(attempt: Attempt) -> bool:
    """Nothing of it is left on a node: it never had one, or the shim said so."""
    if attempt.node_id is None:
        return True
    return attempt.container_gone and attempt.logs_complete and attempt.task_removed


def settle(draft: Draft) -> None:
    """Make final what is confirmed to be clean, and free the places of what became clean late."""
    for attempt in draft.live():
        if attempt.status is AttemptStatus.TERMINATING and cleanup_confirmed(attempt):
            _finish(draft, attempt, "cleanup confirmed")
    for job in draft.jobs:
        for attempt in job.attempts:
            if attempt.cleanup_unknown and attempt.task_removed:
                clean = draft.change_attempt(attempt, cleanup_unknown=False)
                places.free_orphaned(draft, clean, "cleanup confirmed")
    places.settle(draft)
    nominations.settle(draft)


def lose_nodes(draft: Draft, reports: Sequence[Report]) -> None:
    """Make final what was on a node that is gone: its cleanup stays unknown and its place occupied,
    unless the node's new life proves that nothing runs there."""
    gone = [report for report in reports if isinstance(report, NodeGone)]
    for report in sorted(gone, key=lambda r: (r.node_id, not r.cleanup_confirmed, r.message)):
        for attempt in draft.attempts_on(report.node_id):
            _lose(draft, attempt, report)
        places.lose(draft, report)


def _lose(draft: Draft, attempt: Attempt, report: NodeGone) -> None:
    if attempt.status is AttemptStatus.TERMINATING:
        if report.cleanup_confirmed:
            released = report.removed or places.goes_with_its_task(draft, attempt)
            attempt = draft.change_attempt(attempt, container_gone=True, place_released=released)
        if attempt.container_gone:
            _finish(draft, attempt, "NodeGone")
        else:
            lost = draft.change_attempt(attempt, cleanup_unknown=True)
            _finish(draft, lost, "NodeGone")
            draft.move_allocation(lost, AllocationState.ORPHANED, "NodeGone")
    elif attempt.cleanup_unknown and report.cleanup_confirmed:
        clean = draft.change_attempt(attempt, cleanup_unknown=False, container_gone=True)
        if not report.removed:
            places.free_orphaned(draft, clean, "NodeGone")


def _finish(draft: Draft, attempt: Attempt, cause: str) -> Attempt:
    assert attempt.reason is not None, "an attempt is TERMINATING only with a reason"
    return draft.move_attempt(
        attempt,
        ROWS[attempt.reason].final,
        cause,
        finished_at=draft.now,
        disconnected=False,
        limit_paused_since=None,
    )


# -- the run --------------------------------------------------------------------------------


def end_run(draft: Draft, reason: RunReason, cause: str, message: str | None) -> None:
    """Move the run to TERMINATING and give its active attempts the mapped reason."""
    draft.move_run(RunStatus.TERMINATING, cause, reason=reason, message=message)
    mark_active(draft, reason, cause, message)
    for job in list(draft.jobs):
        draft.set_retry_at(job, None)
    settle(draft)


def mark_active(draft: Draft, reason: RunReason, cause: str, message: str | None) -> None:
    """A job that is over already is hurried by users only: it may be the one that ends the run."""
    for attempt in draft.live():
        marked = ATTEMPT_REASON_OF_RUN[reason]
        is_over = attempt.runner_exited or attempt.container_gone
        if marked is Reason.TERMINATED_BY_SERVER and attempt.reason is not None and is_over:
            continue
        if marked is Reason.TERMINATED_BY_SERVER and is_reserved(attempt):
            marked = Reason.RELEASED
        attempts.end(draft, attempt, marked, cause, message)


def conclude(draft: Draft) -> None:
    """Give a TERMINATING run its final status once all its attempts are final and all its places
    given back."""
    reason = draft.run.reason
    if draft.run.status is not RunStatus.TERMINATING or reason is None:
        return
    if next(draft.live(), None) is None and places.all_given_back(draft):
        last_word = occurrences.close(draft, reason)
        if last_word is not None:
            draft.change_run(finished_at=draft.now, suspended=False, next_triggered_at=None)
            draft.move_run(FINAL_STATUS_OF_RUN[last_word], "all attempts final", reason=last_word)
            confidential.forget(draft)
