"""One turn of a run: apply all reports first, then decide what follows.

`decide` has no clock, no randomness and no I/O of its own. The same state, reports, time and ids
give the same decision. The order of the reports in a turn does not matter, with one exception: when
a link goes down and up in one turn, its last report counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from controller.lifecycle.attempts import (
    end_signal,
    inactivity,
    limits,
    recall,
    retry,
    termination,
)
from controller.lifecycle.draft import EMPTY_CONTEXT, DecisionContext, Draft
from controller.lifecycle.events import Event, EventKind
from controller.lifecycle.gangs import freed, incarnation, offers, switching
from controller.lifecycle.intake import claims, facts, requests
from controller.lifecycle.membership.ranks import is_gang_run
from controller.lifecycle.model import Attempt, RunState
from controller.lifecycle.reports import Report
from controller.lifecycle.runs import beginning, dependencies, ending, schedules
from controller.lifecycle.runs.status import Outcome, derive
from controller.lifecycle.services import replicas
from controller.lifecycle.sweeps import begin, carrying
from controller.lifecycle.sweeps import outcome as sweep_outcome
from controller.lifecycle.sweeps.outcome import SweepOutcome
from fairlead.model.statuses import AttemptStatus, RunStatus


class Decision(msgspec.Struct, frozen=True):
    """The result of one turn.

    `state` is the same object as before when nothing changed. `wake_at` is the Unix time at which
    `decide` must be called with a Tick if no report comes before.
    """

    state: RunState
    events: tuple[Event, ...]
    wake_at: float | None


def no_jitter() -> float:
    return 0.0


def decide(
    state: RunState,
    reports: Sequence[Report],
    now: float,
    new_id: Callable[[], str],
    jitter: Callable[[], float] = no_jitter,
    context: DecisionContext = EMPTY_CONTEXT,
) -> Decision:
    """Apply the reports to the state and decide what follows.

    `jitter` gives numbers in [-1, 1]; `new_id` gives a fresh id for each new attempt.
    """
    draft = Draft(state, now, new_id, jitter, context)
    if state.run.version == 0:
        _record_submission(draft)
    # Before the facts: a task that is accepted in this turn was not lost.
    missing = claims.missing_when_reported(draft, reports)
    facts.apply(draft, offers.only_whole(draft, reports))
    claims.judge(draft, reports, missing)
    termination.lose_nodes(draft, reports)
    if not draft.run_is_final:
        requests.obey(draft, reports)
        schedules.trigger(draft)
        beginning.settle(draft)
        # Before: a limit must not pass in the turn that suspends its run or hears that its node is
        # silent. After: new attempts and freed turns of startup_order have their pauses at once.
        limits.pause_or_resume(draft)
        _advance(draft, reports)
        limits.pause_or_resume(draft)
        end_signal.settle(draft)
    else:
        termination.settle(draft)
    freed.settle(draft)
    return Decision(draft.result(), tuple(draft.events), wake_at(draft))


def _record_submission(draft: Draft) -> None:
    run = draft.run
    cause = f"submitted by {run.user}"
    draft.record(EventKind.RUN, cause, at=run.submitted_at, to_status=run.status)
    for attempt in draft.live():
        draft.record(EventKind.ATTEMPT, "submitted", attempt=attempt, to_status=attempt.status)


def _advance(draft: Draft, reports: Sequence[Report]) -> None:
    if draft.run.status is not RunStatus.TERMINATING:
        limits.enforce(draft)
        recall.enforce(draft)
        inactivity.enforce(draft, reports)
    termination.settle(draft)
    replicas.settle(draft)
    sweep_outcome.end_together(draft)
    carrying.settle(draft)
    if draft.run.deployments or draft.run.sweep is not None:
        termination.settle(draft)  # a queued replica that ends holds nothing: nothing would wake it
    waits = schedules.waits_for_trigger(draft.run) or beginning.waits(draft)
    if draft.run.status is not RunStatus.TERMINATING and not waits:
        _take_over_derived_status(draft, reports)
    carrying.release(draft)
    ending.conclude(draft)


def _take_over_derived_status(draft: Draft, reports: Sequence[Report]) -> None:
    """Derive the run's status from its jobs, and switch or retry where that is due.

    A status that ends the run comes before switches and retries. Any other status is derived after
    them, because the status between an attempt and its successor in the same turn means nothing.
    """
    outcome = _derived(draft)
    if outcome.status is not RunStatus.TERMINATING and is_gang_run(draft.run):
        _move_gang(draft, reports)
        outcome = _derived(draft)
    if outcome.status is not RunStatus.TERMINATING and retry.may_be_needed(draft):
        retry.stop_siblings(draft)
        termination.settle(draft)
        retry.bring_back(draft)
        outcome = _derived(draft)
    if outcome.status is not RunStatus.TERMINATING and draft.run.sweep is not None:
        begin.begin(draft, dependencies.held_sets(draft))
        outcome = _derived(draft)
    if outcome.status is RunStatus.TERMINATING and outcome.reason is not None:
        ending.end_run(draft, outcome.reason, f"rule {outcome.rule}", outcome.message)
    elif outcome.status is not None and outcome.status is not draft.run.status:
        draft.move_run(outcome.status, f"rule {outcome.rule}")


def _derived(draft: Draft) -> Outcome | SweepOutcome:
    if draft.run.sweep is not None:
        return sweep_outcome.derive(draft)
    return derive(draft.run, draft.jobs)


def _move_gang(draft: Draft, reports: Sequence[Report]) -> None:
    switching.switch_if_needed(draft, reports)
    switching.stop_survivors_of_a_suspended_gang(draft)
    termination.settle(draft)
    incarnation.restart_if_due(draft)
    termination.settle(draft)


def wake_at(draft: Draft) -> float | None:
    """Return the earliest of all timers of the run as it now is."""
    return min(_timers(draft), default=None)


def _timers(draft: Draft) -> Iterator[float]:
    if draft.run_is_final:
        return
    for attempt in draft.live():
        limit = limits.deadline(draft.run, attempt)
        if limit is not None:
            yield limit.at
        if attempt.drains_until is not None and attempt.drains_until > draft.now:
            yield attempt.drains_until
        if _removal_is_ahead(attempt, draft.now) and attempt.remove_at is not None:
            yield attempt.remove_at
    if not draft.run.suspended:
        earliest = incarnation.look_again_at(draft) or 0.0
        yield from (max(j.retry_at, earliest) for j in draft.jobs if j.retry_at is not None)
    yield from end_signal.timers(draft)
    yield from carrying.timers(draft)
    trigger_at = schedules.next_trigger_at(draft.run)
    if trigger_at is not None:
        yield trigger_at
    reincarnation = incarnation.deadline(draft.run, draft.jobs)
    if reincarnation is not None:
        yield reincarnation
    begins_at = beginning.timer(draft)
    if begins_at is not None:
        yield begins_at
    yield from replicas.timers(draft)
    max_duration = limits.max_duration_at(draft.run, draft.all_jobs, draft.now)
    if max_duration is not None:
        yield max_duration


def _removal_is_ahead(attempt: Attempt, now: float) -> bool:
    return (
        attempt.status is AttemptStatus.TERMINATING
        and not attempt.seen.container_gone
        and attempt.remove_at is not None
        and attempt.remove_at > now
    )
