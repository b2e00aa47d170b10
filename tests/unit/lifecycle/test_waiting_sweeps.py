"""Sweeps that wait for other runs or a time, whole or set for set (docs/rules.md 4.17, 4.18)."""

from __future__ import annotations

import itertools
from typing import Any

from msgspec.structs import replace

from controller.lifecycle.draft import DecisionContext
from controller.lifecycle.model import Group, JobSpec, RetryEvent, RetryPolicy, RunPolicy
from controller.lifecycle.predecessors import Predecessor, PredecessorFacts, SetFacts
from controller.lifecycle.ranges import Ranges, common, in_ranges, numbers_in, union, without
from controller.lifecycle.reports import (
    ResumeRequested,
    SetsRetried,
    SetsStopped,
    SuspendRequested,
    SweepResized,
)
from controller.lifecycle.runs import beginning
from controller.lifecycle.runs.dependencies import facts
from controller.lifecycle.runs.first_state import new_run
from controller.lifecycle.sweeps.begin import MAX_QUEUED
from fairlead.model.beginning import After, Moment, SameJob, When
from fairlead.model.reasons import Reason, RunReason
from fairlead.model.spec import PlannedGroup
from fairlead.model.statuses import AttemptStatus, RunStatus
from fairlead.model.sweep import ParameterSets, SweepPlan
from tests.unit.lifecycle.play import START, Play
from tests.unit.lifecycle.test_sweeps import FAILED, ask, counted, end, sweep

NO_SETS: Ranges = ()


def waiting(
    *after: Predecessor, sets: int = 3, parallel: int | None = None, nodes: int = 1, **policy: Any
) -> Play:
    play = Play()
    ids = (f"made{number}" for number in itertools.count())
    asked = tuple(After(run=one.name, when=one.when, job=one.job) for one in after)
    play.state = new_run(
        name="train",
        user="ada",
        groups=[PlannedGroup(group=Group(name="main", nodes=nodes), spec=JobSpec(image="busybox"))],
        now=play.now,
        new_id=lambda: next(ids),
        policy=RunPolicy(after=asked, **policy),
        after=after,
        sweep=SweepPlan(
            sets=ParameterSets.of(["seed"], [[number] for number in range(sets)]),
            max_parallel=parallel,
        ),
    )
    return play.send()


def prepare(
    when: When = When.DONE, job: SameJob = SameJob.SAME, name: str = "prepare"
) -> Predecessor:
    return Predecessor(run_id=f"id of {name}", name=name, when=when, job=job)


def learns(play: Play, status: RunStatus = RunStatus.RUNNING, **sets: list[int]) -> Play:
    told = SetFacts(**{name: in_ranges(numbers) for name, numbers in sets.items()})
    known = {"id of prepare": PredecessorFacts(status=status, sets=told)}
    play.around = DecisionContext(predecessors=known)
    return play.send()


def begun(play: Play) -> list[int]:
    """Return the sets that have begun and were not lost."""
    return sorted(
        job.replica
        for job in play.state.all_jobs
        if job.attempts[-1].reason is not Reason.DEPENDENCY_FAILED
    )


# -- as one run -----------------------------------------------------------------------------------


def test_a_sweep_waits_for_a_whole_run_and_has_no_job_until_then() -> None:
    play = waiting(prepare(job=SameJob.ALL))
    assert (play.run.status, play.state.jobs) == (RunStatus.PENDING, ())
    assert counted(play) == {"waiting": 3}
    assert beginning.why_waits(play.run) == "after run prepare: waits until it is done"
    learns(play, RunStatus.DONE)
    assert (play.run.status, counted(play)) == (RunStatus.SUBMITTED, {"active": 3})


def test_a_sweep_ends_when_what_it_waits_for_can_no_longer_come() -> None:
    play = learns(waiting(prepare(job=SameJob.ALL)), RunStatus.FAILED)
    assert (play.run.status, play.run.reason) == (RunStatus.FAILED, RunReason.DEPENDENCY_FAILED)
    assert (play.state.jobs, counted(play)) == ((), {"stopped": 3})


def test_a_sweep_begins_at_its_time() -> None:
    play = waiting(begin=Moment(within=60.0, written="1m"))
    assert (play.state.jobs, play.wake_at) == ((), START + 60.0)
    play.wait(60)
    assert counted(play) == {"active": 3}


def test_a_sweep_that_has_begun_goes_on_when_the_clock_is_put_back() -> None:
    play = waiting(begin=Moment(within=60.0, written="1m"), parallel=1).wait(60)
    end(play.wait(-3600), 0)
    assert counted(play) == {"active": 1, "waiting": 1, "done": 1}


def test_a_sweep_that_does_not_run_in_time_is_unschedulable() -> None:
    play = waiting(start_before=Moment(within=60.0, written="1m"))
    play.wait(61)
    assert play.run.reason is RunReason.UNSCHEDULABLE


def test_a_sweep_of_which_one_set_has_ended_did_run_in_time() -> None:
    play = sweep(2, parallel=1, start_before=Moment(within=60.0, written="1m"))
    end(play, 0)
    play.wait(61)
    assert play.run.reason is None


def test_a_sweep_all_of_whose_sets_are_stopped_while_it_waits_ends() -> None:
    play = waiting(prepare(job=SameJob.ALL), sets=2)
    ask(play, SetsStopped, 0, 1)
    assert (play.run.status, counted(play)) == (RunStatus.DONE, {"stopped": 2})


# -- set for set ----------------------------------------------------------------------------------


def test_each_set_begins_after_the_set_with_its_number_in_any_order() -> None:
    play = learns(waiting(prepare(), sets=5), done=[3], over=[3])
    assert begun(play) == [3]
    learns(play, done=[1, 3], over=[1, 3])
    assert begun(play) == [1, 3]
    assert counted(play) == {"waiting": 3, "active": 2}
    learns(play, RunStatus.DONE, done=[0, 1, 2, 3, 4], over=[0, 1, 2, 3, 4])
    assert begun(play) == [0, 1, 2, 3, 4]
    assert play.run.sweep is not None
    assert (play.run.sweep.begun, play.run.sweep.ahead) == (5, ())


def test_max_parallel_holds_for_sets_whose_predecessor_is_done() -> None:
    play = learns(waiting(prepare(), sets=5, parallel=2), done=[1, 2, 4], over=[1, 2, 4])
    assert begun(play) == [1, 2]
    end(play, 1)
    assert begun(play) == [1, 2, 4]


def test_a_set_whose_predecessor_failed_fails_alone() -> None:
    play = learns(waiting(prepare(), sets=2), failed=[1], over=[1])
    assert counted(play) == {"waiting": 1, "failed": 1}
    lost = play.state.jobs[0].attempts[-1]
    assert (lost.status, lost.reason) == (AttemptStatus.FAILED, Reason.DEPENDENCY_FAILED)
    assert str(lost.message).startswith(
        "the same parameter set of run prepare has ended otherwise than"
    )
    learns(play, RunStatus.FAILED, done=[0], failed=[1], over=[0, 1])
    end(play, 0)
    assert (play.run.status, play.run.message) == (RunStatus.FAILED, "1 of 2 parameter sets failed")


def test_what_happens_when_a_stopped_predecessor_loses_more_sets_than_a_turn_ends() -> None:
    play = learns(waiting(prepare(), sets=250), RunStatus.TERMINATED, over=list(range(250)))
    assert counted(play) == {"waiting": 150, "failed": MAX_QUEUED}
    turns = 1
    while play.wake_at is not None:
        assert play.wake_at == play.now
        play.send()
        turns += 1
    assert (turns, play.run.status) == (3, RunStatus.FAILED)
    assert counted(play) == {"failed": 250}


def test_a_set_of_several_nodes_is_lost_as_a_whole() -> None:
    play = learns(waiting(prepare(), sets=2, nodes=2), failed=[0], over=[0])
    reasons = [job.attempts[-1].reason for job in play.state.jobs]
    assert reasons == [Reason.DEPENDENCY_FAILED] * 2
    assert counted(play) == {"waiting": 1, "failed": 1}


def test_a_set_that_was_lost_waits_again_when_both_are_retried() -> None:
    play = learns(waiting(prepare(), sets=2), failed=[1], over=[1])
    ask(play, SetsRetried, 1)
    assert counted(play) == {"waiting": 1, "failed": 1}
    learns(play)  # the user has retried the predecessor's set
    ask(play, SetsRetried, 1)
    assert counted(play) == {"waiting": 2}
    learns(play, done=[1], over=[1])
    assert begun(play) == [1]


def _lost() -> Play:
    """Return a sweep whose predecessor has ended; two of its three sets are lost."""
    play = waiting(prepare(), sets=3)
    return learns(play, RunStatus.FAILED, done=[0], failed=[1], over=[0, 1, 2])


def _instead(play: Play, **fields: Any) -> SetsRetried:
    (before,) = play.run.after
    now = replace(before, run_id="id of its retry", ended=None, met=False, **fields)
    return SetsRetried(run_id=play.run_id, sets=((1, 1),), by="ada", instead=((before, now),))


def test_a_lost_set_waits_for_the_run_in_which_its_predecessor_is_retried() -> None:
    """That run has the second of its sets alone, and as its first."""
    play = learns(
        waiting(prepare(), sets=3), RunStatus.FAILED, done=[0], failed=[1], over=[0, 1, 2]
    )
    assert counted(play) == {"active": 1, "failed": 2}
    request = _instead(play, met_for=((0, 0),), lost_for=((2, 2),), counterparts=((1, 1, 0),))
    play.around = DecisionContext(
        predecessors={"id of its retry": PredecessorFacts(status=RunStatus.RUNNING)}
    )
    play.send(request)
    assert counted(play) == {"active": 1, "failed": 1, "waiting": 1}
    done = PredecessorFacts(
        status=RunStatus.DONE, sets=SetFacts(done=((0, 0),), over=((0, 0),), began=((0, 0),))
    )
    play.around = DecisionContext(predecessors={"id of its retry": done})
    play.send()
    assert begun(play) == [0, 1]


def test_a_retry_that_is_to_wait_for_a_run_of_which_nothing_is_known_changes_nothing() -> None:
    play = learns(
        waiting(prepare(), sets=3), RunStatus.FAILED, done=[0], failed=[1], over=[0, 1, 2]
    )
    before = play.state
    play.around = DecisionContext()
    play.send(_instead(play))
    assert play.state == before


def test_a_retry_that_another_one_has_overtaken_changes_nothing() -> None:
    play = learns(
        waiting(prepare(), sets=3), RunStatus.FAILED, done=[0], failed=[1], over=[0, 1, 2]
    )
    late = _instead(play, counterparts=((1, 1, 0),))
    seen = PredecessorFacts(status=RunStatus.RUNNING)
    play.around = DecisionContext(predecessors={"id of its retry": seen})
    play.send(_instead(play, met_for=((0, 0),), lost_for=((2, 2),), counterparts=((1, 1, 0),)))
    before = play.state
    play.send(late)
    assert play.state == before


def test_a_set_that_has_begun_is_retried_whatever_became_of_its_predecessor() -> None:
    play = learns(waiting(prepare(When.FAILED), sets=2), failed=[0], over=[0])
    end(play, 0, FAILED)
    learns(play, done=[0], over=[0])
    ask(play, SetsRetried, 0)
    assert counted(play) == {"waiting": 1, "active": 1}


def test_all_predecessors_of_a_set_must_have_come() -> None:
    play = waiting(prepare(), prepare(When.ENDED, name="other"), sets=2)
    known = {
        "id of prepare": PredecessorFacts(
            status=RunStatus.RUNNING, sets=SetFacts(done=((0, 1),), over=((0, 1),))
        ),
        "id of other": PredecessorFacts(status=RunStatus.RUNNING, sets=SetFacts(over=((1, 1),))),
    }
    play.around = DecisionContext(predecessors=known)
    assert begun(play.send()) == [1]


def test_a_suspended_sweep_begins_nothing_and_loses_nothing() -> None:
    play = waiting(prepare(), sets=2)
    play.send(SuspendRequested(run_id=play.run_id, abort_running=False, by="ada"))
    learns(play, RunStatus.FAILED, done=[0], failed=[1], over=[0, 1])
    assert (counted(play), play.wake_at) == ({"waiting": 2}, None)
    play.around = DecisionContext()
    play.send(ResumeRequested(run_id=play.run_id, by="ada"))
    assert counted(play) == {"active": 1, "failed": 1}


def test_a_larger_max_parallel_lets_sets_that_came_begin() -> None:
    play = learns(waiting(prepare(), sets=4, parallel=1), done=[1, 2, 3], over=[1, 2, 3])
    play.send(SweepResized(run_id=play.run_id, max_parallel=None, by="ada"))
    assert begun(play) == [1, 2, 3]


def test_a_sweep_says_what_its_sets_wait_for() -> None:
    play = learns(waiting(prepare()), done=[1], over=[1])
    expected = "after run prepare: each set waits until the one with its parameters is done"
    assert beginning.why_waits(play.run) == expected


# -- what is known of a sweep ---------------------------------------------------------------------


def known_of(play: Play) -> SetFacts:
    found = facts(play.state).sets
    assert found is not None
    return found


def test_facts_of_a_sweep_are_the_same_before_and_after_its_sets_leave_the_state() -> None:
    play = sweep(4, parallel=3)
    for at in range(3):
        play.to_running(at)
    play.send(play.exited(0), play.exited(1, FAILED))
    play.clean(0)
    play.clean(1)
    seen = known_of(play)
    assert (seen.done, seen.failed, seen.over) == (((0, 0),), ((1, 1),), ((0, 1),))
    assert seen.began == ((0, 2),)
    end(play, 2)
    assert known_of(play).done == ((0, 0), (2, 2))


def test_a_set_that_waits_for_its_retry_is_not_over() -> None:
    retry = RetryPolicy(on_events=frozenset({RetryEvent.ERROR}), max_failures=3)
    play = sweep(2, retry=retry)
    end(play, 0, FAILED)
    end(play, 0, FAILED)
    assert known_of(play).over == NO_SETS


def test_a_set_that_a_user_retries_is_no_longer_over() -> None:
    play = sweep(3, parallel=1)
    end(play, 0, FAILED)
    assert known_of(play).failed == ((0, 0),)
    ask(play, SetsRetried, 0)
    seen = known_of(play)
    assert (seen.failed, seen.over, seen.began) == (NO_SETS, NO_SETS, ((0, 0),))


def test_sets_that_never_begin_are_over_with_their_run() -> None:
    play = sweep(5, parallel=1)
    ask(play, SetsStopped, 3)
    assert known_of(play).over == ((3, 3),)
    play.send(play.stop())
    seen = known_of(play)
    assert (seen.over, seen.done, seen.failed) == (((0, 4),), NO_SETS, NO_SETS)


def test_a_predecessor_that_ended_is_kept_without_sets_that_nobody_asks_for() -> None:
    play = learns(waiting(prepare(job=SameJob.ALL)), RunStatus.DONE, done=[0, 2], over=[0, 1, 2])
    kept = play.run.after[0].ended
    assert kept is not None
    assert kept.sets is None


# -- ranges ---------------------------------------------------------------------------------------


def test_ranges_count_as_sets_of_numbers_do() -> None:
    subsets = [[at for at in range(4) if number >> at & 1] for number in range(16)]
    for one, other in itertools.product(subsets, repeat=2):
        a, b = in_ranges(one), in_ranges(other)
        assert set(numbers_in(union(a, b))) == {*one, *other}
        assert union(a, b) == in_ranges([*one, *other])
        assert without(a, b) == in_ranges(set(one) - set(other))
        assert common(a, b) == in_ranges(set(one) & set(other))
