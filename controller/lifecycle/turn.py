"""One turn of a run: all that was reported is applied first, then what follows is decided.

`decide` has no clock, no randomness and no I/O of its own. The same state, reports, time and ids
give the same decision, and the order of the reports within a turn does not matter (but for a link
that goes down and up within one turn, where the last word counts).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from controller.lifecycle import claims, facts, limits, retry, terminating
from controller.lifecycle.derivation import derive
from controller.lifecycle.draft import Draft
from controller.lifecycle.history import Event, EventKind
from controller.lifecycle.model import Attempt, Run, RunState
from controller.lifecycle.reasons import RunReason
from controller.lifecycle.reports import Report, StopRequested
from controller.lifecycle.statuses import AttemptStatus, RunStatus


class Decision(msgspec.Struct, frozen=True):
    """`state` is the very object given when nothing changed. `wake_at`: the Unix time at which
    `decide` must be asked again with a Tick, if nothing is reported before."""

    state: RunState
    events: tuple[Event, ...]
    wake_at: float | None


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What a run's decision must know of the world beside the run's own state."""

    unusable_nodes: frozenset[str] = frozenset()
    """Not connected, draining, cordoned, unfit or unknown: no place there outlives its attempt."""
    nominated: frozenset[str] = frozenset()
    """Allocations of this run on whose place another run's nomination lies."""


NOTHING_ELSE: Final = Surroundings()


def no_jitter() -> float:
    return 0.0


def decide(
    state: RunState,
    reports: Sequence[Report],
    now: float,
    new_id: Callable[[], str],
    jitter: Callable[[], float] = no_jitter,
    surroundings: Surroundings = NOTHING_ELSE,
) -> Decision:
    """`jitter` gives numbers in [-1, 1]; `new_id` a fresh id for each attempt that is made."""
    draft = Draft(state, now, new_id, jitter)
    if state.run.version == 0:
        _tell_submission(draft)
    missing = claims.missing_when_reported(draft, reports)
    facts.apply(draft, reports)
    claims.judge(draft, reports, missing)
    terminating.lose_nodes(draft, reports)
    if not draft.run_is_final:
        _obey(draft, reports)
        _advance(draft)
        limits.stand_still(draft)
    else:
        terminating.settle(draft)
    return Decision(draft.result(), tuple(draft.events), wake_at(draft))


def _tell_submission(draft: Draft) -> None:
    run = draft.run
    draft.events.append(
        Event(
            run_id=run.id,
            at=run.submitted_at,
            kind=EventKind.RUN,
            to_status=run.status,
            cause=f"submitted by {run.user}",
        )
    )
    for attempt in draft.live():
        draft.note(EventKind.ATTEMPT, attempt, "submitted", to_status=attempt.status)


def _obey(draft: Draft, reports: Sequence[Report]) -> None:
    """User requests come after all reports; a stop before an abort, whoever was faster."""
    requests = [report for report in reports if isinstance(report, StopRequested)]
    for request in sorted(requests, key=lambda r: (r.abort, r.by)):
        reason = RunReason.ABORTED_BY_USER if request.abort else RunReason.STOPPED_BY_USER
        message = f"{'aborted' if request.abort else 'stopped'} by {request.by}"
        if draft.run.status is RunStatus.TERMINATING:
            terminating.mark_active(draft, reason, "StopRequested", message)
        else:
            terminating.end_run(draft, reason, "StopRequested", message)


def _advance(draft: Draft) -> None:
    if draft.run.status is not RunStatus.TERMINATING:
        limits.enforce(draft)
    terminating.settle(draft)
    if draft.run.status is not RunStatus.TERMINATING and not _waits_for_its_trigger(draft.run):
        _take_over_derived_status(draft)
    terminating.conclude(draft)


def _waits_for_its_trigger(run: Run) -> bool:
    return run.status is RunStatus.PENDING and run.next_triggered_at is not None


def _take_over_derived_status(draft: Draft) -> None:
    """What ends the run comes before retries; any other status is derived after them, for the one
    that a run has between an attempt and a successor made in the same turn is nobody's business."""
    outcome = derive(draft.run, draft.jobs)
    if outcome.status is not RunStatus.TERMINATING and retry.may_be_needed(draft):
        retry.stop_siblings(draft)
        terminating.settle(draft)
        retry.bring_back(draft)
        outcome = derive(draft.run, draft.jobs)
    if outcome.status is RunStatus.TERMINATING and outcome.reason is not None:
        terminating.end_run(draft, outcome.reason, f"rule {outcome.rule}", outcome.message)
    elif outcome.status is not None and outcome.status is not draft.run.status:
        draft.move_run(outcome.status, f"rule {outcome.rule}")


def wake_at(draft: Draft) -> float | None:
    """The earliest of all timers of the run as it now is."""
    return min(_timers(draft), default=None)


def _timers(draft: Draft) -> Iterator[float]:
    if draft.run_is_final:
        return
    for attempt in draft.live():
        limit = limits.deadline(draft.run, attempt)
        if limit is not None:
            yield limit.at
        if _removal_is_ahead(attempt, draft.now) and attempt.remove_at is not None:
            yield attempt.remove_at
    if not draft.run.suspended:
        yield from (job.retry_at for job in draft.jobs if job.retry_at is not None)
    max_duration = limits.max_duration_at(draft.run, draft.jobs, draft.now)
    if max_duration is not None:
        yield max_duration


def _removal_is_ahead(attempt: Attempt, now: float) -> bool:
    return (
        attempt.status is AttemptStatus.TERMINATING
        and not attempt.container_gone
        and attempt.remove_at is not None
        and attempt.remove_at > now
    )
