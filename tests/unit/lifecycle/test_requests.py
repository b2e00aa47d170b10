"""Users' requests to a run: docs/rules.md 2, 3 and 4."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.lifecycle.attempts.limits import interruption_ends_at
from controller.lifecycle.effects import EffectKind
from controller.lifecycle.events import EventKind
from controller.lifecycle.model import JobSpec, OnParentEnd, RetryEvent, RetryPolicy
from controller.lifecycle.pending_reasons import NoNodeConnected, RunSuspended, VictimsLeave
from controller.lifecycle.reports import (
    NodeDisconnected,
    Nominated,
    NotPlaced,
    ParentEnded,
    ServerFault,
)
from controller.lifecycle.runs.first_state import PlannedJob
from fairlead.model.reasons import Reason, RunReason
from fairlead.model.statuses import AllocationState, AttemptStatus, RunStatus
from tests.support.attempts import attempt_with
from tests.unit.lifecycle.asking import Ask
from tests.unit.lifecycle.gangs.stage import GangPlay, gang
from tests.unit.lifecycle.play import Play

FAILED = Reason.CONTAINER_EXITED_WITH_ERROR
ON_ERROR = RetryPolicy(on_events=frozenset({RetryEvent.ERROR, RetryEvent.INTERRUPTION}))
RESTART = 75


def controller_restarted(play: Play) -> NodeDisconnected:
    return NodeDisconnected(run_id=play.run_id, node_id="n1", disconnected=True, limits_anew=True)


def _interruptible() -> tuple[Play, Ask]:
    spec = JobSpec(image="busybox", restart_exit_code=RESTART)
    play = Play(plan=[PlannedJob(spec=spec)], stop_duration=60.0).to_running()
    return play, Ask(play)


# -- complete -------------------------------------------------------------------------------


def test_complete_ends_the_run_as_done_and_its_jobs_within_ten_seconds() -> None:
    play = Play(jobs=2).to_running(0)
    play.send(Ask(play).complete())
    assert play.run.reason is RunReason.COMPLETED_BY_USER
    assert [play.attempt(n).reason for n in (0, 1)] == [Reason.TERMINATED_BY_SERVER] * 2
    assert play.attempt(0).remove_at == play.now + 10
    assert play.clean(0).run.status is RunStatus.DONE


def test_complete_comes_too_late_for_a_run_that_is_ending() -> None:
    play = Play().to_running()
    play.send(play.stop()).send(Ask(play).complete()).clean()
    assert play.run.reason is RunReason.STOPPED_BY_USER


# -- suspend and resume ---------------------------------------------------------------------


def test_a_suspended_run_gets_no_place() -> None:
    play = Play()
    play.send(Ask(play).suspend())
    play.send(play.placed())
    assert play.attempt().status is AttemptStatus.SUBMITTED
    assert play.attempt().pending_reason == RunSuspended()


def test_running_jobs_of_a_suspended_run_go_on() -> None:
    play = Play(jobs=2).to_running(0)
    play.send(Ask(play).suspend())
    assert play.attempt(0).status is AttemptStatus.RUNNING
    assert play.run.status is RunStatus.RUNNING
    play.send(play.exited(0)).clean(0)
    assert play.attempt(0).status is AttemptStatus.DONE


def test_suspend_with_abort_running_stops_what_holds_a_place_within_ten_seconds() -> None:
    play = Play(jobs=3).to_running(0).to_pulling(1)
    play.send(Ask(play).suspend(abort_running=True))
    assert [play.attempt(n).reason for n in range(3)] == [Reason.SUSPENDED, Reason.SUSPENDED, None]
    assert play.attempt(0).remove_at == play.now + 10
    assert play.attempt(1).remove_at == play.now


def test_a_suspended_run_with_nothing_live_is_pending_and_resume_brings_its_job_back() -> None:
    play = Play().to_running()
    play.send(Ask(play).suspend(abort_running=True)).clean()
    suspended = play.run.status
    assert len(play.job().attempts) == 1
    play.send(Ask(play).resume())
    assert play.attempt().status is AttemptStatus.SUBMITTED
    assert (suspended, play.run.status) == (RunStatus.PENDING, RunStatus.SUBMITTED)


def test_lost_jobs_of_a_suspended_run_wait_for_resume() -> None:
    play = Play().to_running()
    play.send(Ask(play).suspend()).send(play.node_gone(confirmed=True)).wait(1000)
    assert len(play.job().attempts) == 1
    play.send(Ask(play).resume())
    assert len(play.job().attempts) == 2


def test_a_wait_that_was_going_starts_anew_on_resume() -> None:
    play = Play(retry=ON_ERROR)
    for _ in range(2):
        play.live_and_end(reason=FAILED)
    assert play.job().retry_at == play.now + 15
    play.send(Ask(play).suspend()).wait(100).send(Ask(play).resume())
    assert play.job().retry_at == play.now + 15


def test_limits_stand_still_while_the_run_is_suspended() -> None:
    play = Play(scheduling_timeout=100.0)
    play.send(
        NotPlaced(
            run_id=play.run_id, attempt_id=play.attempt().id, pending_reason=NoNodeConnected()
        )
    )
    play.wait(60).send(Ask(play).suspend())
    wake_ups = [play.wake_at]
    play.wait(1000).send(Ask(play).resume())
    play.send(
        NotPlaced(
            run_id=play.run_id, attempt_id=play.attempt().id, pending_reason=NoNodeConnected()
        )
    )
    wake_ups.append(play.wake_at)
    assert wake_ups == [None, play.now + 40]
    assert play.wait(40).attempt().reason is Reason.UNSCHEDULABLE


def test_no_max_duration_ends_a_suspended_run() -> None:
    play = Play(max_duration=100.0).to_running()
    play.send(Ask(play).suspend()).wait(200)
    suspended = play.attempt()
    play.send(Ask(play).resume())
    assert (suspended.reason, play.attempt().reason) == (None, Reason.MAX_DURATION_EXCEEDED)


def test_a_job_that_fails_for_good_ends_even_a_suspended_run() -> None:
    play = Play(jobs=2).to_running()
    play.send(Ask(play).suspend()).send(play.exited(0, FAILED))
    assert play.run.reason is RunReason.JOB_FAILED


# -- scale ----------------------------------------------------------------------------------


def test_scaling_down_takes_the_last_slots_and_they_do_not_count() -> None:
    play = Play(jobs=3)
    for n in range(3):
        play.to_running(n)
    play.send(Ask(play).scale(1))
    assert [play.attempt(n).reason for n in range(3)] == [None, *[Reason.SCALED_DOWN] * 2]
    assert play.attempt(1).remove_at == play.now + 10
    play.clean(1).clean(2).send(play.exited(0)).clean(0)
    assert play.run.status is RunStatus.DONE


def test_scaling_up_brings_slots_back_before_it_makes_new_ones() -> None:
    play = Play(jobs=2).to_running(0).to_running(1)
    play.send(Ask(play).scale(1)).clean(1)
    play.send(Ask(play).scale(3))
    assert [job.cookie for job in play.state.jobs] == [0, 1, 2]
    assert [job.index for job in play.state.jobs] == [0, 1, 2]
    assert [job.replica for job in play.state.jobs] == [0, 1, 2]
    assert [len(job.attempts) for job in play.state.jobs] == [1, 2, 1]
    assert play.job(2).spec == play.job(0).spec
    assert play.attempt(1).status is play.attempt(2).status is AttemptStatus.SUBMITTED


def test_a_slot_that_is_added_to_a_suspended_run_says_what_it_waits_for() -> None:
    play = Play().to_running()
    play.send(Ask(play).suspend()).send(Ask(play).scale(2))
    assert play.attempt(1).pending_reason == RunSuspended()
    assert play.send(Ask(play).resume()).attempt(1).pending_reason is None


def test_a_slot_that_is_still_stopping_comes_back_when_it_is_clean() -> None:
    play = Play(jobs=2).to_running(0).to_running(1)
    play.send(Ask(play).scale(1)).send(Ask(play).scale(2))
    assert len(play.job(1).attempts) == 1
    assert len(play.clean(1).job(1).attempts) == 2


def test_a_slot_that_waits_for_its_next_attempt_gets_none_once_it_is_scaled_away() -> None:
    play = Play(jobs=2, retry=ON_ERROR).to_running(0)
    for _ in range(2):
        play.to_running(1).send(play.exited(1, FAILED)).clean(1)
    assert play.job(1).retry_at is not None
    play.send(Ask(play).scale(1)).wait(60)
    assert play.job(1).retry_at is None
    assert len(play.job(1).attempts) == 2


def test_a_slot_that_fails_while_it_is_scaled_away_comes_back_with_its_slot_only() -> None:
    play = Play(jobs=2, retry=ON_ERROR).to_running(0).to_running(1)
    play.send(play.exited(1, FAILED)).send(Ask(play).scale(1)).clean(1)
    assert play.attempt(1).reason is FAILED
    assert len(play.job(1).attempts) == 1
    assert len(play.send(Ask(play).scale(2)).job(1).attempts) == 2


def test_a_completed_job_is_not_restarted_in_a_slot_that_was_scaled_away() -> None:
    play = Play(jobs=2, restart_completed_jobs=True).to_running(0).to_running(1)
    play.send(play.exited(1)).send(Ask(play).scale(1)).clean(1)
    assert len(play.job(1).attempts) == 1


def test_an_abandoned_slot_that_is_scaled_back_gets_no_attempt() -> None:
    play = Play(jobs=2, schedule=("0 * * * *",))
    play.send(Ask(play).scale(1))
    play.change_run(next_triggered_at=play.now).send()
    play.send(Ask(play).abandon(1)).send(Ask(play).scale(2))
    assert play.job(1).attempts == ()


def test_a_slot_that_is_scaled_away_and_back_is_no_restart_of_a_job() -> None:
    play = Play(jobs=2, fail_on_job_restart=True).to_running(0).to_running(1)
    play.send(Ask(play).scale(1)).send(Ask(play).scale(2)).clean(1)
    assert (play.run.reason, len(play.job(1).attempts)) == (None, 2)
    play.to_running(1).send(Ask(play).abort(1))
    assert play.run.reason is RunReason.JOB_FAILED


def test_the_larger_of_two_requests_to_scale_in_one_turn_holds() -> None:
    play = Play(jobs=2).to_running(0).to_running(1)
    play.send(Ask(play).scale(3), Ask(play).scale(1))
    assert [job.scaled_down for job in play.state.jobs] == [False] * 3
    assert [play.attempt(n).reason for n in (0, 1)] == [None, None]


# -- one job --------------------------------------------------------------------------------


def test_an_aborted_job_comes_back_uncharged_under_the_default_retry() -> None:
    play = Play(jobs=2, retry=RetryPolicy(max_preemptions=0)).to_running(0).to_running(1)
    play.send(Ask(play).abort())
    assert play.attempt().reason is Reason.JOB_ABORTED_BY_USER
    assert play.attempt().remove_at == play.now
    play.clean(0)
    assert play.attempt(0, 0).status is AttemptStatus.ABORTED
    assert play.attempt(0).status is AttemptStatus.SUBMITTED
    assert play.attempt(1).status is AttemptStatus.RUNNING


def test_rule_1_a_job_aborted_by_user_that_may_not_come_back_aborts_the_run() -> None:
    play = Play(jobs=2, retry=RetryPolicy(on_events=frozenset())).to_running(0)
    play.send(Ask(play).abort())
    assert play.run.reason is RunReason.ABORTED_BY_USER
    assert play.clean(0).run.status is RunStatus.TERMINATED


def test_a_job_aborted_by_user_fails_a_run_whose_jobs_must_not_restart() -> None:
    play = Play(fail_on_job_restart=True).to_running()
    play.send(Ask(play).abort())
    assert play.run.reason is RunReason.JOB_FAILED


def test_a_job_without_a_live_attempt_has_nothing_to_abort() -> None:
    play = Play(jobs=2).live_and_end(0)
    before = play.state
    assert play.send(Ask(play).abort()).state is before


def test_the_run_goes_on_without_an_abandoned_job() -> None:
    play = Play(jobs=2).to_running(0).to_running(1)
    play.send(Ask(play).abandon())
    assert play.attempt().reason is Reason.ABANDONED
    assert play.clean(0).run.status is RunStatus.RUNNING
    play.send(play.exited(1)).clean(1)
    assert play.run.status is RunStatus.DONE
    assert len(play.job().attempts) == 1


def test_an_abandoned_job_gets_no_attempt_after_its_wait() -> None:
    play = Play(jobs=2, retry=ON_ERROR).to_running(1)
    for _ in range(2):
        play.live_and_end(0, FAILED)
    play.send(Ask(play).abandon()).wait(1000)
    assert play.job().abandoned
    assert len(play.job().attempts) == 2


# -- interrupt ------------------------------------------------------------------------------


def test_a_running_job_is_asked_to_interrupt_itself_once() -> None:
    play, ask = _interruptible()
    play.send(ask.interrupt())
    asked = play.state
    assert EffectKind.INTERRUPT_JOB in play.wanted()
    assert play.attempt().reason is None
    assert interruption_ends_at(play.run, play.attempt(), play.now) == play.now + 60
    assert play.wait(1).send(ask.interrupt()).state is asked


def test_a_job_that_does_not_run_yet_cannot_be_interrupted() -> None:
    play = Play().to_container()
    before = play.state
    assert play.send(Ask(play).interrupt()).state is before


@pytest.mark.parametrize(
    ("says", "code", "expected"),
    [
        (FAILED, RESTART, Reason.INTERRUPTED),
        (Reason.INTERRUPTED, RESTART, Reason.INTERRUPTED),
        (Reason.INTERRUPTED, None, Reason.INTERRUPTED),
        (Reason.DONE_BY_RUNNER, 0, Reason.DONE_BY_RUNNER),
        (FAILED, 1, FAILED),
        (Reason.OUT_OF_MEMORY, 137, Reason.OUT_OF_MEMORY),
    ],
)
def test_how_an_interrupted_job_ends_is_its_own_to_say(
    says: Reason, code: int | None, expected: Reason
) -> None:
    play, ask = _interruptible()
    play.send(ask.interrupt()).send(play.exited(0, says, code))
    assert play.attempt().reason is expected


@pytest.mark.parametrize("says", [FAILED, Reason.INTERRUPTED])
def test_a_job_that_was_not_asked_cannot_claim_an_interruption(says: Reason) -> None:
    play, ask = _interruptible()
    play.send(play.exited(0, says, RESTART), ask.interrupt())
    assert play.attempt().reason is FAILED


def test_an_interrupted_job_comes_back_uncharged_under_the_default_retry() -> None:
    play, ask = _interruptible()
    play.send(ask.interrupt()).send(play.exited(0, FAILED, RESTART)).clean()
    assert play.attempt(number=0).status is AttemptStatus.ABORTED
    assert play.attempt().status is AttemptStatus.SUBMITTED


def test_a_job_that_does_not_end_within_stop_duration_is_stopped_as_interrupted() -> None:
    play, ask = _interruptible()
    play.send(ask.interrupt()).wait(69)
    assert play.attempt().reason is None
    play.wait(1)
    assert play.attempt().reason is Reason.INTERRUPTED
    assert play.attempt().remove_at == play.now


def test_the_time_of_an_interruption_stands_still_while_the_node_is_away() -> None:
    play, ask = _interruptible()
    play.send(ask.interrupt()).send(play.link(down=True)).wait(500)
    assert play.attempt().reason is None
    play.send(play.link(down=False))
    assert play.wake_at == play.now + 70


def test_a_controllers_restart_does_not_move_the_end_of_an_interruption() -> None:
    play, ask = _interruptible()
    play.wait(36_000).send(ask.interrupt())
    for seconds in (0, 20):
        play.send(controller_restarted(play)).wait(seconds).send(play.link(down=False))
    assert interruption_ends_at(play.run, play.attempt(), play.now) == play.now + 40
    assert play.wake_at == play.now + 50


def test_after_a_controllers_restart_an_interrupted_job_may_still_tell_how_it_ended() -> None:
    play, ask = _interruptible()
    play.send(ask.interrupt())
    play.now += 500
    play.send(controller_restarted(play)).wait(5).send(play.link(down=False))
    assert play.attempt().reason is None
    assert play.wake_at == play.now + 10
    assert play.send(play.exited()).attempt().reason is Reason.DONE_BY_RUNNER


def test_a_node_that_was_silent_before_an_interruption_gives_the_job_no_longer_for_it() -> None:
    play, ask = _interruptible()
    play.send(play.link(down=True)).wait(500).send(play.link(down=False))
    assert play.send(ask.interrupt()).wake_at == play.now + 70


def test_a_job_that_is_interrupted_while_its_node_is_away_has_all_of_its_time_afterwards() -> None:
    play, ask = _interruptible()
    play.send(play.link(down=True)).wait(100).send(ask.interrupt()).wait(500)
    assert interruption_ends_at(play.run, play.attempt(), play.now) == play.now + 60
    assert play.send(play.link(down=False)).wake_at == play.now + 70
    assert interruption_ends_at(play.run, play.attempt(), play.now) == play.now + 60


def test_a_node_that_stays_silent_after_a_controllers_restart_makes_an_interruption_wait() -> None:
    play, ask = _interruptible()
    play.send(ask.interrupt()).wait(10).send(controller_restarted(play))
    play.wait(15).send(play.link(down=True)).wait(500).send(play.link(down=False))
    assert play.wake_at == play.now + 45


def test_the_time_of_an_interruption_stands_still_while_the_run_is_suspended() -> None:
    play, ask = _interruptible()
    play.send(ask.interrupt()).wait(20).send(ask.suspend()).wait(500).send(ask.resume())
    assert play.wake_at == play.now + 50


def test_an_interruption_of_an_earlier_version_ends_stop_duration_after_its_request() -> None:
    play, ask = _interruptible()
    play.send(ask.interrupt())
    old = attempt_with(play.attempt(), interrupt_ends_at=None, interrupt_told_by=None)
    assert interruption_ends_at(play.run, old, play.now) == play.now + 60
    play.change_job(0, attempts=(old,)).send()
    assert play.wake_at == play.now + 70


# -- parents --------------------------------------------------------------------------------


def _child(on_parent_end: OnParentEnd) -> Play:
    play = Play(on_parent_end=on_parent_end).change_run(parent_id="p1").to_running()
    return play.send(ParentEnded(run_id=play.run_id, parent_id="p1", message="it failed"))


def test_a_child_is_stopped_when_its_parent_ends_other_than_done() -> None:
    play = _child(OnParentEnd.TERMINATE)
    assert (play.run.reason, play.run.message) == (RunReason.STOPPED_BY_USER, "it failed")
    assert play.attempt().reason is Reason.TERMINATED_BY_USER


def test_a_child_that_is_to_be_kept_outlives_its_parent() -> None:
    assert _child(OnParentEnd.KEEP).run.status is RunStatus.RUNNING


def test_the_end_of_somebody_elses_parent_changes_nothing() -> None:
    play = Play().change_run(parent_id="p1").to_running()
    play.send(ParentEnded(run_id=play.run_id, parent_id="p2", message="it failed"))
    assert play.run.status is RunStatus.RUNNING


# -- the controller itself ------------------------------------------------------------------


def test_a_run_with_which_the_controller_cannot_go_on_fails_and_says_why() -> None:
    play = Play().to_running()
    play.send(ServerFault(run_id=play.run_id, message="it could not be stored"))
    assert (play.run.reason, play.run.message) == (RunReason.SERVER_ERROR, "it could not be stored")
    assert play.attempt().reason is Reason.TERMINATED_BY_SERVER


# -- the story ------------------------------------------------------------------------------


def test_requests_that_no_status_tells_are_told_in_the_history() -> None:
    play, ask = _interruptible()
    play.send(ask.interrupt()).send(ask.suspend()).send(ask.resume()).send(ask.abandon())
    told = [e for e in play.events if e.kind is EventKind.REQUEST]
    assert [e.to_status for e in told] == ["interrupted", "suspended", "resumed", "abandoned"]
    assert all("by ada" in (e.message or "") for e in told)


# -- gangs ----------------------------------------------------------------------------------


def test_a_suspended_gang_comes_back_as_a_new_incarnation_on_resume() -> None:
    play = GangPlay(gang(nodes=3, size=2)).run_all()
    play.send(Ask(play).suspend(abort_running=True))
    assert play.reasons() == [Reason.SUSPENDED] * 3
    play.clean_all()
    assert (play.run.status, play.number) == (RunStatus.PENDING, 1)
    play.send(Ask(play).resume())
    assert play.number == 2
    assert play.statuses() == [AttemptStatus.SUBMITTED] * 3


def test_a_suspended_gang_that_lost_a_rank_stops_its_survivors_and_waits() -> None:
    play = GangPlay(gang(nodes=2)).run_all()
    play.send(Ask(play).suspend()).send(play.node_gone("n0", confirmed=True))
    assert play.reasons() == [Reason.INSTANCE_UNREACHABLE, Reason.SUSPENDED]
    play.clean_all().wait(1000)
    assert play.number == 1
    play.send(Ask(play).resume())
    assert play.number == 2


def test_a_gang_is_not_scaled() -> None:
    play = GangPlay(gang(nodes=2)).run_all()
    before = play.state
    assert play.send(Ask(play).scale(3, group="train")).state is before


def test_an_aborted_rank_switches_its_gang() -> None:
    play = GangPlay(gang(nodes=2)).run_all()
    play.send(Ask(play).abort(1))
    assert play.reasons() == [Reason.INCARNATION_CHANGED, Reason.JOB_ABORTED_BY_USER]
    assert play.run.switches[-1].reason == "job_aborted"


def test_a_gang_is_done_without_its_abandoned_rank() -> None:
    play = GangPlay(gang(nodes=2)).run_all()
    play.send(Ask(play).abandon(1)).clean_all()
    assert play.number == 1
    play.send(play.exited(0)).clean_all().clean_all()
    assert play.run.status is RunStatus.DONE


def test_a_nomination_ends_when_its_run_is_suspended() -> None:
    play = Play()
    place = replace(play.placed().allocation, state=AllocationState.NOMINATED, victims=("v",))
    play.send(
        Nominated(
            run_id=play.run_id,
            attempt_id=play.attempt().id,
            allocation=place,
            pending_reason=VictimsLeave(count=1),
        )
    )
    play.send(Ask(play).suspend())
    assert play.attempt().allocation_id is None
    assert [a.state for a in play.state.allocations] == [AllocationState.RELEASED]
