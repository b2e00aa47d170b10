"""The check of graces finds what it is there to find, and blames no clock that was set."""

from __future__ import annotations

from typing import Any

import pytest

from controller.lifecycle.events import Event, EventKind
from controller.lifecycle.model import RunState, Seen
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AttemptStatus
from tests.simulation.graces import Graces
from tests.simulation.test_rules import a_run, changed

ENDED_AT = 40.0


def running(**changes: Any) -> RunState:
    status = AttemptStatus.RUNNING
    return changed(a_run(jobs=1, stop_duration=60.0), 0, status=status, running_at=10.0, **changes)


def ended(remove_at: float, **changes: Any) -> RunState:
    return changed(
        running(),
        0,
        status=AttemptStatus.TERMINATING,
        reason=changes.pop("reason", Reason.PREEMPTED),
        terminating_at=ENDED_AT,
        remove_at=remove_at,
        **changes,
    )


def heard(state: RunState, at: float) -> Event:
    last = state.jobs[0].attempts[-1]
    return Event(
        run_id=state.run.id,
        job_id=last.job_id,
        attempt_id=last.id,
        at=at,
        kind=EventKind.CONNECTION,
        from_status="disconnected",
        to_status="connected",
        cause="NodeConnected",
    )


def told(graces: Graces, before: RunState, after: RunState, *events: Event) -> list[str]:
    name = after.jobs[0].attempts[-1].id
    found = list(graces.cut_short(before, after, events, clock_jumped=False))
    return [text.removeprefix(f"{name} has ") for text in found]


@pytest.mark.parametrize(("remove_at", "found"), [(100.0, []), (50.0, ["10 s to end"])])
def test_a_job_that_has_less_than_its_grace_because_its_run_ended_is_found(
    remove_at: float, found: list[str]
) -> None:
    late = {"reason": Reason.MAX_DURATION_EXCEEDED}
    after = ended(remove_at, later_reasons=(Reason.TERMINATED_BY_SERVER,), **late)
    said = [text[:11] for text in told(Graces(), running(), after)]
    assert said == found


def test_another_reason_may_cut_a_grace() -> None:
    after = ended(50.0, later_reasons=(Reason.ABORTED_BY_USER,))
    assert told(Graces(), running(), after) == []


def test_a_grace_that_is_cut_later_is_found() -> None:
    graces = Graces()
    assert told(graces, running(), ended(100.0)) == []
    assert told(graces, ended(100.0), ended(70.0)) == ["30 s to end as preempted, not 60 s"]


@pytest.mark.parametrize("at", [90.0, 30.0])
@pytest.mark.parametrize(
    ("given", "found"), [(60.0, []), (49.0, ["49 s to end as preempted, not 60 s"])]
)
def test_a_grace_that_begins_when_its_node_is_back_is_whole_by_the_clock_of_then(
    at: float, given: float, found: list[str]
) -> None:
    graces, silent = Graces(), ended(100.0, disconnected=True)
    assert told(graces, running(disconnected=True), silent) == []
    back = ended(at + given)
    assert told(graces, silent, back, heard(back, at)) == found


def test_a_job_that_ended_on_a_silent_node_and_is_not_given_its_grace_is_found() -> None:
    graces, silent = Graces(), ended(100.0, disconnected=True)
    assert told(graces, running(disconnected=True), silent) == []
    back = ended(100.0)
    assert told(graces, silent, back, heard(back, 90.0)) == ["10 s to end as preempted, not 60 s"]


def test_a_job_that_ended_on_a_connected_node_keeps_the_end_of_its_grace() -> None:
    graces = Graces()
    assert told(graces, running(), ended(100.0)) == []
    assert told(graces, ended(100.0, disconnected=True), ended(100.0), heard(running(), 90.0)) == []


def test_a_job_that_is_over_when_its_node_is_back_needs_no_grace() -> None:
    graces, silent = Graces(), ended(100.0, disconnected=True)
    assert told(graces, running(disconnected=True), silent) == []
    back = ended(100.0, seen=Seen(runner_exited=True))
    assert told(graces, silent, back, heard(back, 90.0)) == []


def test_a_recall_shortens_a_grace_also_when_its_node_is_gone() -> None:
    graces, recalled = Graces(), ended(ENDED_AT + 20, reason=Reason.INTERRUPTED_BY_NO_CAPACITY)
    node_id = recalled.jobs[0].attempts[-1].node_id or ""
    recalls = {node_id: ENDED_AT + 30}
    assert list(graces.cut_short(running(), recalled, (), recalls=recalls)) == []
    over = changed(recalled, 0, status=AttemptStatus.FAILED)
    assert list(graces.cut_short(recalled, over, (), recalls=recalls)) == []
    assert list(graces.cut_short(over, over, ())) == []
    assert list(graces.cut_short(recalled, recalled, ())) != []
