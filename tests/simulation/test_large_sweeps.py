"""Large sweeps keep their promises, here with few sets (`./dev prove sweeps` plays 10,000), and
what looks at them finds what it is there to find."""

from __future__ import annotations

import logging

import pytest
from msgspec.structs import replace

from controller.lifecycle.model import Group, Job, JobSpec, RunState
from controller.lifecycle.runs.first_state import new_run
from fairlead.model.reasons import Reason
from fairlead.model.spec import PlannedGroup
from fairlead.model.statuses import AttemptStatus
from fairlead.model.sweep import ParameterSets, SweepPlan
from tests.simulation.large_sweeps import play
from tests.simulation.tally import Tally
from tests.unit.pipelines.parts import Ids


@pytest.mark.parametrize("seed", range(6))
def test_a_sweep_ends_each_set_once_whatever_becomes_of_its_nodes_and_controllers(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    found = play(seed, 120)
    assert found.violations == ()
    assert found.done + found.failed + found.stopped == 120


def test_a_sweep_goes_on_after_kills_and_preemption(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    found = play(6, 200)
    assert (found.violations, found.kills > 5, found.preempted > 0) == ((), True, True)


def test_one_seed_gives_one_story(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    assert play(3, 40) == play(3, 40)


SETS = 4


def a_sweep(parallel: int | None = 2) -> RunState:
    rows = [[number] for number in range(SETS)]
    return new_run(
        name="s",
        user="ann",
        groups=[PlannedGroup(group=Group(name="main", nodes=1), spec=JobSpec(image="i"))],
        now=0.0,
        new_id=Ids(),
        sweep=SweepPlan(sets=ParameterSets.of(["seed"], rows), max_parallel=parallel),
    )


def with_job(state: RunState, at: int, job: Job) -> RunState:
    jobs = [*state.jobs]
    jobs[at:at] = [job]
    return replace(state, jobs=tuple(jobs))


def done(job: Job, attempt_id: str) -> Job:
    ended = replace(
        job.attempts[-1],
        id=attempt_id,
        status=AttemptStatus.DONE,
        reason=Reason.DONE_BY_RUNNER,
    )
    return replace(job, attempts=(ended,))


def found_in(*states: RunState) -> list[str]:
    tally = Tally(states[0])
    for state in states:
        tally.committed(state)
    return tally.violations


def test_an_honest_commit_is_let_pass() -> None:
    state = a_sweep()
    first, second = state.jobs
    assert found_in(state, replace(state, jobs=(done(first, "a"), second))) == []


def test_a_set_that_is_done_twice_is_found() -> None:
    state = a_sweep()
    first, second = state.jobs
    once = replace(state, jobs=(done(first, "a"), second))
    again = replace(state, jobs=(done(replace(first, id="other"), "b"), second))
    assert found_in(state, once, again) == [
        "set 0 began again although it was done",
        "set 0 is done twice",
    ]


def test_a_set_with_two_jobs_and_one_too_many_are_found() -> None:
    state = a_sweep()
    twice = with_job(state, 0, replace(state.jobs[0], id="other"))
    assert "set 0 has two jobs" in found_in(state, twice)
    more = with_job(state, 0, replace(state.jobs[0], id="other", replica=3))
    assert "3 sets are active, and max_parallel is 2" in found_in(state, more)
    assert "5 of 4 sets are accounted for" in found_in(state, more)


def test_a_sweep_that_goes_on_after_its_failures_is_found() -> None:
    state = a_sweep()
    assert state.run.sweep is not None
    strict = replace(state.run, sweep=replace(state.run.sweep, stop_after_failures=1))
    first, second = state.jobs
    failed = replace(
        first.attempts[-1],
        status=AttemptStatus.FAILED,
        reason=Reason.CONTAINER_EXITED_WITH_ERROR,
    )
    after = replace(state, run=strict, jobs=(replace(first, attempts=(failed,)), second))
    text = "it goes on after 1 failures, and stop_after_failures is 1"
    assert found_in(state, after) == [text]


def test_a_run_that_ends_with_sets_left_is_found() -> None:
    state = a_sweep()
    tally = Tally(state)
    tally.ended(state)
    assert [text.partition("SetCounts")[0] for text in tally.violations] == [
        "the run has ended with "
    ]
