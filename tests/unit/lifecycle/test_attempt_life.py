"""LIFECYCLE.md section 2: how an attempt lives, and how it ends only once."""

from __future__ import annotations

from itertools import permutations

import pytest
from msgspec.structs import replace

from controller.lifecycle.history import EventKind
from controller.lifecycle.model import RetryPolicy
from controller.lifecycle.reasons import Reason
from controller.lifecycle.reports import (
    NotPlaced,
    Report,
    RunnerSilent,
    TaskMissing,
    TaskRefused,
)
from controller.lifecycle.statuses import AllocationState, AttemptStatus, RunStatus
from controller.lifecycle.turn import decide
from tests.unit.lifecycle.play import START, Play

NO_RETRY = RetryPolicy(on_events=frozenset())


def test_a_job_that_succeeds_goes_through_every_status_once() -> None:
    play = Play().live_and_end()
    told = [e.to_status for e in play.events if e.kind is EventKind.ATTEMPT]
    assert told == ["submitted", "provisioning", "pulling", "running", "terminating", "done"]
    told = [e.to_status for e in play.events if e.kind is EventKind.RUN]
    assert told == ["submitted", "provisioning", "running", "terminating", "done"]
    told = [e.to_status for e in play.events if e.kind is EventKind.ALLOCATION]
    assert told == ["held", "released"]


def test_every_event_names_its_cause() -> None:
    play = Play().live_and_end()
    causes = [e.cause for e in play.events if e.kind is EventKind.ATTEMPT]
    assert causes == [
        "submitted",
        "Placed",
        "TaskAccepted",
        "RunnerStarted",
        "RunnerExited",
        "cleanup confirmed",
    ]


def test_a_waiting_job_carries_the_scheduler_s_sentence_until_it_is_placed() -> None:
    play = Play()
    sentence = NotPlaced(
        run_id=play.run_id, attempt_id=play.attempt().id, pending_reason="no node is connected"
    )
    assert play.send(sentence).attempt().pending_reason == "no node is connected"
    assert play.to_provisioning().attempt().pending_reason is None


def test_a_second_placement_of_the_same_attempt_takes_nothing() -> None:
    play = Play().to_provisioning(node="n1")
    play.send(play.placed(node="n2"))
    assert play.attempt().node_id == "n1"
    assert len(play.state.allocations) == 1


def test_the_first_sight_of_the_task_stands_for_its_acceptance() -> None:
    play = Play().to_provisioning()
    play.send(play.seen(started=False))
    assert play.attempt().status is AttemptStatus.PULLING


def test_an_attempt_ends_when_its_reason_is_set_and_is_final_when_cleanup_is_confirmed() -> None:
    play = Play().to_running()
    play.send(play.exited())
    assert play.attempt().status is AttemptStatus.TERMINATING
    play.send(play.seen(terminated=True))
    play.send(play.logs_complete())
    assert play.attempt().status is AttemptStatus.TERMINATING
    assert play.allocation().state is AllocationState.HELD
    play.send(play.removed())
    assert play.attempt().status is AttemptStatus.DONE
    assert play.allocation().state is AllocationState.RELEASED


def test_an_attempt_that_was_never_placed_is_final_at_once() -> None:
    play = Play()
    play.send(play.stop())
    assert play.attempt().status is AttemptStatus.TERMINATED
    assert play.run.status is RunStatus.TERMINATED
    assert play.wake_at is None


# -- reasons --------------------------------------------------------------------------------


def test_the_first_reason_wins_and_a_later_one_is_recorded() -> None:
    play = Play().to_running()
    play.send(play.stop())
    play.send(play.exited(reason=Reason.CONTAINER_EXITED_WITH_ERROR, code=143))
    assert play.attempt().reason is Reason.TERMINATED_BY_USER
    assert play.attempt().later_reasons == (Reason.CONTAINER_EXITED_WITH_ERROR,)
    assert play.attempt().exit_code == 143
    assert play.clean().attempt().status is AttemptStatus.TERMINATED


def test_a_repeated_later_reason_is_recorded_once() -> None:
    play = Play().to_running()
    play.send(play.stop())
    late = play.exited(reason=Reason.CONTAINER_EXITED_WITH_ERROR)
    before = play.send(late).state
    assert play.send(late).state is before


def test_an_abort_after_a_stop_brings_the_removal_forward_and_keeps_the_reason() -> None:
    play = Play(stop_duration=300.0).to_running()
    play.send(play.stop())
    assert play.attempt().remove_at == START + 300
    play.wait(20).send(play.stop(abort=True))
    assert play.attempt().remove_at == START + 20
    assert play.attempt().reason is Reason.TERMINATED_BY_USER
    assert play.run.reason == "stopped_by_user"


def test_a_stop_after_an_abort_does_not_move_the_removal_back() -> None:
    play = Play().to_running()
    play.send(play.stop(abort=True)).wait(1).send(play.stop())
    assert play.attempt().remove_at == START


def test_a_running_job_gets_its_stop_duration() -> None:
    play = Play(stop_duration=42.0).to_running()
    play.send(play.stop())
    assert play.attempt().remove_at == START + 42
    assert play.wake_at == START + 42


def test_before_running_there_is_no_grace() -> None:
    play = Play().to_container()
    play.send(play.stop())
    assert play.attempt().remove_at == START


def test_jobs_that_the_server_ends_get_ten_seconds() -> None:
    play = Play(jobs=2, retry=NO_RETRY).to_running(0).to_running(1)
    play.send(play.exited(0, Reason.CONTAINER_EXITED_WITH_ERROR))
    assert play.attempt(1).reason is Reason.TERMINATED_BY_SERVER
    assert play.attempt(1).remove_at == START + 10


# -- claims ---------------------------------------------------------------------------------


def _claims(play: Play) -> dict[str, Report]:
    return {
        "runner exit 0": play.exited(),
        "out_of_memory": play.exited(reason=Reason.OUT_OF_MEMORY, code=137),
        "runner exit code": play.exited(reason=Reason.CONTAINER_EXITED_WITH_ERROR, code=7),
        "shim error": play.seen(terminated=True, reason=Reason.VOLUME_ERROR),
        "node loss": play.node_gone(),
    }


RANKING = ("runner exit 0", "out_of_memory", "runner exit code", "shim error", "node loss")
REASONS = (
    Reason.DONE_BY_RUNNER,
    Reason.OUT_OF_MEMORY,
    Reason.CONTAINER_EXITED_WITH_ERROR,
    Reason.VOLUME_ERROR,
    Reason.INSTANCE_UNREACHABLE,
)


@pytest.mark.parametrize("order", list(permutations(RANKING, 2)), ids=" after ".join)
def test_the_higher_claim_of_one_turn_wins_in_either_order(order: tuple[str, str]) -> None:
    play = Play(retry=NO_RETRY).to_running()
    claims = _claims(play)
    play.send(*(claims[name] for name in order))
    best = min(RANKING.index(name) for name in order)
    assert play.attempt().reason is REASONS[best]
    worst = max(RANKING.index(name) for name in order)
    assert play.attempt().later_reasons == (REASONS[worst],)


def test_the_shim_s_out_of_memory_wins_over_the_runner_s_exit_code() -> None:
    play = Play(retry=NO_RETRY).to_running()
    play.send(
        play.exited(reason=Reason.CONTAINER_EXITED_WITH_ERROR, code=137),
        play.seen(terminated=True, reason=Reason.OUT_OF_MEMORY),
    )
    assert play.attempt().reason is Reason.OUT_OF_MEMORY


def test_a_user_request_comes_after_the_reports_of_its_turn() -> None:
    play = Play().to_running()
    play.send(play.stop(), play.exited())
    assert play.attempt().reason is Reason.DONE_BY_RUNNER
    assert play.attempt().later_reasons == (Reason.TERMINATED_BY_USER,)


def test_a_container_that_ended_without_a_word_is_an_executor_error() -> None:
    play = Play(retry=NO_RETRY).to_running()
    play.send(play.seen(terminated=True))
    assert play.attempt().reason is Reason.EXECUTOR_ERROR
    assert play.attempt().message == "the container ended without an exit record"


def test_a_container_that_ended_with_a_code_and_no_record_exited_with_an_error() -> None:
    play = Play(retry=NO_RETRY).to_running()
    play.send(play.seen(terminated=True, exit_code=3))
    assert play.attempt().reason is Reason.CONTAINER_EXITED_WITH_ERROR
    assert play.attempt().exit_code == 3


def test_the_end_of_a_container_says_nothing_new_about_a_runner_that_reported() -> None:
    play = Play(retry=NO_RETRY).to_running()
    play.send(play.exited(code=0), play.seen(terminated=True, exit_code=137))
    assert play.attempt().reason is Reason.DONE_BY_RUNNER
    assert play.attempt().later_reasons == ()
    assert play.attempt().exit_code == 0


@pytest.mark.parametrize("runner_first", [True, False])
def test_a_container_s_code_is_not_taken_for_that_of_a_job_that_never_began(
    runner_first: bool,
) -> None:
    play = Play(retry=NO_RETRY).to_running()
    told = replace(play.exited(reason=Reason.EXECUTOR_ERROR), exit_code=None)
    ended = play.seen(terminated=True, exit_code=125)
    play.send(*((told, ended) if runner_first else (ended, told)))
    assert play.attempt().reason is Reason.EXECUTOR_ERROR
    assert play.attempt().exit_code is None


def test_a_job_cannot_forge_a_reason_that_would_spare_its_budget() -> None:
    play = Play(retry=NO_RETRY).to_running()
    play.send(play.exited(reason=Reason.PREEMPTED, code=1))
    assert play.attempt().reason is Reason.CONTAINER_EXITED_WITH_ERROR
    assert "preempted" in (play.attempt().message or "")


def test_done_with_a_code_other_than_0_is_an_error() -> None:
    play = Play(retry=NO_RETRY).to_running()
    play.send(play.exited(reason=Reason.DONE_BY_RUNNER, code=9))
    assert play.attempt().reason is Reason.CONTAINER_EXITED_WITH_ERROR


def test_a_refused_task_ends_with_the_shim_s_reason() -> None:
    play = Play(retry=NO_RETRY).to_provisioning()
    refused = TaskRefused(
        run_id=play.run_id,
        attempt_id=play.attempt().id,
        reason=Reason.CREATING_CONTAINER_ERROR,
        message="no such volume",
    )
    play.send(refused)
    assert play.attempt().reason is Reason.CREATING_CONTAINER_ERROR
    assert play.attempt().message == "no such volume"


def test_a_failed_pull_ends_the_attempt_without_grace() -> None:
    play = Play(retry=NO_RETRY).to_pulling()
    play.send(play.seen(started=False, terminated=True, reason=Reason.IMAGE_PULL_FAILED))
    assert play.attempt().reason is Reason.IMAGE_PULL_FAILED
    assert play.attempt().remove_at == START


# -- missing tasks --------------------------------------------------------------------------


def _missing(play: Play) -> TaskMissing:
    return TaskMissing(run_id=play.run_id, attempt_id=play.attempt().id)


def test_a_task_that_was_never_acknowledged_is_not_lost_but_sent_again() -> None:
    play = Play().to_provisioning()
    before = play.state
    assert play.send(_missing(play)).state is before


def test_a_task_accepted_in_the_turn_that_missed_it_is_not_lost() -> None:
    play = Play().to_provisioning()
    play.send(_missing(play), play.accepted())
    assert play.attempt().status is AttemptStatus.PULLING
    assert play.attempt().container_gone is False


@pytest.mark.parametrize("running", [False, True])
def test_an_acknowledged_task_that_is_missing_was_lost(running: bool) -> None:
    play = Play(retry=NO_RETRY)
    play = play.to_running() if running else play.to_pulling()
    play.send(_missing(play))
    assert play.attempt().reason is Reason.LOST_AFTER_REVIVAL
    assert play.attempt().status is AttemptStatus.FAILED
    assert play.allocation().state is AllocationState.HELD, "the shim may still hold its place"
    assert play.allocation().releasing
    assert play.release_places().allocation().state is AllocationState.RELEASED
    assert play.run.status is RunStatus.FAILED


def test_a_task_removed_behind_our_back_was_lost() -> None:
    play = Play(retry=NO_RETRY).to_provisioning()
    play.send(play.accepted(), play.removed())
    assert play.attempt().reason is Reason.LOST_AFTER_REVIVAL
    assert play.allocation().state is AllocationState.RELEASED


def test_a_removal_before_the_task_was_accepted_means_nothing() -> None:
    play = Play().to_provisioning()
    before = play.state
    assert play.send(play.removed()).state is before


def test_a_missing_task_of_a_terminating_attempt_confirms_its_cleanup() -> None:
    play = Play().to_running()
    play.send(play.stop()).send(_missing(play))
    assert play.attempt().reason is Reason.TERMINATED_BY_USER
    assert play.attempt().status is AttemptStatus.TERMINATED
    assert play.run.status is RunStatus.TERMINATING
    assert play.release_places().run.status is RunStatus.TERMINATED


# -- limits ---------------------------------------------------------------------------------


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


# -- nodes ----------------------------------------------------------------------------------


def test_a_running_job_on_a_disconnected_node_stays_running_and_is_marked() -> None:
    play = Play().to_running()
    play.send(play.link(down=True))
    assert play.attempt().status is AttemptStatus.RUNNING
    assert play.attempt().disconnected is True
    play.send(play.link(down=False))
    assert play.attempt().disconnected is False
    told = [event for event in play.events if event.kind is EventKind.CONNECTION]
    assert [(event.from_status, event.to_status, event.cause) for event in told] == [
        ("connected", "disconnected", "NodeDisconnected"),
        ("disconnected", "connected", "NodeConnected"),
    ]


def test_a_lost_node_makes_its_attempts_final_and_orphans_their_places() -> None:
    play = Play(retry=NO_RETRY).to_running()
    play.send(play.node_gone())
    assert play.attempt().status is AttemptStatus.FAILED
    assert play.attempt().cleanup_unknown is True
    assert play.allocation().state is AllocationState.ORPHANED
    assert play.run.status is RunStatus.FAILED


def test_a_lost_node_leaves_an_attempt_the_reason_it_had() -> None:
    play = Play().to_running()
    play.send(play.stop()).send(play.node_gone())
    assert play.attempt().reason is Reason.TERMINATED_BY_USER
    assert play.attempt().status is AttemptStatus.TERMINATED
    assert play.allocation().state is AllocationState.ORPHANED


def test_a_node_with_a_new_boot_id_frees_the_places_at_once() -> None:
    play = Play(retry=NO_RETRY).to_running()
    play.send(play.node_gone(confirmed=True))
    assert play.attempt().cleanup_unknown is False
    assert play.allocation().state is AllocationState.RELEASED


def test_an_orphaned_place_is_released_when_the_shim_confirms() -> None:
    play = Play().to_running()
    play.send(play.node_gone())
    lost = play.attempt(number=0)
    assert play.attempt().status is AttemptStatus.SUBMITTED
    play.send(TaskMissing(run_id=play.run_id, attempt_id=lost.id))
    assert play.attempt(number=0).cleanup_unknown is False
    assert play.allocation(number=0).state is AllocationState.RELEASED


def test_an_orphaned_place_is_released_when_the_node_shows_a_new_boot_id() -> None:
    play = Play().to_running()
    play.send(play.node_gone()).send(play.node_gone(confirmed=True))
    assert play.allocation(number=0).state is AllocationState.RELEASED


def test_a_node_that_is_gone_leaves_jobs_of_other_nodes_alone() -> None:
    play = Play(jobs=2).to_running(0, node="n1").to_running(1, node="n2")
    play.send(play.node_gone("n1"))
    assert play.attempt(1).status is AttemptStatus.RUNNING


def test_a_report_about_a_final_attempt_lands_as_a_fact_and_decides_nothing() -> None:
    play = Play(retry=NO_RETRY).to_running()
    play.send(play.node_gone())
    play.send(play.exited(reason=Reason.CONTAINER_EXITED_WITH_ERROR, code=5))
    assert play.attempt().exit_code == 5
    assert play.attempt().reason is Reason.INSTANCE_UNREACHABLE
    assert play.attempt().status is AttemptStatus.FAILED


# -- what callers rely on -------------------------------------------------------------------


def test_a_turn_that_changes_nothing_gives_back_the_same_object() -> None:
    play = Play().to_running()
    before = play.state
    assert play.send().state is before
    assert play.events[-1].kind is EventKind.RUN


def test_jobs_that_a_turn_does_not_touch_keep_their_identity() -> None:
    play = Play(jobs=3).to_running(0)
    before = play.state
    play.to_provisioning(1)
    assert play.state.jobs[0] is before.jobs[0]
    assert play.state.jobs[2] is before.jobs[2]
    assert play.state.allocations[0] is before.allocations[0]


def test_the_version_grows_by_one_with_each_turn_that_changed_the_run() -> None:
    play = Play()
    assert play.run.version == 1
    play.send()
    assert play.run.version == 1
    assert play.to_provisioning().run.version == 2


def test_a_state_is_not_touched_by_the_decision_about_it() -> None:
    play = Play().to_running()
    before = play.state
    decision = decide(before, [play.exited()], play.now, play.new_id)
    assert before.jobs[0].attempts[0].status is AttemptStatus.RUNNING
    assert decision.state.jobs[0].attempts[0].status is AttemptStatus.TERMINATING


# -- broken GPUs ----------------------------------------------------------------------------


def test_a_gpu_that_its_shim_calls_faulty_ends_the_job_as_gpu_unhealthy() -> None:
    play = Play(stop_duration=30.0).to_running()
    play.send(play.seen(gpu_fault="XID 79: fallen off the bus"))
    assert play.attempt().reason is Reason.GPU_UNHEALTHY
    assert play.attempt().message == "XID 79: fallen off the bus"
    assert play.attempt().remove_at == START + 30


def test_a_faulty_gpu_outranks_the_error_that_the_job_ends_with() -> None:
    play = Play().to_running()
    exited = play.exited(reason=Reason.CONTAINER_EXITED_WITH_ERROR)
    play.send(exited, play.seen(terminated=True, exit_code=1, gpu_fault="XID 79"))
    assert play.attempt().reason is Reason.GPU_UNHEALTHY
    assert play.attempt().later_reasons == (Reason.CONTAINER_EXITED_WITH_ERROR,)


def test_a_job_that_finished_beside_a_faulty_gpu_is_done() -> None:
    play = Play().to_running()
    play.send(play.seen(gpu_fault="XID 79"), play.exited())
    assert play.attempt().reason is Reason.DONE_BY_RUNNER


def test_an_exit_record_cannot_claim_a_faulty_gpu() -> None:
    play = Play().to_running()
    play.send(play.exited(reason=Reason.GPU_UNHEALTHY))
    assert play.attempt().reason is Reason.CONTAINER_EXITED_WITH_ERROR


def test_a_limit_that_passed_while_the_link_went_down_ends_the_attempt_when_it_is_up() -> None:
    play = Play().to_provisioning()
    play.now += 121
    play.send(play.link(down=True)).wait(1).send(play.link(down=False))
    assert play.attempt().reason is Reason.WAITING_INSTANCE_LIMIT_EXCEEDED
