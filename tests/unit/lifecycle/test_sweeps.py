"""Sweeps as docs/rules.md 11 has them."""

from __future__ import annotations

from typing import Any

import pytest

from controller.lifecycle.model import (
    EndedSets,
    Group,
    JobSpec,
    RetryEvent,
    RetryPolicy,
    Sweep,
)
from controller.lifecycle.ranges import in_ranges, numbers_in
from controller.lifecycle.reports import (
    JobAbandonRequested,
    ResumeRequested,
    SetsRetried,
    SetsStopped,
    SuspendRequested,
    SweepResized,
)
from controller.lifecycle.runs.compaction import recent
from controller.lifecycle.sweeps.begin import MAX_QUEUED
from controller.lifecycle.sweeps.sets import (
    SetCounts,
    counts,
    counts_of,
    unbegun,
)
from fairlead.model.reasons import Reason, RunReason
from fairlead.model.statuses import AttemptStatus, RunStatus
from fairlead.model.sweep import ParameterSets, SweepPlan
from tests.unit.lifecycle.play import NO_RETRY, Play

FAILED = Reason.CONTAINER_EXITED_WITH_ERROR


def sweep(
    sets: int,
    *,
    nodes: int = 1,
    parallel: int | None = None,
    stop_after: int | None = None,
    **policy: Any,
) -> Play:
    rows = [[number] for number in range(sets)]
    plan = SweepPlan(
        sets=ParameterSets.of(["seed"], rows),
        max_parallel=parallel,
        stop_after_failures=stop_after,
    )
    spec = JobSpec(image="busybox", env={"KEY": "value"})
    return Play(sweep=plan, groups=[Group(name="main", nodes=nodes)], spec=spec, **policy)


def counted(play: Play) -> dict[str, int]:
    found = counts(play.state)
    return {
        name: getattr(found, name) for name in SetCounts.__struct_fields__ if getattr(found, name)
    }


def job_of(play: Play, number: int) -> int:
    """Return the place of a set's first job among the run's jobs."""
    return next(at for at, job in enumerate(play.state.jobs) if job.replica == number)


def end(play: Play, number: int, reason: Reason | None = None) -> None:
    """Run the set's job to its end: done, or with this reason."""
    at = job_of(play, number)
    play.to_running(at)
    report = play.exited(at) if reason is None else play.exited(at, reason)
    play.send(report)
    play.clean(job_of(play, number))
    play.state = recent(play.state)


def ask(play: Play, kind: type, *numbers: int) -> None:
    play.send(kind(run_id=play.run.id, sets=in_ranges(numbers), by="ada"))


def test_only_as_many_sets_have_jobs_as_may_be_active() -> None:
    play = sweep(1000, parallel=3)
    assert [job.replica for job in play.state.jobs] == [0, 1, 2]
    assert counted(play) == {"waiting": 997, "active": 3}
    end(play, 1)
    assert [job.replica for job in play.state.jobs] == [0, 2, 3]
    assert counted(play) == {"waiting": 996, "active": 3, "done": 1}


def test_without_a_limit_a_hundred_sets_wait_for_allocations() -> None:
    play = sweep(10_000)
    assert len(play.state.jobs) == MAX_QUEUED
    play.send(play.placed(0))
    assert len(play.state.jobs) == MAX_QUEUED + 1


def test_a_sweep_is_done_when_all_its_sets_are() -> None:
    play = sweep(2, parallel=1)
    end(play, 0)
    assert play.run.status is RunStatus.SUBMITTED
    end(play, 1)
    assert (play.run.status, play.run.reason) == (RunStatus.DONE, RunReason.ALL_JOBS_DONE)


def test_a_failed_set_leaves_the_others_running_and_fails_the_run_at_its_end() -> None:
    play = sweep(3, parallel=1)
    end(play, 0, FAILED)
    end(play, 1)
    assert counted(play) == {"active": 1, "done": 1, "failed": 1}
    end(play, 2)
    assert (play.run.status, play.run.reason) == (RunStatus.FAILED, RunReason.JOB_FAILED)
    assert play.run.message == "1 of 3 parameter sets failed"


def test_stop_after_failures_ends_the_run_once_with_fifty_ends_in_one_turn() -> None:
    play = sweep(100, stop_after=10)
    for at in range(100):
        play.to_running(at)
    play.send(*(play.exited(at, FAILED) for at in range(50)))
    assert play.run.status is RunStatus.TERMINATING
    assert play.run.message == "50 of 100 parameter sets failed; stop_after_failures is 10"
    lasts = [job.attempts[-1] for job in play.state.jobs]
    assert [one.reason for one in lasts[:50]] == [FAILED] * 50
    assert {one.reason for one in lasts[50:]} == {Reason.TERMINATED_BY_SERVER}
    assert len(play.state.jobs) == 100


def test_a_set_that_lost_its_node_before_it_began_is_stopped_when_its_run_ends() -> None:
    play = sweep(3, stop_after=1, retry=NO_RETRY)
    play.to_provisioning(0, node="n1").to_running(1, node="n2")
    play.send(play.exited(1, FAILED), play.node_gone("n1", confirmed=True))
    ending = play.run.status
    play.clean(1)
    assert (ending, play.run.status) == (RunStatus.TERMINATING, RunStatus.FAILED)
    assert counted(play) == {"failed": 1, "stopped": 2}


def test_the_wait_before_a_retry_counts_as_active() -> None:
    retry = RetryPolicy(on_events=frozenset({RetryEvent.ERROR}), max_failures=2)
    play = sweep(5, parallel=1, retry=retry)
    end(play, 0, FAILED)
    end(play, 0, FAILED)
    assert play.job(0).retry_at is not None
    assert counted(play) == {"waiting": 4, "active": 1}
    play.wait(60)
    end(play, 0, FAILED)
    assert counted(play) == {"waiting": 3, "active": 1, "failed": 1}


def test_max_parallel_changes_while_the_run_lives() -> None:
    play = sweep(10, parallel=1)
    play.send(SweepResized(run_id=play.run.id, max_parallel=4, by="ada"))
    assert counted(play) == {"waiting": 6, "active": 4}
    play.send(SweepResized(run_id=play.run.id, max_parallel=2, by="ada"))
    assert counted(play) == {"waiting": 6, "active": 4}
    end(play, 0)
    end(play, 1)
    end(play, 2)
    assert counted(play) == {"waiting": 5, "active": 2, "done": 3}


def test_retry_failed_twice_at_once_begins_each_failed_set_once() -> None:
    play = sweep(4, parallel=1)
    end(play, 0, FAILED)
    end(play, 1, FAILED)
    play.send(
        SetsRetried(run_id=play.run.id, sets=((0, 1),), by="ada"),
        SetsRetried(run_id=play.run.id, sets=((0, 1),), by="bob"),
    )
    ask(play, SetsRetried, 0, 1)
    assert counted(play) == {"waiting": 3, "active": 1}
    end(play, 2)
    end(play, 0)
    assert [job.replica for job in play.state.jobs] == [1]
    assert [one.number for one in play.job(0).attempts] == [0, 1]
    end(play, 1)
    end(play, 3)
    assert play.run.status is RunStatus.DONE
    assert [len(job.attempts) for job in play.state.all_jobs] == [2, 2, 1, 1]


def test_attempts_before_a_retry_count_against_no_limit() -> None:
    retry = RetryPolicy(on_events=frozenset({RetryEvent.ERROR}), max_failures=1)
    play = sweep(2, parallel=1, retry=retry)
    end(play, 0, FAILED)
    end(play, 0, FAILED)
    assert counted(play) == {"active": 1, "failed": 1}
    ask(play, SetsRetried, 0)
    end(play, 1)
    end(play, 0, FAILED)
    assert counted(play) == {"active": 1, "done": 1}
    end(play, 0, FAILED)
    assert counted(play) == {"done": 1, "failed": 1}


def test_a_set_that_is_still_cleaned_up_begins_again_when_it_is_clean() -> None:
    play = sweep(2, parallel=1)
    play.to_running(0)
    play.send(play.exited(0, FAILED))
    ask(play, SetsRetried, 0)
    assert len(play.job(0).attempts) == 1
    play.clean(0)
    assert [one.status for one in play.job(0).attempts] == [
        AttemptStatus.FAILED,
        AttemptStatus.SUBMITTED,
    ]


def test_sets_that_are_active_or_done_are_not_retried() -> None:
    play = sweep(3, parallel=1)
    end(play, 0)
    before = play.state
    ask(play, SetsRetried, 0, 1, 2)
    assert play.state is before


def test_stopped_sets_never_begin_and_do_not_fail_the_run() -> None:
    play = sweep(5, parallel=1)
    ask(play, SetsStopped, 0, 2, 3)
    assert play.attempt(0).reason is Reason.ABANDONED
    assert counted(play) == {"waiting": 1, "active": 1, "stopped": 3}
    end(play, 1)
    end(play, 4)
    assert counted(play) == {"done": 2, "stopped": 3}
    assert play.run.status is RunStatus.DONE


def test_a_stopped_set_can_be_retried_before_and_after_it_began() -> None:
    play = sweep(4, parallel=1)
    ask(play, SetsStopped, 0, 1, 3)
    play.clean(0)
    assert [job.replica for job in play.state.jobs if job.attempts[-1].reason is None] == [2]
    ask(play, SetsRetried, 0, 1, 3)
    assert counted(play) == {"waiting": 3, "active": 1}
    for number in (2, 0, 1, 3):
        end(play, number)
    assert counted(play) == {"done": 4}
    assert [len(job.attempts) for job in play.state.all_jobs] == [2, 1, 1, 1]


def test_stopping_a_set_that_waits_to_begin_again_leaves_it_failed() -> None:
    play = sweep(3, parallel=1)
    end(play, 0, FAILED)
    ask(play, SetsRetried, 0)
    ask(play, SetsStopped, 0)
    assert counted(play) == {"waiting": 1, "active": 1, "failed": 1}


@pytest.mark.parametrize(
    ("reason", "status"), [(Reason.DONE_BY_RUNNER, "done"), (FAILED, "failed")]
)
def test_a_set_that_has_ended_stays_so_when_its_job_is_abandoned(
    reason: Reason, status: str
) -> None:
    play = sweep(2, retry=NO_RETRY)
    play.to_running(0).send(play.exited(0, reason))
    assert play.attempt(0).status is AttemptStatus.TERMINATING
    play.send(JobAbandonRequested(run_id=play.run_id, job_id=play.job(0).id, by="ann"))
    assert (play.job(0).abandoned, counted(play)) == (False, {status: 1, "active": 1})
    play.send(JobAbandonRequested(run_id=play.run_id, job_id=play.job(1).id, by="ann"))
    assert (play.job(1).abandoned, counted(play)) == (True, {status: 1, "stopped": 1})


def test_no_set_begins_while_the_run_is_suspended() -> None:
    play = sweep(3, parallel=1)
    play.to_running(0)
    play.send(SuspendRequested(run_id=play.run.id, abort_running=False, by="ada"))
    play.send(play.exited(0)).clean(0)
    assert counted(play) == {"waiting": 2, "done": 1}
    assert play.run.status is RunStatus.PENDING
    play.send(ResumeRequested(run_id=play.run.id, by="ada"))
    assert counted(play) == {"waiting": 1, "active": 1, "done": 1}


def test_a_state_has_the_jobs_of_ended_sets_apart_and_the_run_forgets_all_their_values() -> None:
    play = sweep(3, parallel=1)
    for number in range(2):
        end(play, number)
    assert [job.replica for job in play.state.ended.jobs] == [0, 1]
    end(play, 2)
    assert {job.spec.env.get("KEY") for job in play.state.all_jobs} == {None}
    assert play.state.sweep is not None
    assert play.state.sweep.spec.env == {}


# -- sets of several nodes ----------------------------------------------------------------


def test_a_set_of_several_nodes_is_done_when_each_of_its_jobs_is() -> None:
    play = sweep(2, nodes=2, parallel=1)
    assert [(job.replica, job.cookie, job.rank) for job in play.state.jobs] == [
        (0, 0, 0),
        (0, 1, 1),
    ]
    for at in (0, 1):
        play.to_running(at)
    play.send(play.exited(0)).clean(0)
    assert counted(play) == {"waiting": 1, "active": 1}
    play.send(play.exited(1)).clean(1)
    assert counted(play) == {"active": 1, "done": 1}


def test_a_set_of_several_nodes_fails_and_comes_back_as_a_whole() -> None:
    retry = RetryPolicy(on_events=frozenset({RetryEvent.ERROR}), max_failures=1)
    play = sweep(1, nodes=2, retry=retry)
    for life in range(2):
        for at in (0, 1):
            play.to_running(at)
        play.send(play.exited(1, FAILED))
        assert play.attempt(0).reason is Reason.SIBLING_FAILED
        play.clean(1)
        assert len(play.job(1).attempts) == life + 1
        play.clean(0)
    assert [len(job.attempts) for job in play.state.jobs] == [2, 2]
    assert play.run.message == "1 of 1 parameter sets failed"


def test_a_done_job_starts_again_with_its_set() -> None:
    retry = RetryPolicy(on_events=frozenset({RetryEvent.ERROR}), max_failures=1)
    play = sweep(1, nodes=2, retry=retry)
    for at in (0, 1):
        play.to_running(at)
    play.send(play.exited(0)).clean(0)
    play.send(play.exited(1, FAILED)).clean(1)
    assert [len(job.attempts) for job in play.state.jobs] == [2, 2]


@pytest.mark.parametrize("numbers", [[], [3], [0, 1, 2], [5, 1, 2, 9]])
def test_ranges_hold_the_numbers_they_were_made_of(numbers: list[int]) -> None:
    assert list(numbers_in(in_ranges(numbers))) == sorted(numbers)


@pytest.mark.parametrize("begun", range(7))
def test_as_many_sets_are_counted_as_have_not_begun(begun: int) -> None:
    made = Sweep(total=6, begun=min(begun, 6), stopped=((1, 2), (4, 4)))
    numbers = [number for number in range(begun, 6) if number not in (1, 2, 4)]
    assert list(numbers_in(unbegun(made))) == numbers
    assert counts_of(sweep(1).run, made, (), EndedSets()).waiting == len(numbers)
