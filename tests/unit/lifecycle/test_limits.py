"""docs/rules.md 1: the times after which something ends, and when they stand still."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from controller.lifecycle.draft import DecisionContext
from controller.lifecycle.pending_reasons import NoNodeConnected
from controller.lifecycle.reports import (
    EngineGone,
    LogsComplete,
    NodeDisconnected,
    NotPlaced,
    RunnerSilent,
    TaskRemoved,
    TaskSeen,
)
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AllocationState, AttemptStatus, RunStatus
from tests.unit.lifecycle.asking import Ask
from tests.unit.lifecycle.play import NO_RETRY, START, Play


def pulling(play: Play, *, progress: int, version: int = 0) -> TaskSeen:
    return play.seen(started=False, progress=progress, version=version)


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


def test_a_pull_that_makes_no_progress_for_twenty_minutes_is_the_nodes_fault() -> None:
    play = Play().to_pulling()
    assert play.wake_at == START + 1200
    assert play.wait(1199).attempt().status is AttemptStatus.PULLING
    play.wait(1)
    assert play.attempt().reason is Reason.WAITING_INSTANCE_LIMIT_EXCEEDED
    assert play.attempt().message == "the node made no progress with pulling the image for 1200 s"


def test_a_pull_that_goes_on_may_take_a_day() -> None:
    play = Play().to_pulling()
    for minute in range(24 * 60):
        play.wait(60).send(pulling(play, progress=minute % 7 + 1))
    assert play.attempt().status is AttemptStatus.PULLING
    assert play.wake_at == play.now + 1200


def test_the_progress_of_a_pull_is_committed_in_steps() -> None:
    play = Play().to_pulling()
    before = play.send(pulling(play, progress=0)).state
    assert play.wait(59).send(pulling(play, progress=1)).state is before
    assert play.wait(1).send(pulling(play, progress=2)).attempt().pull.progressed_at == play.now
    noted = play.state
    assert play.wait(100).send(pulling(play, progress=2)).state is noted
    assert play.wake_at == play.now + 1100


def test_the_newest_of_several_reports_of_one_turn_tells_how_far_a_pull_is() -> None:
    def progress(*order: int) -> int:
        play = Play().to_pulling().wait(60)
        told = [pulling(play, progress=10 * number, version=number) for number in (1, 2)]
        return play.send(*(told[at] for at in order)).attempt().pull.progress

    assert progress(0, 1) == progress(1, 0) == 10


def test_a_container_that_is_not_created_within_twenty_minutes_is_the_nodes_fault() -> None:
    play = Play().to_pulling().wait(10)
    play.send(play.seen(started=False, creating=True))
    assert play.wait(1199).attempt().status is AttemptStatus.PULLING
    play.wait(1)
    assert play.attempt().reason is Reason.WAITING_INSTANCE_LIMIT_EXCEEDED
    assert "creating the container" in (play.attempt().message or "")


def test_a_node_that_asks_for_credentials_in_vain_is_given_up_and_the_message_says_so() -> None:
    play = Play().to_pulling()
    play.send(play.seen(started=False, needs_credentials=True, version=3)).wait(1200)
    assert play.attempt().reason is Reason.WAITING_INSTANCE_LIMIT_EXCEEDED
    assert play.attempt().message == "the node waited for the registry's credentials for 1200 s"


def test_the_limit_of_a_pull_stands_still_while_the_node_is_away_or_the_run_is_suspended() -> None:
    play = Play().to_provisioning()
    play.send(play.link(down=True)).wait(50).send(play.link(down=False), play.accepted())
    play.wait(100).send(play.link(down=True)).wait(5000).send(play.link(down=False))
    assert play.wake_at == play.now + 1100
    play.wait(100).send(Ask(play).suspend()).wait(5000).send(Ask(play).resume())
    assert play.wake_at == play.now + 1000
    play.send(pulling(play, progress=1))
    assert play.wake_at == play.now + 1200


def test_a_controllers_restart_begins_the_limit_of_a_pull_anew() -> None:
    play = Play().to_pulling().wait(100)
    play.send(pulling(play, progress=1)).wait(1000)
    play.send(
        NodeDisconnected(run_id=play.run_id, node_id="n1", disconnected=True, limits_anew=True)
    )
    play.send(play.link(down=False))
    assert play.wake_at == play.now + 1200


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


def without_engine(play: Play) -> Play:
    """The engine of n1 stops answering."""
    n1 = frozenset({"n1"})
    play.around = DecisionContext(unusable_nodes=n1, silent_engines=n1)
    return play.send()


def engine_gone(play: Play) -> EngineGone:
    return EngineGone(run_id=play.run_id, node_id="n1", message="no engine")


def test_a_silent_runner_on_a_node_without_an_engine_is_the_nodes_fault() -> None:
    play = without_engine(Play().to_running())
    play.send(RunnerSilent(run_id=play.run_id, attempt_id=play.attempt().id))
    assert play.attempt().reason is Reason.INSTANCE_UNREACHABLE
    assert (play.attempt().status, play.run.reason) == (AttemptStatus.TERMINATING, None)

    play.send(engine_gone(play))
    lost = play.attempt(number=0)
    assert (lost.status, lost.cleanup_unknown) == (AttemptStatus.FAILED, True)
    assert play.attempt(number=1).status is AttemptStatus.SUBMITTED
    assert [one.state for one in play.state.allocations] == [AllocationState.ORPHANED]

    ended = replace(play.seen(terminated=True), attempt_id=lost.id)
    done = TaskRemoved(run_id=play.run_id, attempt_id=lost.id)
    play.send(ended).send(LogsComplete(run_id=play.run_id, attempt_id=lost.id)).send(done)
    assert play.attempt(number=0).cleanup_unknown is False
    assert [one.state for one in play.state.allocations] == [AllocationState.RELEASED]


def test_a_runner_that_does_not_start_on_a_node_without_an_engine_is_the_nodes_fault() -> None:
    play = without_engine(Play().to_container()).wait(300)
    assert play.attempt().reason is Reason.INSTANCE_UNREACHABLE
    assert "the node's engine does not answer" in (play.attempt().message or "")
    play.send(engine_gone(play))
    assert play.attempt(number=0).status is AttemptStatus.FAILED


@pytest.mark.parametrize("stage", [Play.to_provisioning, Play.to_pulling])
def test_what_an_absent_engine_cannot_start_goes_elsewhere(stage: Callable[[Play], Play]) -> None:
    play = without_engine(stage(Play()))
    play.send(engine_gone(play))
    lost = play.attempt(number=0)
    assert (lost.status, lost.reason) == (AttemptStatus.FAILED, Reason.INSTANCE_UNREACHABLE)
    assert play.attempt(number=1).status is AttemptStatus.SUBMITTED


def test_a_job_that_answers_goes_on_without_its_engine_and_ends_with_its_grace() -> None:
    play = without_engine(Play(stop_duration=60.0).to_running())
    play.send(engine_gone(play)).send(play.stop()).wait(59).send(engine_gone(play))
    assert play.attempt().status is AttemptStatus.TERMINATING
    play.wait(1).send(engine_gone(play))
    assert (play.attempt().status, play.run.status) == (
        AttemptStatus.TERMINATED,
        RunStatus.TERMINATED,
    )


def test_scheduling_timeout_ends_an_attempt_that_found_no_place() -> None:
    play = Play(scheduling_timeout=60.0)
    why = NotPlaced(
        run_id=play.run_id, attempt_id=play.attempt().id, pending_reason=NoNodeConnected()
    )
    assert play.send(why).wake_at == START + 60
    play.wait(60)
    assert play.attempt().reason is Reason.UNSCHEDULABLE
    assert play.attempt().message == "no allocation within 60 s: no node is connected"
    assert play.run.status is RunStatus.FAILED


def test_a_scheduling_timeout_of_0_still_gives_the_scheduler_its_one_chance() -> None:
    play = Play(scheduling_timeout=0.0)
    assert play.attempt().status is AttemptStatus.SUBMITTED
    why = NotPlaced(
        run_id=play.run_id, attempt_id=play.attempt().id, pending_reason=NoNodeConnected()
    )
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


def test_max_duration_counts_while_the_run_is_suspended_and_ends_its_jobs_once_it_is_resumed() -> (
    None
):
    """docs/rules.md 4.12: its jobs go on meanwhile."""
    play = Play(max_duration=100.0).to_running().wait(40)
    play.send(Ask(play).suspend()).wait(1000)
    assert play.attempt().status is AttemptStatus.RUNNING
    play.send(Ask(play).resume())
    assert play.attempt().reason is Reason.MAX_DURATION_EXCEEDED

    early = Play(max_duration=100.0).to_running().wait(40)
    early.send(Ask(early).suspend()).wait(30).send(Ask(early).resume())
    assert early.attempt().status is AttemptStatus.RUNNING
    assert early.wake_at == early.now + 30


def test_at_max_duration_every_job_gets_its_whole_stop_duration() -> None:
    play = Play(jobs=2, max_duration=100.0, stop_duration=60.0).to_running(0).to_running(1)
    play.wait(100)
    assert [play.attempt(n).remove_at for n in (0, 1)] == [play.now + 60] * 2
    play.send(play.exited(0))
    assert play.attempt(1).remove_at == play.now + 60
