"""The checks of inactivity find what they are there to find."""

from __future__ import annotations

from math import inf

import pytest
from msgspec.structs import replace

from controller.lifecycle.model import JobSpec, Run, RunPolicy, RunState
from controller.lifecycle.runs.first_state import PlannedJob, new_run
from fairlead.model.dev_environment import DevEnvironment
from fairlead.model.statuses import AttemptStatus
from tests.simulation.idle import Use, left_alone_too_long, stopped_in_use
from tests.simulation.samples import changed

LIMIT = 300.0
CALM, DISTURBED = -inf, inf


def a_desk(limit: float | None = LIMIT) -> RunState:
    ids = iter(f"{number:016x}" for number in range(100))
    state = new_run(
        name="d",
        user="u",
        jobs=[PlannedJob(group="main", spec=JobSpec(image="i"))],
        now=0.0,
        new_id=lambda: next(ids),
        policy=RunPolicy(dev_environment=DevEnvironment(folder="/", inactivity_duration=limit)),
    )
    return changed(state, 0, status=AttemptStatus.RUNNING)


def run_of(limit: float | None = LIMIT) -> Run:
    return a_desk(limit).run


def test_an_end_after_the_whole_duration_alone_is_right() -> None:
    assert stopped_in_use(run_of(), [Use(began=0.0, ended=699.0)], 1000.0, 0.0, CALM) is None


def test_an_end_without_a_duration_or_before_it_has_passed_is_found() -> None:
    assert stopped_in_use(run_of(None), [], 1000.0, 0.0, CALM) == "it has no inactivity_duration"
    found = stopped_in_use(run_of(), [], 1000.0, 800.0, CALM)
    assert found == "it was running for 200 s of 300 s"


@pytest.mark.parametrize(("calm", "found"), [(CALM, True), (DISTURBED, False)])
def test_an_end_after_a_short_session_is_found_where_nothing_kept_it_from_being_seen(
    calm: float, found: bool
) -> None:
    use = Use(began=750.0, ended=780.0)
    text = "it was to be alone for 300 s and was 220 s ago in use"
    assert stopped_in_use(run_of(), [use], 1000.0, 0.0, calm) == (text if found else None)


@pytest.mark.parametrize("calm", [CALM, DISTURBED])
def test_an_end_amid_a_long_session_is_always_found(calm: float) -> None:
    text = "it was to be alone for 300 s and still is in use"
    assert stopped_in_use(run_of(), [Use(began=750.0)], 1000.0, 0.0, calm) == text


def test_what_no_look_can_have_seen_is_no_breach() -> None:
    between = [Use(began=800.0, ended=804.0), Use(began=995.0)]
    assert stopped_in_use(run_of(), between, 1000.0, 0.0, CALM) is None
    request = Use(began=800.0, ended=804.0, is_request=True)
    assert stopped_in_use(run_of(), [request], 1000.0, 0.0, CALM) is not None


def test_one_that_is_left_alone_and_goes_on_is_found() -> None:
    state = a_desk()
    (job,) = state.jobs
    (attempt,) = job.attempts
    uses = [Use(began=0.0, ended=100.0)]
    assert left_alone_too_long(state.run, attempt, uses, 500.0, 0.0) is None
    found = left_alone_too_long(state.run, attempt, uses, 600.0, 0.0)
    assert found == "is left alone since 100 s and is not stopped after 300 s"
    assert left_alone_too_long(state.run, attempt, [Use(began=0.0)], 600.0, 0.0) is None
    assert left_alone_too_long(state.run, attempt, uses, 600.0, 500.0) is None
    suspended = replace(state.run, suspended=True)
    assert left_alone_too_long(suspended, attempt, uses, 600.0, 0.0) is None
