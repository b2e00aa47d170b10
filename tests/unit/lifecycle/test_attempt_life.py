"""docs/rules.md 2: how an attempt lives, and how it ends only once."""

from __future__ import annotations

import pytest

from controller.lifecycle.attempts import termination
from controller.lifecycle.decide import decide
from controller.lifecycle.draft import Draft
from controller.lifecycle.effects import EffectKind
from controller.lifecycle.events import EventKind
from controller.lifecycle.pending_reasons import NoNodeConnected
from controller.lifecycle.reports import (
    NodeDisconnected,
    NotPlaced,
    TaskMissing,
)
from fairlead.model.reasons import ROWS, GraceClass, Reason
from fairlead.model.statuses import AllocationState, AttemptStatus, RunStatus
from tests.unit.lifecycle.asking import Ask
from tests.unit.lifecycle.play import NO_RETRY, START, Play


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
        run_id=play.run_id, attempt_id=play.attempt().id, pending_reason=NoNodeConnected()
    )
    assert play.send(sentence).attempt().pending_reason == NoNodeConnected()
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


# -- reasons -----------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "reason", [reason for reason, row in ROWS.items() if row.grace is GraceClass.STOP_DURATION]
)
def test_a_run_that_ends_with_its_job_leaves_that_job_its_whole_grace(reason: Reason) -> None:
    play = Play(stop_duration=42.0, retry=NO_RETRY).to_running()
    draft = Draft(play.state, play.now, play.new_id, lambda: 0.0, play.around)
    termination.end(draft, play.attempt(), reason, "the stage")
    play.state = draft.result()
    play.send()
    assert (play.attempt().reason, play.attempt().remove_at) == (reason, START + 42)


def test_complete_shortens_the_grace_of_a_job_that_is_ending() -> None:
    play = Play(jobs=2, stop_duration=42.0).to_running(0).to_running(1)
    play.send(Ask(play).abandon(0)).wait(1).send(Ask(play).complete())
    assert play.attempt(0).remove_at == play.now + 10


def test_a_job_that_ends_while_its_node_is_silent_has_its_whole_grace_afterwards() -> None:
    play = Play(stop_duration=42.0).to_running()
    play.send(play.link(down=True)).wait(100).send(play.stop()).wait(60)
    play.send(play.link(down=False))
    assert play.attempt().remove_at == play.now + 42
    assert EffectKind.STOP_JOB in play.wanted()


def test_a_job_that_was_asked_to_stop_before_its_node_fell_silent_has_no_more_time() -> None:
    play = Play(stop_duration=42.0).to_running()
    play.send(play.stop()).wait(1).send(play.link(down=True)).wait(10)
    play.send(play.link(down=False))
    assert play.attempt().remove_at == START + 42


def test_a_clock_that_is_put_back_takes_no_grace_from_a_job_on_a_silent_node() -> None:
    play = Play(stop_duration=42.0).to_running()
    play.send(play.link(down=True)).wait(-100).send(play.stop()).wait(60)
    play.send(play.link(down=False))
    assert play.attempt().remove_at == play.now + 42


def test_a_clock_that_is_put_back_gives_no_more_time_to_a_job_that_was_asked_to_stop() -> None:
    play = Play(stop_duration=42.0).to_running()
    play.send(play.stop()).wait(-100).send(play.link(down=True)).wait(10)
    play.send(play.link(down=False))
    assert play.attempt().remove_at == START + 42


def test_a_job_that_ends_while_its_run_is_suspended_has_its_grace_once() -> None:
    play = Play(stop_duration=42.0).to_running()
    play.send(Ask(play).suspend()).wait(5).send(Ask(play).abandon(0))
    ended_at = play.now
    play.wait(10).send(play.link(down=True)).wait(10).send(play.link(down=False))
    assert play.attempt().remove_at == ended_at + 42


@pytest.mark.parametrize("clock", [0.0, -3600.0])
def test_a_job_that_may_not_have_been_asked_before_a_restart_has_its_whole_grace(
    clock: float,
) -> None:
    play = Play(stop_duration=42.0).to_running()
    play.send(play.stop()).wait(100)
    anew = NodeDisconnected(run_id=play.run_id, node_id="n1", disconnected=True, limits_anew=True)
    for seconds in (clock, 10, -clock):
        play.send(anew).wait(seconds).send(play.link(down=False))
        assert play.attempt().remove_at == play.now + 42
    play.send(play.link(down=True)).wait(10).send(play.link(down=False))
    assert play.attempt().remove_at == play.now + 32


def test_an_abort_on_a_silent_node_gives_no_grace_afterwards() -> None:
    play = Play(stop_duration=42.0).to_running()
    play.send(play.link(down=True)).send(play.stop(abort=True)).wait(60)
    play.send(play.link(down=False))
    assert play.wanted() == (EffectKind.COLLECT_LOGS, EffectKind.TERMINATE_TASK)


# -- nodes -------------------------------------------------------------------------------------


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


# -- what callers rely on ----------------------------------------------------------------------


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


# -- broken GPUs -------------------------------------------------------------------------------


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
