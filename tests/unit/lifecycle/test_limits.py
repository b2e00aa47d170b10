"""LIFECYCLE.md section 1: the times after which something ends, and when they stand still."""

from __future__ import annotations

from controller.lifecycle.reasons import Reason
from controller.lifecycle.reports import (
    NotPlaced,
    RunnerSilent,
)
from controller.lifecycle.statuses import AttemptStatus, RunStatus
from tests.unit.lifecycle.play import NO_RETRY, START, Play


def test_a_shim_that_does_not_accept_for_two_minutes_exceeds_its_limit() -> None:
    play = Play().to_provisioning()
    assert play.wake_at == START + 120
    assert play.wait(119).attempt().status is AttemptStatus.PROVISIONING
    play.wait(1)
    assert play.attempt().reason is Reason.WAITING_INSTANCE_LIMIT_EXCEEDED


def test_a_runner_that_does_not_start_for_five_minutes_exceeds_its_limit() -> None:
    play = Play().to_container()
    assert play.wake_at == START + 300
    assert play.wait(299).attempt().status is AttemptStatus.PULLING
    play.wait(1)
    assert play.attempt().reason is Reason.WAITING_RUNNER_LIMIT_EXCEEDED


def test_a_long_pull_has_no_limit() -> None:
    play = Play().to_pulling()
    assert play.wake_at is None
    assert play.wait(86_400).attempt().status is AttemptStatus.PULLING


def test_the_start_limits_stand_still_while_the_node_is_not_healthy() -> None:
    play = Play().to_provisioning().wait(100)
    play.send(play.link(down=True))
    assert play.wake_at is None
    assert play.wait(1000).attempt().status is AttemptStatus.PROVISIONING
    play.send(play.link(down=False))
    assert play.wait(19).attempt().status is AttemptStatus.PROVISIONING
    assert play.wait(1).attempt().reason is Reason.WAITING_INSTANCE_LIMIT_EXCEEDED


def test_a_pause_before_the_container_does_not_extend_the_runner_s_limit() -> None:
    play = Play().to_pulling()
    play.send(play.link(down=True)).wait(1000).send(play.link(down=False))
    play.send(play.seen())
    assert play.wake_at == play.now + 300


def test_a_pause_after_the_container_started_extends_the_runner_s_limit() -> None:
    play = Play().to_container().wait(200)
    play.send(play.link(down=True)).wait(1000).send(play.link(down=False))
    assert play.wake_at == play.now + 100


def test_two_claims_of_one_rank_are_ordered_without_regard_to_their_arrival() -> None:
    def reason(*order: int) -> Reason | None:
        play = Play(retry=NO_RETRY).to_running()
        claims = (
            play.seen(terminated=True, reason=Reason.VOLUME_ERROR),
            play.seen(terminated=True, reason=Reason.PORTS_BINDING_FAILED),
        )
        return play.send(*(claims[at] for at in order)).attempt().reason

    assert reason(0, 1) is reason(1, 0)


def test_a_silent_runner_ends_the_attempt_unless_its_node_is_silent_too() -> None:
    play = Play().to_running()
    silent = RunnerSilent(run_id=play.run_id, attempt_id=play.attempt().id)
    play.send(play.link(down=True)).send(silent)
    assert play.attempt().reason is None
    play.send(play.link(down=False)).send(silent)
    assert play.attempt().reason is Reason.WAITING_RUNNER_LIMIT_EXCEEDED


def test_scheduling_timeout_ends_an_attempt_that_found_no_place() -> None:
    play = Play(scheduling_timeout=60.0)
    why = NotPlaced(run_id=play.run_id, attempt_id=play.attempt().id, pending_reason="full")
    assert play.send(why).wake_at == START + 60
    play.wait(60)
    assert play.attempt().reason is Reason.UNSCHEDULABLE
    assert play.attempt().message == "no place within 60 s: full"
    assert play.run.status is RunStatus.FAILED


def test_a_scheduling_timeout_of_0_still_gives_the_scheduler_its_one_chance() -> None:
    play = Play(scheduling_timeout=0.0)
    assert play.attempt().status is AttemptStatus.SUBMITTED
    why = NotPlaced(run_id=play.run_id, attempt_id=play.attempt().id, pending_reason="full")
    assert play.send(why).attempt().reason is Reason.UNSCHEDULABLE


def test_max_duration_counts_the_time_in_which_any_job_is_running() -> None:
    play = Play(jobs=2, max_duration=100.0).to_running(0).wait(30)
    play.to_running(1).wait(10)
    play.send(play.exited(0)).wait(10)
    play.send(play.exited(1)).wait(1000)
    assert {play.attempt(0).reason, play.attempt(1).reason} == {Reason.DONE_BY_RUNNER}

    alone = Play(max_duration=100.0).wait(500).to_running()
    assert alone.wake_at == alone.now + 100
    alone.wait(100)
    assert alone.attempt().reason is Reason.MAX_DURATION_EXCEEDED
    assert alone.run.reason == "job_failed"
