"""Jobs of a sweep in the container of another one (docs/rules.md 11.14)."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from controller.lifecycle import outputs
from controller.lifecycle.effects import EffectKind
from controller.lifecycle.model import Attempt, Group, JobSpec, RetryEvent, RetryPolicy
from controller.lifecycle.reports import (
    Carried,
    LeftClean,
    NodeDrained,
    NotReusable,
    Preempted,
    RunnerExited,
    SetsStopped,
)
from controller.lifecycle.sweeps import carrying
from controller.lifecycle.sweeps.sets import counts
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AttemptStatus, OutputsState, RunStatus
from fairlead.model.sweep import ParameterSets, SweepPlan
from fairlead.wire.job import EndSignal
from tests.unit.lifecycle.play import NO_RETRY, Play

FAILED = Reason.CONTAINER_EXITED_WITH_ERROR


def reusing(
    sets: int, *, parallel: int | None = 1, signal: EndSignal | None = None, **policy: Any
) -> Play:
    plan = SweepPlan(
        sets=ParameterSets.of(["seed"], [[number] for number in range(sets)]),
        max_parallel=parallel,
        reuse_container=True,
    )
    groups = [Group(name="main", nodes=1)]
    return Play(sweep=plan, groups=groups, spec=JobSpec(image="busybox", signal=signal), **policy)


def carries(play: Play, number: int = 0) -> Attempt:
    """End this set's own job so that its container may be used again; return its attempt."""
    play.to_running(number)
    play.wait(0.1)
    clean = LeftClean(run_id=play.run_id, attempt_id=play.attempt(number).id)
    play.send(clean, play.exited(number))
    return play.attempt(number)


def riders(play: Play) -> list[Attempt]:
    return [job.attempts[-1] for job in play.state.jobs if job.attempts[-1].carrier]


def of_set(play: Play, number: int) -> Attempt:
    return next(job.attempts[-1] for job in play.state.jobs if job.replica == number)


def told(play: Play, rider: Attempt, **said: Any) -> Carried:
    carrier = rider.carrier or ""
    return Carried(run_id=play.run_id, attempt_id=rider.id, carrier_id=carrier, **said)


def ended(play: Play, rider: Attempt, reason: Reason = Reason.DONE_BY_RUNNER) -> None:
    code = 0 if reason is Reason.DONE_BY_RUNNER else 1
    end = RunnerExited(run_id=play.run_id, attempt_id=rider.id, reason=reason, exit_code=code)
    play.send(told(play, rider, started_at=play.now, stored=True), end)


def test_waiting_sets_ride_in_a_clean_container() -> None:
    play = reusing(5)
    carrier = carries(play)
    assert play.wanted(0)[-1] is EffectKind.RUN_BATCH
    assert [one.carrier for one in riders(play)] == [carrier.id] * 4
    assert counts(play.state).done == 1


def test_no_set_rides_with_a_job_that_left_something() -> None:
    play = reusing(5)
    play.to_running(0)
    play.send(play.exited(0))
    assert riders(play) == []
    assert EffectKind.RUN_BATCH not in play.wanted(0)


def test_a_carried_job_starts_and_ends_in_one_turn() -> None:
    play = reusing(3)
    carrier = carries(play)
    first = riders(play)[0]
    ended(play, first)
    last = of_set(play, 1)
    assert (last.status, last.exit_code) == (AttemptStatus.DONE, 0)
    assert (last.node_id, last.allocation_id) == (carrier.node_id, None)


def test_a_carried_job_is_reached_through_the_runner_of_its_container() -> None:
    play = reusing(3)
    carrier = carries(play)
    rider = riders(play)[0]
    assert rider.task.runner_socket is None
    play.send(told(play, rider, started_at=play.now))
    assert carrier.task.runner_socket is not None
    assert of_set(play, 1).task.runner_socket == carrier.task.runner_socket


def test_what_is_carried_wants_nothing_of_its_node() -> None:
    play = reusing(2)
    carries(play)
    play.send(told(play, riders(play)[0], started_at=play.now))
    assert of_set(play, 1).status is AttemptStatus.RUNNING
    assert play.wanted(1) == ()


def test_the_container_ends_when_no_set_is_left() -> None:
    play = reusing(2)
    carries(play)
    ended(play, riders(play)[0])
    assert play.wanted(0)[-1] is EffectKind.TERMINATE_TASK
    play.clean(0)
    assert play.run.status is RunStatus.DONE


def test_a_job_that_was_given_back_waits_for_room() -> None:
    play = reusing(3)
    carrier = carries(play)
    play.send(NotReusable(run_id=play.run_id, attempt_id=carrier.id))
    for one in riders(play):
        play.send(told(play, one, returned=True))
    assert [of_set(play, n).carrier for n in (1, 2)] == [carrying.HELD] * 2
    play.clean(0)
    assert [of_set(play, n).carrier for n in (1, 2)] == [None, carrying.HELD]


def test_a_lost_container_costs_no_set() -> None:
    play = reusing(3, retry=NO_RETRY)
    carries(play)
    started, waits = riders(play)
    play.send(told(play, started, started_at=play.now))
    play.send(play.seen(0, terminated=True))
    assert of_set(play, 1).reason is Reason.INSTANCE_UNREACHABLE
    assert of_set(play, 2).status is AttemptStatus.SUBMITTED
    assert not of_set(play, 2).carrier
    assert waits.id == of_set(play, 2).id


def test_what_a_former_carrier_says_counts_for_nothing() -> None:
    play = reusing(3)
    carries(play)
    waits = riders(play)[-1]
    play.send(play.seen(0, terminated=True))
    before = play.state
    play.send(told(play, waits, started_at=play.now, stored=True))
    assert play.state is before


def test_a_stopped_set_ends_when_its_runner_has_let_go() -> None:
    play = reusing(3)
    carries(play)
    play.send(SetsStopped(run_id=play.run_id, sets=((2, 2),), by="ada"))
    rider = of_set(play, 2)
    assert (rider.status, rider.reason) == (AttemptStatus.TERMINATING, Reason.ABANDONED)
    play.send(told(play, rider, returned=True))
    assert of_set(play, 2).status is AttemptStatus.TERMINATED


def test_a_preempted_carrier_gives_way() -> None:
    play = reusing(3)
    carrier = carries(play)
    running, waits = riders(play)
    play.send(told(play, running, started_at=play.now))
    play.send(Preempted(run_id=play.run_id, attempt_id=carrier.id, message="by production"))
    assert of_set(play, 1).reason is Reason.PREEMPTED
    assert carrying.is_closed(play.attempt(0), play.now)
    play.send(told(play, waits, returned=True))
    assert of_set(play, 2).carrier == carrying.HELD


def test_a_nominated_place_is_given_back_between_jobs() -> None:
    play = reusing(3)
    carrier = carries(play)
    play.around = replace(play.around, nominated=frozenset({carrier.allocation_id or ""}))
    play.send()
    assert carrying.is_closed(play.attempt(0), play.now)
    assert of_set(play, 1).reason is None


def test_a_drained_node_ends_the_job_that_runs_there() -> None:
    play = reusing(2)
    carrier = carries(play)
    play.send(told(play, riders(play)[0], started_at=play.now))
    node = carrier.node_id or ""
    play.send(NodeDrained(run_id=play.run_id, node_id=node, message="drained"))
    assert of_set(play, 1).reason is Reason.NODE_DRAINED


def test_the_job_that_runs_is_told_of_a_drain_before_it_ends() -> None:
    play = reusing(2, signal=EndSignal(name="SIGUSR1", before=60.0), stop_duration=100.0)
    carrier = carries(play)
    play.send(told(play, riders(play)[0], started_at=play.now))
    deadline = play.now + 90.0
    play.around = replace(play.around, drain_deadlines={carrier.node_id or "": deadline})
    play.send()
    assert of_set(play, 1).signalled == ()
    play.wait(31.0)
    (noted,) = of_set(play, 1).signalled
    assert (noted.cause, noted.ends_at, noted.sent) == (Reason.NODE_DRAINED, deadline, False)
    assert play.attempt(0).signalled == (), "the carrier's own job has ended"


def test_a_container_is_used_for_a_minute() -> None:
    play = reusing(200)
    carries(play)
    play.send(told(play, riders(play)[0], started_at=play.now))
    play.wait(carrying.USED_FOR + 1)
    ended(play, of_set(play, 1))
    assert carrying.is_closed(play.attempt(0), play.now)


def test_no_job_waits_behind_a_long_one() -> None:
    play = reusing(200)
    carries(play)
    first, *others = riders(play)
    play.send(told(play, first, started_at=play.now))
    play.wait(carrying.LONG_JOB + 1)
    play.send(*(told(play, one, returned=True) for one in others))
    assert [one.id for one in riders(play)] == [first.id]


def test_a_failed_job_that_is_retried_has_no_place_of_its_own() -> None:
    retry = RetryPolicy(on_events=frozenset({RetryEvent.ERROR}), max_failures=3)
    play = reusing(2, retry=retry)
    carries(play)
    ended(play, riders(play)[0], FAILED)
    second = of_set(play, 1)
    assert second.number == 1
    assert second.carrier is not None


def test_a_runner_that_does_not_stop_a_job_loses_its_container() -> None:
    play = reusing(2, stop_duration=1.0)
    carries(play)
    play.send(told(play, riders(play)[0], started_at=play.now))
    play.send(SetsStopped(run_id=play.run_id, sets=((1, 1),), by="ada"))
    play.wait(1.0 + carrying.LATE + 1.0)
    assert play.wanted(0)[-1] is EffectKind.TERMINATE_TASK
    # Its node may be silent, and nothing more comes of the time that has passed.
    assert play.wait(1.0).wake_at is None


def test_waiting_in_a_batch_uses_up_no_limit() -> None:
    play = reusing(100, scheduling_timeout=10.0)
    carries(play)
    first = riders(play)[0]
    play.send(told(play, first, started_at=play.now))
    play.wait(30.0)
    assert of_set(play, 5).reason is None


def test_outputs_that_could_not_be_read_are_told_as_lost() -> None:
    play = reusing(2)
    carries(play)
    rider = riders(play)[0]
    end = RunnerExited(
        run_id=play.run_id, attempt_id=rider.id, reason=Reason.DONE_BY_RUNNER, exit_code=0
    )
    play.send(told(play, rider, started_at=play.now, stored=True, outputs_lost=True), end)
    final = of_set(play, 1)
    assert final.status is AttemptStatus.DONE
    assert outputs.state_of(final) is OutputsState.LOST


def test_the_outputs_of_a_job_end_with_its_container() -> None:
    play = reusing(2)
    carries(play)
    rider = riders(play)[0]
    play.send(told(play, rider, started_at=play.now))
    play.send(play.removed(0))
    final = next(one for job in play.state.jobs for one in job.attempts if one.id == rider.id)
    assert outputs.state_of(final) is OutputsState.LOST
