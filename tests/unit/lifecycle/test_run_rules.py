"""docs/rules.md 4: each numbered rule of the derivation, and what TERMINATING leads to."""

from __future__ import annotations

import pytest

from controller.lifecycle.model import Group, RetryEvent, RetryPolicy, StopCriteria
from controller.lifecycle.pending_reasons import NoNodeConnected
from controller.lifecycle.reports import NotPlaced, TaskMissing
from controller.lifecycle.runs.status import Outcome, derive
from fairlead.model.reasons import ROWS, Budget, Reason, RunReason
from fairlead.model.statuses import AttemptStatus, RunStatus
from tests.unit.lifecycle.play import NO_RETRY, Play, planned

FAILED = Reason.CONTAINER_EXITED_WITH_ERROR


def outcome(play: Play) -> Outcome:
    return derive(play.run, play.state.jobs)


# -- rule 1 ---------------------------------------------------------------------------------


def test_rule_1_a_failed_job_ends_the_run_as_soon_as_its_reason_is_set() -> None:
    play = Play(jobs=2).to_running(0).to_running(1)
    play.send(play.exited(0, FAILED, code=7, message="exit code 7"))
    assert play.run.status is RunStatus.TERMINATING
    assert play.run.reason is RunReason.JOB_FAILED
    assert play.run.message == "job main/0: exit code 7"
    assert play.attempt(1).reason is Reason.TERMINATED_BY_SERVER


def test_rule_1_failures_are_tolerated_up_to_max_failed_jobs() -> None:
    play = Play(jobs=3, max_failed_jobs=1)
    for n in range(3):
        play.to_running(n)
    play.send(play.exited(0, FAILED)).clean(0)
    assert play.run.status is RunStatus.RUNNING
    play.send(play.exited(1, FAILED))
    assert play.run.reason is RunReason.JOB_FAILED


def test_rule_1_the_job_that_was_one_too_many_is_why_the_run_ends() -> None:
    play = Play(jobs=3, max_failed_jobs=1, retry=NO_RETRY)
    for n in range(3):
        play.to_running(n)
    play.send(play.exited(2, FAILED, code=5, message="tolerated")).clean(2)
    play.send(play.exited(0, FAILED, code=6, message="too many"))
    assert play.run.message == "job main/0: too many"


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (Reason.LOG_QUOTA_EXCEEDED, RunReason.JOB_FAILED),
        (Reason.MAX_DURATION_EXCEEDED, RunReason.JOB_FAILED),
        (Reason.LOST_AFTER_REVIVAL, RunReason.WORKER_FAILED),
    ],
)
def test_rule_1_a_failure_with_another_budget_ends_the_run_at_once(
    reason: Reason, expected: RunReason
) -> None:
    play = Play(jobs=2, max_failed_jobs=5, retry=NO_RETRY).live_and_end(0, reason)
    assert play.run.reason is expected


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (Reason.TERMINATED_BY_USER, RunReason.STOPPED_BY_USER),
        (Reason.ABORTED_BY_USER, RunReason.ABORTED_BY_USER),
        (Reason.JOB_ABORTED_BY_USER, RunReason.ABORTED_BY_USER),
        (Reason.PREEMPTED, RunReason.WORKER_FAILED),
        (Reason.INACTIVITY_DURATION_EXCEEDED, RunReason.JOB_FAILED),
    ],
)
def test_rule_1_a_neutral_end_for_good_ends_the_run_at_once(
    reason: Reason, expected: RunReason
) -> None:
    play = Play(jobs=2, max_failed_jobs=5, retry=NO_RETRY).live_and_end(0, reason)
    assert play.run.reason is expected


@pytest.mark.parametrize("reason", [Reason.ABANDONED, Reason.SCALED_DOWN, Reason.RELEASED])
def test_rule_1_abandoned_scaled_down_and_released_jobs_leave_the_run_alone(
    reason: Reason,
) -> None:
    play = Play(jobs=2, retry=NO_RETRY).to_running(1).live_and_end(0, reason)
    assert play.run.status is RunStatus.RUNNING


def test_rule_1_a_used_up_budget_is_told_apart_from_a_failure() -> None:
    retry = RetryPolicy(on_events=frozenset({RetryEvent.ERROR}), max_failures=0)
    play = Play(retry=retry).live_and_end(reason=FAILED)
    assert play.run.reason is RunReason.RETRY_LIMIT_EXCEEDED
    assert play.run.status is RunStatus.FAILED


def test_rule_1_a_run_whose_job_found_no_place_in_time_is_unschedulable() -> None:
    play = Play(scheduling_timeout=30.0)
    play.send(
        NotPlaced(
            run_id=play.run_id, attempt_id=play.attempt().id, pending_reason=NoNodeConnected()
        )
    )
    play.wait(30.0)
    assert play.run.reason is RunReason.UNSCHEDULABLE
    assert play.run.status is RunStatus.FAILED


def test_rule_1_a_run_whose_job_lost_its_nodes_too_often_failed_by_its_workers() -> None:
    play = Play(retry=RetryPolicy(max_preemptions=1))
    play.live_and_end(reason=Reason.INSTANCE_UNREACHABLE)
    assert play.run.status is not RunStatus.TERMINATING
    play.wait(100.0)
    play.live_and_end(reason=Reason.INSTANCE_UNREACHABLE)
    assert play.run.reason is RunReason.WORKER_FAILED
    assert play.run.status is RunStatus.FAILED


LOST = [
    reason
    for reason, row in ROWS.items()
    if row.budget is Budget.PREEMPTION or reason is Reason.NODE_DRAINED
]


@pytest.mark.parametrize("reason", LOST)
def test_rule_1_a_lost_allocation_that_allows_no_retry_is_a_failed_worker(reason: Reason) -> None:
    play = Play(retry=NO_RETRY).live_and_end(reason=reason)
    assert play.run.reason is RunReason.WORKER_FAILED


@pytest.mark.parametrize("reason", LOST)
def test_rule_1_a_lost_allocation_after_the_duration_of_the_retry_is_its_limit(
    reason: Reason,
) -> None:
    play = Play(retry=RetryPolicy(duration=0.0)).live_and_end(reason=reason)
    assert play.run.reason is RunReason.RETRY_LIMIT_EXCEEDED


# -- rule 2 ---------------------------------------------------------------------------------


def test_rule_2_a_done_master_ends_the_run_while_others_run() -> None:
    play = Play(jobs=2, stop_criteria=StopCriteria.MASTER_DONE).to_running(1)
    play.live_and_end(0)
    assert play.run.reason is RunReason.ALL_JOBS_DONE
    assert play.attempt(1).reason is Reason.TERMINATED_BY_SERVER


def test_rule_2_the_master_is_of_the_first_group() -> None:
    plan = [*planned(1, group="head"), *planned(1, group="tail")]
    play = Play(plan=plan, stop_criteria=StopCriteria.MASTER_DONE).to_running(0)
    play.live_and_end(1)
    assert play.run.status is RunStatus.RUNNING


def test_rule_2_a_master_that_is_not_final_does_not_end_the_run() -> None:
    play = Play(jobs=2, stop_criteria=StopCriteria.MASTER_DONE).to_running(0).to_running(1)
    play.send(play.exited(0))
    assert play.run.status is RunStatus.RUNNING


# -- rules 3 to 5 ---------------------------------------------------------------------------


def test_rule_3_any_running_job_makes_the_run_running() -> None:
    play = Play(jobs=3).to_pulling(1).to_running(2)
    assert outcome(play) == Outcome(rule=3, status=RunStatus.RUNNING)
    assert play.run.status is RunStatus.RUNNING


@pytest.mark.parametrize("pulling", [False, True])
def test_rule_4_any_provisioning_or_pulling_job_makes_the_run_provisioning(
    pulling: bool,
) -> None:
    play = Play(jobs=2)
    play = play.to_pulling(1) if pulling else play.to_provisioning(1)
    assert outcome(play) == Outcome(rule=4, status=RunStatus.PROVISIONING)
    assert play.run.status is RunStatus.PROVISIONING


def test_rule_5_any_submitted_job_makes_the_run_submitted() -> None:
    play = Play(jobs=2).live_and_end(0)
    assert outcome(play) == Outcome(rule=5, status=RunStatus.SUBMITTED)
    assert play.run.status is RunStatus.SUBMITTED


# -- rule 6 ---------------------------------------------------------------------------------


def test_rule_6_the_run_is_done_when_every_job_is() -> None:
    play = Play(jobs=2).live_and_end(0).live_and_end(1)
    assert play.run.reason is RunReason.ALL_JOBS_DONE
    assert play.run.status is RunStatus.DONE


def test_rule_6_tolerated_failures_and_abandoned_jobs_need_nothing_more() -> None:
    play = Play(jobs=3, max_failed_jobs=1)
    play.live_and_end(0, FAILED).live_and_end(1, Reason.ABANDONED).live_and_end(2)
    assert play.run.status is RunStatus.DONE


def test_rule_6_a_job_that_is_restarted_when_done_never_completes_the_run() -> None:
    play = Play(restart_completed_jobs=True).live_and_end()
    assert outcome(play).rule == 5


def test_rule_6_a_done_job_whose_container_still_lives_does_not_complete_the_run() -> None:
    play = Play().to_running()
    play.send(play.exited())
    assert outcome(play) == Outcome(rule=8, status=None)


# -- rules 7 and 8 --------------------------------------------------------------------------


def test_rule_7_a_run_that_only_waits_for_a_retry_is_pending() -> None:
    play = Play().to_pulling().send()
    play.send(play.node_gone(confirmed=True)).to_pulling().send(play.node_gone(confirmed=True))
    assert outcome(play) == Outcome(rule=7, status=RunStatus.PENDING)
    assert play.run.status is RunStatus.PENDING


def test_rule_8_a_run_whose_only_job_is_terminating_keeps_its_status() -> None:
    play = Play().to_running()
    play.send(play.exited())
    assert play.run.status is RunStatus.RUNNING


def test_rule_8_a_suspended_run_with_nothing_live_is_pending() -> None:
    play = Play().to_running().change_run(suspended=True)
    play.end(0, Reason.SUSPENDED).clean()
    assert outcome(play) == Outcome(rule=8, status=RunStatus.PENDING)
    assert play.run.status is RunStatus.PENDING


# -- what does not count --------------------------------------------------------------------


def test_scaled_down_jobs_do_not_count() -> None:
    play = Play(jobs=2).change_job(0, scaled_down=True).live_and_end(0, Reason.SCALED_DOWN)
    play.live_and_end(1)
    assert play.run.status is RunStatus.DONE


def test_reserved_jobs_do_not_count_and_are_released() -> None:
    play = Play(groups=[Group(name="main", nodes=2, gang_size=1)]).to_running(0).to_running(1)
    play.send(play.exited(0)).clean(0)
    assert play.run.reason is RunReason.ALL_JOBS_DONE
    assert play.attempt(1).reason is Reason.RELEASED


def test_the_rules_do_not_apply_before_a_trigger() -> None:
    play = Play(schedule=("0 8 * * *",))
    play.send()
    assert play.run.status is RunStatus.PENDING


# -- TERMINATING ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("abort", "attempt_reason", "attempt_status", "run_reason"),
    [
        (False, "terminated_by_user", AttemptStatus.TERMINATED, RunReason.STOPPED_BY_USER),
        (True, "aborted_by_user", AttemptStatus.ABORTED, RunReason.ABORTED_BY_USER),
    ],
)
def test_a_request_of_a_user_ends_all_jobs_and_then_the_run(
    abort: bool, attempt_reason: str, attempt_status: AttemptStatus, run_reason: RunReason
) -> None:
    play = Play(jobs=2).to_running(0)
    play.send(play.stop(abort=abort))
    assert play.run.status is RunStatus.TERMINATING
    assert [play.attempt(n).reason for n in (0, 1)] == [attempt_reason] * 2
    assert play.clean(0).run.status is RunStatus.TERMINATED
    assert play.attempt(0).status is attempt_status
    assert play.run.reason is run_reason
    assert play.run.finished_at == play.now


def test_a_run_keeps_the_first_reason_it_ends_for() -> None:
    play = Play().to_running()
    play.send(play.exited(reason=FAILED)).send(play.stop(abort=True)).clean()
    assert play.run.reason is RunReason.JOB_FAILED
    assert play.run.status is RunStatus.FAILED


def test_a_terminating_run_tries_nothing_again() -> None:
    play = Play().to_running()
    play.send(play.stop()).send(play.node_gone(confirmed=True))
    assert len(play.job().attempts) == 1
    assert play.run.status is RunStatus.TERMINATED


def test_a_final_run_takes_facts_and_no_requests() -> None:
    play = Play().live_and_end()
    before = play.state
    play.send(play.stop())
    play.send(TaskMissing(run_id=play.run_id, attempt_id=play.attempt().id))
    assert play.state is before
