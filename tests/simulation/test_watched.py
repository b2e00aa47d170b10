"""The checks of runs that start again find what they are there to find."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.lifecycle.events import Event, EventKind
from controller.lifecycle.model import Attempt, RunState
from fairlead.model.reasons import Reason
from fairlead.model.starts import StartEnd, Starts
from fairlead.model.statuses import AttemptStatus
from tests.simulation.test_rules import a_run, changed
from tests.simulation.watched import breaches, given_up_early

WAITS = Starts(ended=StartEnd(number=0, at=1.0, reason=Reason.DONE_BY_RUNNER, exit_code=0))


def waiting(starts: Starts = WAITS) -> RunState:
    return changed(a_run(1, keeps_for=600.0), 0, status=AttemptStatus.RUNNING, starts=starts)


def last(state: RunState) -> Attempt:
    return state.jobs[0].attempts[-1]


def an_event(state: RunState, cause: str, reason: Reason | None = None) -> Event:
    return Event(
        run_id=state.run.id,
        attempt_id=last(state).id,
        at=2.0,
        kind=EventKind.ATTEMPT,
        cause=cause,
        reason=reason,
    )


@pytest.mark.parametrize(
    ("reason", "exit_code", "is_right"),
    [
        (Reason.DONE_BY_RUNNER, 0, True),
        (Reason.TERMINATED_BY_USER, None, True),
        (Reason.DONE_BY_RUNNER, 137, False),
        (Reason.PREEMPTED, None, False),
        (Reason.CONTAINER_EXITED_WITH_ERROR, 137, False),
    ],
)
def test_a_result_that_is_lost_while_the_container_waits_is_found(
    reason: Reason, exit_code: int | None, is_right: bool
) -> None:
    before = waiting()
    ends = {"status": AttemptStatus.TERMINATING, "reason": reason, "exit_code": exit_code}
    assert (list(breaches(before, changed(before, 0, **ends), ())) == []) is is_right


def test_an_interruption_of_a_start_that_is_owed_breaks_nothing() -> None:
    before = waiting(replace(WAITS, asked=1))
    ends = {"status": AttemptStatus.TERMINATING, "reason": Reason.PREEMPTED}
    assert list(breaches(before, changed(before, 0, **ends), ())) == []


def test_a_start_that_is_counted_twice_or_begins_unasked_is_found() -> None:
    before = waiting()
    request = an_event(before, "StartAgainRequested")
    for starts, wrong in (
        (replace(WAITS, asked=1), 0),
        (replace(WAITS, asked=2), 1),
        (replace(WAITS, asked=1, begun=2), 1),
    ):
        found = list(breaches(before, changed(before, 0, starts=starts), [request]))
        assert len(found) == wrong, found


def test_a_container_that_is_given_back_before_its_lease_ends_is_found() -> None:
    state = waiting()
    ended = an_event(state, "limit watcher", Reason.DONE_BY_RUNNER)
    assert list(given_up_early([ended], {state.run.id: {"w": 59.0}}, 60.0)) == []
    assert len(list(given_up_early([ended], {state.run.id: {"w": 70.0}}, 60.0))) == 1
