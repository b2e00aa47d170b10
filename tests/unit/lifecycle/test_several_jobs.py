"""Limits of a run of several independent jobs in several groups: docs/rules.md 3 and 4."""

from __future__ import annotations

from typing import Any

from controller.lifecycle.model import Group, RetryEvent, RetryPolicy, StopCriteria
from fairlead.model.reasons import Reason, RunReason
from fairlead.model.statuses import AttemptStatus, RunStatus
from tests.unit.lifecycle.asking import Ask
from tests.unit.lifecycle.play import Play

FAILED = Reason.CONTAINER_EXITED_WITH_ERROR
ON_ERROR = RetryPolicy(on_events=frozenset({RetryEvent.ERROR}))


def two_groups(**policy: Any) -> Play:
    """head/0, head/1, tail/0, tail/1: all running."""
    groups = [Group(name="head", nodes=2), Group(name="tail", nodes=2)]
    play = Play(groups=groups, **policy)
    for n in range(4):
        play.to_running(n)
    return play


def _live(play: Play) -> list[int]:
    return [n for n in range(4) if play.attempt(n).reason is None]


def test_a_failing_job_of_an_independent_group_leaves_the_others_running() -> None:
    play = two_groups(retry=ON_ERROR)
    play.send(play.exited(1, FAILED)).clean(1)
    assert _live(play) == [0, 1, 2, 3]
    assert play.attempt(1).status is AttemptStatus.SUBMITTED
    assert play.run.status is RunStatus.RUNNING


def test_max_failed_jobs_counts_over_all_groups() -> None:
    play = two_groups(max_failed_jobs=1)
    play.send(play.exited(0, FAILED)).clean(0)
    assert _live(play) == [1, 2, 3]
    play.send(play.exited(3, FAILED))
    assert (play.run.reason, play.run.message) == (
        RunReason.JOB_FAILED,
        "job head/0: the job ended with exit code 1",
    )


def test_max_failed_jobs_counts_jobs_that_ended_for_good_and_not_their_attempts() -> None:
    retry = RetryPolicy(on_events=frozenset({RetryEvent.ERROR}), max_failures=1)
    play = two_groups(max_failed_jobs=1, retry=retry)
    for _ in range(2):
        play.send(play.exited(0, FAILED)).clean(0).wait(60)
        if play.attempt(0).status is AttemptStatus.SUBMITTED:
            play.to_running(0)
    assert play.run.status is RunStatus.RUNNING
    assert [a.reason for a in play.job(0).attempts] == [FAILED, FAILED]


def test_max_failed_attempts_counts_over_all_jobs() -> None:
    play = two_groups(max_failed_attempts=1, retry=ON_ERROR)
    play.send(play.exited(0, FAILED)).clean(0)
    assert play.run.status is RunStatus.RUNNING
    play.send(play.exited(2, FAILED))
    assert play.run.reason is RunReason.RETRY_LIMIT_EXCEEDED


def test_max_failed_attempts_does_not_count_preemptions() -> None:
    play = two_groups(max_failed_attempts=0)
    play.end(0, Reason.PREEMPTED).clean(0)
    assert play.run.status is RunStatus.RUNNING


def test_max_duration_is_wall_time_with_any_job_running() -> None:
    play = Play(jobs=2, max_duration=100.0, retry=ON_ERROR).to_running(0)
    play.wait(60).send(play.exited(0)).clean(0)
    play.wait(500).to_running(1)
    assert play.wake_at == play.now + 40
    play.wait(40)
    assert play.attempt(1).reason is Reason.MAX_DURATION_EXCEEDED
    assert play.run.reason is RunReason.JOB_FAILED


def test_max_duration_counts_two_jobs_at_once_only_once() -> None:
    play = Play(jobs=2, max_duration=100.0).to_running(0).to_running(1)
    assert play.wait(99).run.status is RunStatus.RUNNING
    play.wait(1)
    assert [play.attempt(n).reason for n in (0, 1)] == [Reason.MAX_DURATION_EXCEEDED] * 2


def test_fail_on_job_restart_fails_the_run_for_a_job_of_any_group() -> None:
    play = two_groups(fail_on_job_restart=True)
    play.end(3, Reason.PREEMPTED)
    assert play.run.reason is RunReason.JOB_FAILED
    assert play.run.message is not None
    assert play.run.message.startswith("job tail/1: ")


def test_fail_on_job_restart_tolerates_jobs_that_are_not_restarted() -> None:
    play = two_groups(fail_on_job_restart=True, max_failed_jobs=1)
    play.send(play.exited(3, FAILED)).clean(3)
    assert play.run.status is RunStatus.RUNNING


def test_completed_jobs_are_restarted_uncharged_until_the_master_is_done() -> None:
    play = two_groups(restart_completed_jobs=True, stop_criteria=StopCriteria.MASTER_DONE)
    play.send(play.exited(3)).clean(3)
    assert play.attempt(3).status is AttemptStatus.SUBMITTED
    play.send(play.exited(0)).clean(0)
    assert play.run.reason is RunReason.ALL_JOBS_DONE


def test_a_run_that_restarts_completed_jobs_ends_when_every_job_is_abandoned_or_tolerated() -> None:
    play = Play(jobs=2, restart_completed_jobs=True, max_failed_jobs=1)
    play.live_and_end(0, FAILED).to_running(1)
    play.send(Ask(play).abandon(1)).clean(1)
    assert play.run.status is RunStatus.DONE


def test_master_done_stops_the_others_as_terminated_by_server() -> None:
    play = two_groups(stop_criteria=StopCriteria.MASTER_DONE)
    play.send(play.exited(2)).clean(2)
    assert _live(play) == [0, 1, 3]
    play.send(play.exited(0)).clean(0)
    assert [play.attempt(n).reason for n in (1, 3)] == [Reason.TERMINATED_BY_SERVER] * 2
    for n in (1, 3):
        play.clean(n)
    assert play.run.status is RunStatus.DONE


def test_master_done_waits_for_no_failed_job_that_is_tolerated() -> None:
    play = two_groups(stop_criteria=StopCriteria.MASTER_DONE, max_failed_jobs=3)
    for n in (1, 2, 3):
        play.send(play.exited(n, FAILED)).clean(n)
    play.send(play.exited(0)).clean(0)
    assert play.run.status is RunStatus.DONE
