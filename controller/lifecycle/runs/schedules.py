"""A scheduled run starts an occurrence at each trigger and waits as PENDING in between.

Only the caller knows when a cron expression fires next; it passes that time as
`DecisionContext.next_trigger`. An occurrence ends like a run, with a status, a reason and a
message. The run itself ends only when a user stops, aborts or completes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from controller.lifecycle.draft import Draft
from controller.lifecycle.events import EventKind
from controller.lifecycle.model import Incarnation, Occurrence, Run
from controller.lifecycle.runs.first_state import first_rank
from fairlead.model.reasons import FINAL_STATUS_OF_RUN, RunReason
from fairlead.model.statuses import FINAL_RUN_STATUSES, RunStatus

KEPT: Final = 100
"""The number of past occurrences that a run keeps; its history has all of them."""


class Phase(StrEnum):
    """The phase of a scheduled run. It is derived from the run, never stored."""

    WAITING = "waiting"
    """The run is PENDING until the next trigger."""
    GOING = "going"
    ENDING = "ending"
    """The run is TERMINATING: its occurrence ends, or a user wants no further one."""
    OVER = "over"


PHASE_MOVES: Mapping[Phase, frozenset[Phase]] = {
    Phase.WAITING: frozenset({Phase.GOING, Phase.ENDING}),
    Phase.GOING: frozenset({Phase.ENDING}),
    Phase.ENDING: frozenset({Phase.WAITING, Phase.OVER}),
    Phase.OVER: frozenset(),
}


def phase(run: Run) -> Phase | None:
    """Return the phase of the run; None for a run that is not scheduled."""
    if not is_scheduled(run):
        return None
    if run.status in FINAL_RUN_STATUSES:
        return Phase.OVER
    if run.status is RunStatus.TERMINATING:
        return Phase.ENDING
    return Phase.WAITING if run.triggered_at is None else Phase.GOING


def is_scheduled(run: Run) -> bool:
    return bool(run.policy.schedule)


def waits_for_trigger(run: Run) -> bool:
    """Return whether the run is between occurrences; the rules of a run do not apply then."""
    return phase(run) is Phase.WAITING


def needs_next_trigger(run: Run, now: float) -> bool:
    """Return whether a decision at `now` needs `DecisionContext.next_trigger`."""
    if not is_scheduled(run) or run.status in FINAL_RUN_STATUSES:
        return False
    return run.next_triggered_at is None or run.next_triggered_at <= now


def next_trigger_at(run: Run) -> float | None:
    """Return the timer of a scheduled run; None while it is suspended or a user is ending it."""
    if not is_scheduled(run) or run.suspended or run.ends_as is not None:
        return None
    return run.next_triggered_at


def trigger(draft: Draft) -> None:
    """Start the occurrence that is due, or skip it while the last one is not over yet."""
    run = draft.run
    if not is_scheduled(run) or run.suspended or run.ends_as is not None:
        return
    due = run.next_triggered_at is not None and draft.now >= run.next_triggered_at
    if due or run.next_triggered_at is None:
        draft.change_run(next_triggered_at=draft.context.next_trigger)
    if due and waits_for_trigger(run):
        _start(draft)
    elif due:
        draft.record(
            EventKind.OCCURRENCE,
            "trigger",
            to_status="skipped",
            message=f"occurrence {run.occurrence} is not over yet",
        )


def forget_missed_triggers(draft: Draft) -> None:
    """Skip a trigger that came while the run was suspended: it is not made up for."""
    at = draft.run.next_triggered_at
    if is_scheduled(draft.run) and at is not None and at <= draft.now:
        draft.change_run(next_triggered_at=draft.context.next_trigger)


def _start(draft: Draft) -> None:
    run = draft.run
    number = run.occurrence + 1
    incarnation = run.incarnation
    if incarnation is not None:
        incarnation = Incarnation(number=incarnation.number + 1, id=draft.new_id())
    draft.change_run(occurrence=number, triggered_at=draft.now, incarnation=incarnation)
    draft.record(
        EventKind.OCCURRENCE, "trigger", to_status="started", message=f"occurrence {number}"
    )
    for job in list(draft.jobs):
        rank = None if incarnation is None else first_rank(draft.run, job.group, job.cookie)
        job = draft.change_job(job, abandoned=False, retry_at=None, rank=rank)
        if not job.scaled_down:
            draft.fresh_attempt(job, "trigger")


def close(draft: Draft, reason: RunReason) -> RunReason | None:
    """Close a TERMINATING run whose attempts are all final.

    Return why the run ends; None when only its occurrence ends and the run waits for the next
    trigger.
    """
    run = draft.run
    if not is_scheduled(run):
        return reason
    if run.triggered_at is not None:
        _record(draft, reason, run.triggered_at)
    if run.ends_as is None:
        draft.move_run(RunStatus.PENDING, "occurrence over")
        draft.change_run(reason=None, message=None)
    elif run.ends_as is not reason:
        draft.change_run(message=None)
    return run.ends_as


def _record(draft: Draft, reason: RunReason, started_at: float) -> None:
    run = draft.run
    over = Occurrence(
        number=run.occurrence,
        status=FINAL_STATUS_OF_RUN[reason],
        reason=reason,
        message=run.message,
        started_at=started_at,
        finished_at=draft.now,
    )
    draft.change_run(triggered_at=None, occurrences=(*run.occurrences, over)[-KEPT:])
    draft.record(
        EventKind.OCCURRENCE,
        "all attempts final",
        to_status=over.status,
        reason=reason,
        message=run.message,
    )
