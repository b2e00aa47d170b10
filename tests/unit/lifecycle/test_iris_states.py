"""The names by which Iris users know the state of a job (reasons.state_of: of an attempt)."""

from __future__ import annotations

from controller.lifecycle.model import Group, RetryEvent, RetryPolicy
from controller.lifecycle.reports import JobAbandonRequested, SuspendRequested
from controller.lifecycle.runs.status import state_of_job
from fairlead.model.reasons import Reason
from fairlead.model.statuses import FINAL_RUN_STATUSES, AttemptStatus
from tests.unit.lifecycle.play import NO_RETRY, Play

FAILED = Reason.CONTAINER_EXITED_WITH_ERROR
ON_ERROR = RetryPolicy(on_events=frozenset({RetryEvent.ERROR}))


def state(play: Play, n: int = 0) -> str:
    return state_of_job(play.run, play.job(n), play.state.jobs)


def test_a_job_goes_through_the_states_of_its_attempt() -> None:
    assert state(Play()) == "pending"
    assert state(Play().to_provisioning()) == "assigned"
    assert state(Play().to_container()) == "building"
    play = Play().to_running()
    assert state(play) == "running"
    assert state(play.send(play.exited())) == "succeeded"


def test_a_job_that_failed_and_is_tried_again_is_pending_at_once() -> None:
    play = Play(retry=ON_ERROR).to_running()
    play.send(play.exited(reason=FAILED))
    assert play.attempt().status is AttemptStatus.TERMINATING
    assert state(play) == "pending"


def test_a_job_that_failed_for_good_is_failed_before_it_is_cleaned_up() -> None:
    play = Play(retry=NO_RETRY).to_running()
    play.send(play.exited(reason=FAILED))
    assert state(play) == "failed"
    play.clean()
    assert play.run.status in FINAL_RUN_STATUSES
    assert state(play) == "failed"


def test_a_job_that_waits_for_its_retry_when_the_run_is_stopped_keeps_its_last_state() -> None:
    play = Play(jobs=2, retry=ON_ERROR).to_running(1)
    play.live_and_end(0, FAILED).live_and_end(0, FAILED)
    assert (play.job(0).retry_at is not None, state(play)) == (True, "pending")
    play.send(play.stop())
    assert [state(play, n) for n in (0, 1)] == ["failed", "killed"]


def test_the_jobs_of_a_gang_that_starts_anew_are_pending() -> None:
    play = Play(groups=[Group(name="main", nodes=2, gang_size=2)])
    play.to_running(0).to_running(1)
    play.send(play.node_gone())
    assert [state(play, n) for n in (0, 1)] == ["pending", "pending"]


def test_an_abandoned_job_does_not_come_back_to_pending() -> None:
    play = Play(jobs=2).to_running(0).to_running(1)
    play.send(JobAbandonRequested(run_id=play.run_id, job_id=play.job(0).id, by="ada"))
    assert state(play) == "killed"


def test_a_job_that_a_suspension_ended_is_pending() -> None:
    play = Play().to_running()
    play.send(SuspendRequested(run_id=play.run_id, abort_running=True, by="ada")).clean()
    assert state(play) == "pending"
