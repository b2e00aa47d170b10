"""The checks of runs that wait for others find what they are for."""

from __future__ import annotations

from msgspec.structs import replace

from controller.lifecycle.model import JobSpec, RunPolicy, RunState
from controller.lifecycle.predecessors import Predecessor
from controller.lifecycle.runs.first_state import PlannedJob, new_run
from fairlead.model.beginning import After
from fairlead.model.reasons import RunReason
from fairlead.model.statuses import RunStatus
from tests.simulation.waiting import out_of_turn
from tests.unit.pipelines.parts import Ids, submitted

PREPARE = submitted("prepare")


def waiting(*, met: bool = False) -> RunState:
    return new_run(
        name="train",
        user="ada",
        jobs=[PlannedJob(spec=JobSpec(image="busybox"))],
        now=0.0,
        new_id=Ids(),
        policy=RunPolicy(after=(After(run="prepare"),)),
        after=[Predecessor(run_id=PREPARE.run.id, name="prepare", met=met)],
    )


def with_status(state: RunState, status: RunStatus) -> RunState:
    return replace(state, run=replace(state.run, status=status))


def breaches(state: RunState, prepare: RunState = PREPARE) -> list[str]:
    return list(out_of_turn(None, state, {prepare.run.id: prepare}))


def test_a_run_that_waits_is_in_turn() -> None:
    assert breaches(waiting()) == []
    assert breaches(waiting(met=True), with_status(PREPARE, RunStatus.DONE)) == []


def test_a_run_that_begins_too_early_is_found() -> None:
    begun = replace(waiting(), jobs=PREPARE.jobs)
    assert breaches(begun) == ["run train began, and prepare has not come so far (done)"]


def test_a_condition_that_is_met_wrongly_is_found() -> None:
    found = breaches(waiting(met=True), with_status(PREPARE, RunStatus.FAILED))
    assert found == ["run train waits no more until prepare is done: it is failed"]


def test_a_run_that_ends_although_it_could_wait_is_found() -> None:
    state = waiting()
    ended = replace(state, run=replace(state.run, reason=RunReason.DEPENDENCY_FAILED))
    assert "may still come" in breaches(ended)[0]
    assert breaches(ended, with_status(PREPARE, RunStatus.FAILED)) == []
