"""A run that waits for other runs or for a time begins when they have come (docs/rules.md 4.17)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from controller.lifecycle.draft import DecisionContext
from controller.lifecycle.events import EventKind
from controller.lifecycle.model import JobSpec, RunPolicy, RunState
from controller.lifecycle.predecessors import Predecessor, PredecessorFacts
from controller.lifecycle.reports import ResumeRequested, StopRequested, SuspendRequested
from controller.lifecycle.runs import beginning
from controller.lifecycle.runs.dependencies import facts
from controller.lifecycle.runs.first_state import PlannedJob, new_run
from fairlead.model.beginning import After, Moment, SameJob, When
from fairlead.model.reasons import Reason, RunReason
from fairlead.model.statuses import RunStatus
from tests.unit.lifecycle.play import START, Play


def waiting(*after: Predecessor, jobs: int = 1, **policy: Any) -> Play:
    """Return a run that waits for these, of which nothing is known yet."""
    play = Play(jobs=jobs)
    ids = (f"made{number}" for number in itertools.count())
    asked = tuple(After(run=one.name, when=one.when, job=one.job) for one in after)
    play.state = new_run(
        name="train",
        user="ada",
        jobs=[PlannedJob(cookie=n, replica=n, spec=JobSpec(image="busybox")) for n in range(jobs)],
        now=play.now,
        new_id=lambda: next(ids),
        policy=RunPolicy(after=asked, **policy),
        after=after,
    )
    return play.send()


def prepare(when: When = When.DONE, job: SameJob = SameJob.ALL) -> Predecessor:
    return Predecessor(run_id="p1", name="prepare", when=when, job=job)


def seen(status: RunStatus, **facts: Any) -> DecisionContext:
    return DecisionContext(predecessors={"p1": PredecessorFacts(status=status, **facts)})


def learns(play: Play, status: RunStatus, **facts: Any) -> Play:
    play.around = seen(status, **facts)
    return play.send()


def test_a_run_that_waits_for_another_is_pending_and_has_no_attempt() -> None:
    play = waiting(prepare())
    assert play.run.status is RunStatus.PENDING
    assert play.job().attempts == ()
    assert play.wake_at is None
    assert beginning.why_waits(play.run) == "after run prepare: waits until it is done"


@pytest.mark.parametrize(
    ("when", "status", "has_run"),
    [
        (When.DONE, RunStatus.DONE, True),
        (When.ENDED, RunStatus.FAILED, True),
        (When.ENDED, RunStatus.TERMINATED, False),
        (When.FAILED, RunStatus.FAILED, True),
        (When.RUNNING, RunStatus.RUNNING, True),
        (When.RUNNING, RunStatus.FAILED, True),
    ],
)
def test_it_begins_when_the_condition_comes_true(
    when: When, status: RunStatus, has_run: bool
) -> None:
    play = learns(waiting(prepare(when)), status, has_run=has_run)
    assert play.run.status is RunStatus.SUBMITTED
    assert len(play.job().attempts) == 1
    assert [one.to_status for one in play.events if one.kind is EventKind.AFTER] == ["met"]
    assert beginning.why_waits(play.run) is None


@pytest.mark.parametrize(
    ("when", "status"),
    [
        (When.DONE, RunStatus.FAILED),
        (When.DONE, RunStatus.TERMINATED),
        (When.FAILED, RunStatus.DONE),
        (When.FAILED, RunStatus.TERMINATED),
        (When.RUNNING, RunStatus.TERMINATED),
    ],
)
def test_it_ends_at_once_when_the_condition_can_no_longer_come_true(
    when: When, status: RunStatus
) -> None:
    play = learns(waiting(prepare(when)), status)
    assert play.run.status is RunStatus.FAILED
    assert play.run.reason is RunReason.DEPENDENCY_FAILED
    assert f"run prepare ended as {status}" in str(play.run.message)
    assert play.job().attempts == ()


@pytest.mark.parametrize("when", list(When))
def test_it_waits_while_nothing_is_decided(when: When) -> None:
    play = learns(waiting(prepare(when)), RunStatus.PROVISIONING)
    assert play.run.status is RunStatus.PENDING


def test_all_runs_must_have_come() -> None:
    other = Predecessor(run_id="p2", name="other", when=When.ENDED)
    play = learns(waiting(prepare(), other), RunStatus.DONE)
    assert play.job().attempts == ()
    assert beginning.why_waits(play.run) == "after run other: waits until it has ended"
    # The first one is known by now, and nobody tells it again.
    play.around = DecisionContext(predecessors={"p2": PredecessorFacts(status=RunStatus.FAILED)})
    assert len(play.send().job().attempts) == 1


def test_a_run_that_had_ended_before_the_submission_needs_no_news() -> None:
    ended = PredecessorFacts(status=RunStatus.DONE)
    known = Predecessor(run_id="p1", name="prepare", ended=ended)
    assert waiting(known).run.status is RunStatus.SUBMITTED
    lost = Predecessor(run_id="p1", name="prepare", when=When.FAILED, ended=ended)
    assert waiting(lost).run.reason is RunReason.DEPENDENCY_FAILED


def test_a_suspended_run_begins_once_it_is_resumed() -> None:
    play = waiting(prepare())
    play.send(SuspendRequested(run_id=play.run_id, abort_running=False, by="ada"))
    assert learns(play, RunStatus.DONE).job().attempts == ()
    play.around = DecisionContext()
    play.send(ResumeRequested(run_id=play.run_id, by="ada"))
    assert len(play.job().attempts) == 1


def test_a_run_that_is_stopped_while_it_waits_ends_without_an_attempt() -> None:
    play = waiting(prepare())
    play.send(StopRequested(run_id=play.run_id, abort=False, by="ada"))
    assert (play.run.status, play.job().attempts) == (RunStatus.TERMINATED, ())


# -- one job after another ------------------------------------------------------------------------


def test_a_job_begins_after_the_job_with_its_number() -> None:
    play = waiting(prepare(job=SameJob.SAME), jobs=3)
    jobs = frozenset(range(3))
    learns(play, RunStatus.RUNNING, jobs=jobs, done=frozenset({1}), over=frozenset({1}))
    assert [len(job.attempts) for job in play.state.jobs] == [0, 1, 0]
    why = beginning.why_waits(play.run, play.job(2))
    assert why == "after job 2 of run prepare: waits until it is done"
    learns(play, RunStatus.DONE, jobs=jobs, done=jobs, over=jobs)
    assert [len(job.attempts) for job in play.state.jobs] == [1, 1, 1]


def test_a_job_whose_predecessor_failed_ends_alone_where_that_is_tolerated() -> None:
    play = waiting(prepare(job=SameJob.SAME), jobs=2, max_failed_jobs=1)
    both, second = frozenset({0, 1}), frozenset({1})
    learns(play, RunStatus.RUNNING, jobs=both, failed=second, over=second)
    assert play.attempt(1).reason is Reason.DEPENDENCY_FAILED
    assert (play.run.status, play.job(0).attempts) == (RunStatus.PENDING, ())
    learns(play, RunStatus.FAILED, jobs=both, done=frozenset({0}), failed=second, over=both)
    assert play.attempt(0).reason is None


def test_a_job_whose_predecessor_failed_ends_its_run_otherwise() -> None:
    play = waiting(prepare(job=SameJob.SAME), jobs=2)
    both, second = frozenset({0, 1}), frozenset({1})
    learns(play, RunStatus.RUNNING, jobs=both, failed=second, over=second)
    assert play.run.reason is RunReason.DEPENDENCY_FAILED
    assert play.run.status is RunStatus.FAILED


def waiting_for_another_too(**other: Any) -> Play:
    """Return a run of two jobs that waits for a whole run besides."""
    last = Predecessor(run_id="p2", name="other", when=When.ENDED)
    return waiting(prepare(job=SameJob.SAME), last, jobs=2, **other)


def other_ends(play: Play, **facts: Any) -> Play:
    """Let the other run end, while these are the facts of the first one."""
    first = PredecessorFacts(status=RunStatus.RUNNING, **facts)
    second = PredecessorFacts(status=RunStatus.DONE)
    play.around = DecisionContext(predecessors={"p1": first, "p2": second})
    return play.send()


def test_a_condition_that_came_true_holds_when_its_job_is_scaled_down() -> None:
    play = waiting_for_another_too()
    both, first, second = frozenset({0, 1}), frozenset({0}), frozenset({1})
    learns(play, RunStatus.RUNNING, jobs=both, done=second, over=second)
    assert play.job(1).attempts == ()
    assert beginning.why_waits(play.run, play.job(1)) == "after run other: waits until it has ended"
    learns(play, RunStatus.RUNNING, jobs=first, done=second, over=second)
    other_ends(play, jobs=first, done=second, over=second)
    assert [len(job.attempts) for job in play.state.jobs] == [0, 1]


def test_a_condition_that_was_lost_stays_lost_when_its_job_is_scaled_down() -> None:
    play = waiting_for_another_too(max_failed_jobs=1)
    both, first, second = frozenset({0, 1}), frozenset({0}), frozenset({1})
    learns(play, RunStatus.RUNNING, jobs=both, failed=second, over=second)
    other_ends(play, jobs=first, failed=second, over=second)
    assert play.attempt(1).reason is Reason.DEPENDENCY_FAILED
    assert play.job(0).attempts == ()


def test_a_condition_about_a_whole_run_holds_when_the_run_is_scaled_up() -> None:
    last = Predecessor(run_id="p2", name="other", when=When.ENDED)
    play = waiting(prepare(When.RUNNING, SameJob.SAME), last, jobs=2)
    both, first = frozenset({0, 1}), frozenset({0})
    learns(play, RunStatus.RUNNING, has_run=True, jobs=first, began=first)
    other_ends(play, has_run=True, jobs=both, began=first)
    assert [len(job.attempts) for job in play.state.jobs] == [1, 1]


def test_a_job_is_said_to_wait_only_for_what_has_not_come() -> None:
    other = Predecessor(run_id="p2", name="other", job=SameJob.SAME)
    play = waiting(prepare(job=SameJob.SAME), other)
    only = frozenset({0})
    learns(play, RunStatus.RUNNING, jobs=only, done=only, over=only)
    why = beginning.why_waits(play.run, play.job())
    assert why == "after job 0 of run other: waits until it is done"


def test_nothing_is_noted_of_jobs_that_begin_at_once() -> None:
    play = waiting(prepare(job=SameJob.SAME), jobs=2)
    both, second = frozenset({0, 1}), frozenset({1})
    learns(play, RunStatus.RUNNING, jobs=both, done=second, over=second)
    assert [(one.met_for, one.lost_for) for one in play.run.after] == [((), ())]


# -- times ----------------------------------------------------------------------------------------


def test_a_run_with_a_beginning_waits_for_it() -> None:
    play = waiting(begin=Moment(within=60.0, written="1m"))
    assert (play.run.status, play.wake_at) == (RunStatus.PENDING, START + 60.0)
    assert beginning.why_waits(play.run) == "begins 1m after submission"
    assert play.wait(59).job().attempts == ()
    assert len(play.wait(1).job().attempts) == 1
    assert play.run.status is RunStatus.SUBMITTED


def test_a_run_that_has_begun_goes_on_when_the_clock_is_put_back() -> None:
    play = waiting(begin=Moment(within=60.0, written="1m")).wait(60).to_running().wait(-3600)
    assert play.wake_at is None
    play.send(play.exited()).clean()
    assert play.run.status is RunStatus.DONE


def test_a_run_that_runs_too_late_ends_as_unschedulable() -> None:
    play = waiting(prepare(), start_before=Moment(at=START + 30.0))
    assert play.wake_at == START + 30.0
    play.wait(30)
    assert play.run.reason is RunReason.UNSCHEDULABLE
    assert "start_before" in str(play.run.message)


def test_a_run_that_has_run_once_is_never_too_late() -> None:
    play = Play(start_before=Moment(within=30.0)).to_running()
    assert play.wait(60).run.status is RunStatus.RUNNING


# -- what a run tells those that wait for it -------------------------------------------------------


def test_facts_are_never_taken_back() -> None:
    play = Play(jobs=2, max_failed_jobs=1)
    known: list[PredecessorFacts] = [facts(play.state)]

    def note(state: RunState) -> None:
        known.append(facts(state))

    note(play.to_running(0).state)
    note(play.live_and_end(1, Reason.CONTAINER_EXITED_WITH_ERROR).state)
    note(play.end(0, Reason.DONE_BY_RUNNER).state)
    note(play.clean(0).state)
    assert (known[-1].done, known[-1].failed) == (frozenset({0}), frozenset({1}))
    assert known[-1].status is RunStatus.DONE
    for before, after in itertools.pairwise(known):
        assert before.done <= after.done
        assert before.failed <= after.failed
        assert before.over <= after.over
        assert before.began <= after.began
        assert before.has_run <= after.has_run
