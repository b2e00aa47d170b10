"""docs/rules.md 5: when a new incarnation starts, and what a switch does."""

from __future__ import annotations

import pytest

from controller.lifecycle.events import EventKind
from controller.lifecycle.gangs.incarnation import Phase
from controller.lifecycle.model import Group, RetryEvent, RetryPolicy, StopCriteria
from controller.lifecycle.pending_reasons import NoNodeConnected
from controller.lifecycle.reports import (
    NotPlaced,
    Preempted,
    ResumeRequested,
    SuspendRequested,
    TaskMissing,
)
from fairlead.model.reasons import ALLOCATION_LOST, ROWS, Reason, RunReason, SwitchReason
from fairlead.model.statuses import AllocationState, AttemptStatus, RunStatus
from tests.unit.lifecycle.gangs.stage import FAILED, RETRY, GangPlay, gang
from tests.unit.lifecycle.play import START

CHANGED = Reason.INCARNATION_CHANGED
SWITCHING = [reason for reason, row in ROWS.items() if row.gang_switch is not None]
NOT_SWITCHING = [
    Reason.LOG_QUOTA_EXCEEDED,
    Reason.MAX_DURATION_EXCEEDED,
    Reason.UNSCHEDULABLE,
]


@pytest.mark.parametrize("reason", SWITCHING)
def test_every_reason_whose_row_may_switch_starts_a_new_incarnation(reason: Reason) -> None:
    play = GangPlay().run_all().fail(1, reason)
    expected = ROWS[reason].gang_switch
    if reason is Reason.LOST_AFTER_REVIVAL:
        expected = SwitchReason.JOB_LACK_AFTER_REVIVAL
    assert play.number == 2
    assert play.phase() is Phase.STOPPING
    assert play.reasons() == [CHANGED, reason, CHANGED]
    (switch,) = play.run.switches
    assert switch.reason == expected
    assert switch.attempt_id == play.attempt(1).id
    assert switch.attempt_reason is reason


@pytest.mark.parametrize("reason", NOT_SWITCHING)
def test_a_reason_whose_row_does_not_switch_ends_the_run(reason: Reason) -> None:
    play = GangPlay().run_all().fail(1, reason)
    assert play.number == 1
    assert play.run.status is RunStatus.TERMINATING
    assert play.run.reason is ROWS[reason].run


def test_kept_with_each_switch_are_reason_attempt_error_and_time() -> None:
    play = GangPlay().run_all()
    play.wait(100).send(play.exited(1, FAILED, code=7))
    (switch,) = play.run.switches
    assert switch.at == START + 100
    assert switch.message == "the job ended with exit code 7"
    assert switch.incarnation == 2
    (event,) = [e for e in play.events if e.kind is EventKind.SWITCH]
    assert (event.from_status, event.to_status) == ("1", "2")
    assert event.reason == "job_failed"
    assert event.attempt_id == play.attempt(1).id
    assert event.message == switch.message


def test_several_ends_at_once_make_one_switch() -> None:
    play = GangPlay().run_all()
    play.send(play.exited(2, FAILED), play.exited(1, FAILED))
    assert play.number == 2
    assert len(play.run.switches) == 1
    assert play.run.switches[0].attempt_id == play.attempt(1).id


def test_a_second_end_in_the_old_incarnation_switches_nothing() -> None:
    play = GangPlay().run_all().fail(0)
    play.send(play.exited(1, FAILED))
    assert play.number == 2
    assert play.attempt(1).reason is CHANGED
    assert play.attempt(1).later_reasons == (FAILED,)


def test_a_ranked_failure_that_may_not_be_retried_wins_and_ends_the_run() -> None:
    play = GangPlay().run_all()
    quota = play.exited(2, Reason.LOG_QUOTA_EXCEEDED)
    play.send(play.exited(0, FAILED), quota)
    assert play.number == 1
    assert play.run.status is RunStatus.TERMINATING


def test_without_retry_a_failure_ends_the_run() -> None:
    play = GangPlay(retry=RetryPolicy()).run_all().fail(1)
    assert play.number == 1
    assert play.run.reason is RunReason.JOB_FAILED
    assert play.reasons() == [Reason.TERMINATED_BY_SERVER, FAILED, Reason.TERMINATED_BY_SERVER]


def test_a_terminating_run_does_not_switch() -> None:
    play = GangPlay().run_all()
    play.send(play.stop()).send(play.exited(1, FAILED))
    assert play.number == 1
    assert play.run.switches == ()


def test_a_done_master_ends_the_run_before_any_switch() -> None:
    play = GangPlay(stop_criteria=StopCriteria.MASTER_DONE).run_all()
    play.fail(0, Reason.DONE_BY_RUNNER)
    done = play.seen(0, terminated=True)
    play.send(done).send(play.logs_complete(0))
    play.send(play.removed(0), play.exited(1, FAILED))
    assert play.number == 1
    assert play.run.reason is RunReason.ALL_JOBS_DONE


def test_a_gang_switch_gives_a_grace_of_ten_seconds() -> None:
    play = GangPlay().run_all().fail(1)
    assert play.attempt(0).remove_at == START + 10


def test_a_switch_cuts_every_grace_still_running_to_ten_seconds() -> None:
    play = GangPlay(gang(4, 3), stop_duration=300.0).run_all()
    play.send(_preempted(play, 3))
    assert play.attempt(3).remove_at == START + 300
    play.fail(1)
    assert play.attempt(3).remove_at == START + 10
    assert play.attempt(3).reason is Reason.PREEMPTED


def test_a_switch_cuts_also_the_grace_of_what_has_exited_and_still_has_its_container() -> None:
    """Else followers of its log, or what it left behind, would hold up the gang."""
    play = GangPlay(gang(4, 3), stop_duration=300.0).run_all()
    play.send(play.exited(3, FAILED))
    assert play.attempt(3).remove_at == START + 300
    play.wait(20).send(play.exited(1, FAILED))
    assert [play.attempt(n).remove_at for n in range(4)] == [START + 30] * 4
    assert play.reasons() == [CHANGED, FAILED, CHANGED, FAILED]


def test_a_switch_leaves_alone_what_has_no_container_any_more() -> None:
    play = GangPlay(gang(4, 3)).run_all()
    play.send(play.exited(3, FAILED)).send(play.seen(3, terminated=True))
    before = play.attempt(3)
    play.wait(20).send(play.exited(1, FAILED))
    assert play.attempt(3) is before


def test_all_attempts_of_an_incarnation_are_final_before_the_next_one() -> None:
    play = GangPlay().run_all().fail(1)
    play.clean(1).clean(0)
    assert play.phase() is Phase.STOPPING
    assert [len(job.attempts) for job in play.state.jobs] == [1, 1, 1]
    play.clean(2)
    assert play.phase() is Phase.GATHERING
    assert [len(job.attempts) for job in play.state.jobs] == [2, 2, 2]
    assert {play.attempt(n).incarnation for n in range(3)} == {play.run.incarnation}


def test_all_jobs_start_again_finished_ones_included() -> None:
    play = GangPlay().run_all().fail(0, Reason.DONE_BY_RUNNER).clean_all()
    assert play.statuses() == [AttemptStatus.DONE, AttemptStatus.RUNNING, AttemptStatus.RUNNING]
    play.fail(1).clean_all()
    assert [len(job.attempts) for job in play.state.jobs] == [2, 2, 2]
    assert play.attempt(0, 0).status is AttemptStatus.DONE
    assert play.attempt(0).status is AttemptStatus.PROVISIONING
    assert play.places()[0] == play.attempt(0, 0).allocation_id


def test_a_run_waits_as_pending_between_two_incarnations() -> None:
    play = GangPlay()
    for _ in range(2):
        play.run_all().fail(1).clean_all()
    assert play.phase() is Phase.WAITING
    assert play.run.status is RunStatus.PENDING
    assert play.wake_at == play.now + 15
    held = [a for a in play.state.allocations if a.state is AllocationState.HELD]
    assert [a.job_id for a in held] == [play.job(0).id, play.job(2).id]
    play.wait(15)
    assert play.phase() is Phase.GATHERING
    assert play.statuses()[0] is AttemptStatus.PROVISIONING


def test_a_minute_of_running_clears_the_count_of_short_lives() -> None:
    play = GangPlay().run_all().fail(1).clean_all().run_all()
    play.wait(60).send(play.exited(1, FAILED))
    play.clean_all()
    assert play.phase() is Phase.GATHERING


def test_limits_start_when_the_wait_is_over() -> None:
    play = GangPlay()
    for _ in range(2):
        play.run_all().fail(1).clean_all()
    play.wait(15)
    assert play.attempt(0).provisioned_at == play.now
    assert play.attempt(1).submitted_at == play.now


# -- budgets --------------------------------------------------------------------------------


def test_failures_are_counted_per_run_in_incarnations_that_had_one() -> None:
    play = GangPlay(retry=RetryPolicy(on_events=frozenset({RetryEvent.ERROR}), max_failures=2))
    for n in (0, 1):
        play.run_all().wait(60)
        both = [play.exited(n, FAILED), play.exited(2, FAILED)]
        play.send(*both)
        play.clean_all()
    assert play.number == 3
    play.run_all().fail(2).clean_all()
    assert play.number == 3
    assert play.run.reason is RunReason.RETRY_LIMIT_EXCEEDED


def test_siblings_of_a_failing_gang_job_are_not_charged() -> None:
    play = GangPlay(retry=RetryPolicy(on_events=frozenset({RetryEvent.ERROR}), max_failures=1))
    play.run_all().fail(0).clean_all()
    assert ROWS[CHANGED].budget is None
    assert play.number == 2


def test_preemptions_are_counted_per_job() -> None:
    retry = RetryPolicy(max_preemptions=1)
    play = GangPlay(retry=retry)
    for n in (0, 1):
        play.run_all().wait(60)
        play.fail(n, Reason.PREEMPTED).clean_all()
    assert play.number == 3
    play.run_all().fail(1, Reason.PREEMPTED).clean_all()
    assert play.run.reason is RunReason.WORKER_FAILED


@pytest.mark.parametrize("reason", sorted(ALLOCATION_LOST))
def test_a_place_lost_before_running_is_a_new_incarnation_uncharged(reason: Reason) -> None:
    never = RetryPolicy(on_events=frozenset(), max_preemptions=0, max_failures=0)
    play = GangPlay(retry=never).place_waiting()
    play.send(play.accepted(1))
    play.end(1, reason)
    assert play.number == 2
    assert play.run.switches[0].reason == SwitchReason.JOB_ABORTED
    play.clean_all()
    assert play.phase() is Phase.GATHERING


# -- reserved and plain jobs ----------------------------------------------------------------


@pytest.mark.parametrize("reason", [FAILED, Reason.DONE_BY_RUNNER, Reason.PREEMPTED])
def test_the_end_of_a_reserved_job_never_switches_anything_it_is_replaced(reason: Reason) -> None:
    play = GangPlay(gang(3, 2), retry=RetryPolicy(on_events=frozenset(), max_failures=0))
    play.run_all().fail(2, reason).clean_all()
    assert play.number == 1
    assert play.statuses()[:2] == [AttemptStatus.RUNNING, AttemptStatus.RUNNING]
    assert play.attempt(2).status is AttemptStatus.SUBMITTED
    assert play.attempt(2).number == 1
    assert play.allocation(2, 0).state is AllocationState.RELEASED


def test_reserved_jobs_never_count_against_the_failures_of_the_gang() -> None:
    play = GangPlay(gang(3, 2), retry=RetryPolicy(on_events=RETRY.on_events, max_failures=1))
    play.run_all()
    for _ in range(3):
        play.fail(2).clean_all().wait(600)
        play.run_all()
    play.fail(0).clean_all()
    assert play.number == 2
    assert play.run.status is not RunStatus.TERMINATING


def test_a_plain_group_beside_a_gang_never_triggers() -> None:
    play = GangPlay(gang(2), Group(name="data", nodes=1)).run_all().fail(2).clean_all()
    assert play.number == 1
    assert play.attempt(2).number == 1
    assert play.attempt(2).rank == 0


def test_a_plain_group_beside_a_gang_restarts_with_it() -> None:
    play = GangPlay(gang(2), Group(name="data", nodes=1)).run_all().fail(0)
    assert play.reasons() == [FAILED, CHANGED, CHANGED]
    play.clean_all()
    assert play.attempt(2).incarnation == play.run.incarnation
    assert play.places()[2] == play.attempt(2, 0).allocation_id


def test_done_when_every_rank_is_done_and_reserved_jobs_are_stopped() -> None:
    play = GangPlay(gang(3, 2)).run_all()
    play.fail(0, Reason.DONE_BY_RUNNER).fail(1, Reason.DONE_BY_RUNNER).clean_all()
    assert play.run.reason is RunReason.ALL_JOBS_DONE
    assert play.attempt(2).reason is Reason.RELEASED
    play.clean_all()
    assert play.run.status is RunStatus.DONE
    assert all(a.state is AllocationState.RELEASED for a in play.state.allocations)


# -- revival --------------------------------------------------------------------------------


def test_acknowledged_and_missing_on_a_reached_shim_ends_that_rank_lost_after_revival() -> None:
    play = GangPlay().run_all()
    play.send(TaskMissing(run_id=play.run_id, attempt_id=play.attempt(1).id))
    assert play.attempt(1).reason is Reason.LOST_AFTER_REVIVAL
    assert play.run.switches[0].reason == SwitchReason.JOB_LACK_AFTER_REVIVAL


def test_committed_but_never_acknowledged_is_sent_again() -> None:
    play = GangPlay().place_waiting()
    play.send(TaskMissing(run_id=play.run_id, attempt_id=play.attempt(1).id))
    assert play.number == 1
    assert play.wanted(1) == ("submit_task",)


def test_finished_ranks_do_not_force_a_restart_when_their_node_is_gone() -> None:
    play = GangPlay().run_all().fail(1, Reason.DONE_BY_RUNNER).clean_all()
    play.send(play.node_gone("n1"))
    assert play.number == 1
    assert play.attempt(1).status is AttemptStatus.DONE
    assert play.allocation(1).state is AllocationState.ORPHANED


def test_a_silent_node_is_disconnected_and_no_event_for_its_gang() -> None:
    play = GangPlay().run_all()
    play.send(play.link(down=True, node="n1"))
    assert play.number == 1
    assert play.attempt(1).disconnected


# -- suspended ------------------------------------------------------------------------------


def test_a_suspended_gang_that_lost_a_rank_stops_its_survivors() -> None:
    play = GangPlay().run_all().change_run(suspended=True)
    play.send(play.exited(1, FAILED))
    assert isinstance(play, GangPlay)
    assert play.number == 1
    assert play.reasons() == [Reason.SUSPENDED, FAILED, Reason.SUSPENDED]
    assert play.attempt(0).remove_at == START + 10
    play.clean_all()
    assert play.run.status is RunStatus.PENDING


def test_a_resumed_gang_starts_again_for_the_rank_that_it_lost() -> None:
    play = GangPlay().run_all().change_run(suspended=True)
    assert isinstance(play, GangPlay)
    play.fail(1).clean_all()
    play.change_run(suspended=False).send()
    assert play.number == 2
    assert play.run.switches[0].reason == "job_failed"
    assert play.statuses() == [AttemptStatus.SUBMITTED] * 3


def test_a_gang_that_was_suspended_with_what_ran_comes_back_as_resumed() -> None:
    play = GangPlay().run_all()
    play.send(SuspendRequested(run_id=play.run_id, abort_running=True, by="ada"))
    play.clean_all()
    assert play.reasons() == [Reason.SUSPENDED] * 3
    assert play.number == 1
    play.send(ResumeRequested(run_id=play.run_id, by="ada"))
    assert play.number == 2
    assert play.run.switches[0].reason == SwitchReason.RESUMED
    assert play.statuses() == [AttemptStatus.SUBMITTED] * 3


def _preempted(play: GangPlay, n: int) -> Preempted:
    return Preempted(run_id=play.run_id, attempt_id=play.attempt(n).id, message="for another")


# -- limits ---------------------------------------------------------------------------------


def test_failures_of_a_job_that_is_reserved_now_count_to_max_failed_attempts() -> None:
    """It had them as a rank."""
    play = GangPlay(gang(4, 3), max_failed_attempts=1).run_all().fail(1).clean_all()
    assert play.ranks() == [0, None, 2, 1]
    play.run_all().fail(0)
    assert play.run.reason is RunReason.RETRY_LIMIT_EXCEEDED
    assert play.run.message == "2 attempts failed; max_failed_attempts is 1"


def test_failures_of_a_reserved_job_do_not_count_to_max_failed_attempts() -> None:
    play = GangPlay(gang(4, 3), max_failed_attempts=0).run_all().fail(3).clean_all()
    assert play.attempt(3).status is AttemptStatus.SUBMITTED
    assert play.run.status is RunStatus.RUNNING


def test_a_reserved_job_waits_for_its_place_beyond_scheduling_timeout() -> None:
    """Its end would fail nothing, and its successor would only wait again."""
    play = GangPlay(gang(4, 3), scheduling_timeout=0.0)
    play.send(*(play.placed_in(n) for n in range(3)))
    for n in range(3):
        play.send(play.accepted(n), play.seen(n), play.started(n))
    looked = NotPlaced(
        run_id=play.run_id, attempt_id=play.attempt(3).id, pending_reason=NoNodeConnected()
    )
    play.send(looked).wait(3600)
    assert play.attempt(3).status is AttemptStatus.SUBMITTED
    assert play.attempt(3).pending_reason == NoNodeConnected()


def test_the_ranks_of_a_gang_end_at_scheduling_timeout() -> None:
    play = GangPlay(scheduling_timeout=60.0)
    looked = [
        NotPlaced(
            run_id=play.run_id, attempt_id=play.attempt(n).id, pending_reason=NoNodeConnected()
        )
        for n in range(3)
    ]
    play.send(*looked).wait(60)
    assert play.reasons() == [Reason.UNSCHEDULABLE] * 3
    assert play.run.status is RunStatus.FAILED
