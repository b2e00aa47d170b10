"""docs/rules.md 3: what is tried again, how often, and after which wait."""

from __future__ import annotations

import pytest

from controller.lifecycle.events import EventKind
from controller.lifecycle.model import RetryEvent, RetryPolicy, StartupOrder
from fairlead.model.reasons import ALLOCATION_LOST, Reason
from fairlead.model.statuses import AllocationState, AttemptStatus, RunStatus
from tests.unit.lifecycle.asking import Ask
from tests.unit.lifecycle.play import START, Play, planned

ERROR = frozenset({RetryEvent.ERROR})
ALL = frozenset(RetryEvent)
FAILED = Reason.CONTAINER_EXITED_WITH_ERROR


def attempts(play: Play, n: int = 0) -> int:
    return len(play.job(n).attempts)


def fail(play: Play, n: int = 0, *, after: float = 0.0) -> Play:
    play.to_running(n)
    play.now += after
    return play.send(play.exited(n, FAILED)).clean(n)


# -- whether --------------------------------------------------------------------------------


def test_by_default_an_error_is_not_tried_again() -> None:
    play = fail(Play())
    assert attempts(play) == 1
    assert play.run.status is RunStatus.FAILED
    assert play.run.reason == "job_failed"


def test_by_default_an_interruption_is_tried_again() -> None:
    play = Play().live_and_end(reason=Reason.PREEMPTED)
    assert attempts(play) == 2
    assert play.attempt().status is AttemptStatus.SUBMITTED
    assert play.run.status is RunStatus.SUBMITTED


def test_max_failures_n_allows_n_retries() -> None:
    play = Play(retry=RetryPolicy(on_events=ERROR, max_failures=2))
    for number in range(2):
        fail(play, after=60)
        assert attempts(play) == number + 2
    fail(play, after=60)
    assert attempts(play) == 3
    assert play.run.reason == "retry_limit_exceeded"
    assert play.attempt().reason is FAILED


def test_errors_without_a_number_are_tried_again_without_end() -> None:
    play = Play(retry=RetryPolicy(on_events=ERROR))
    for _ in range(30):
        fail(play, after=60)
    assert attempts(play) == 31


def test_a_hundred_preemptions_are_forgiven_and_no_more() -> None:
    play = Play()
    for _ in range(100):
        play.to_running().wait(60)
        play.end(0, Reason.PREEMPTED).clean()
    assert attempts(play) == 101
    play.to_running().wait(60)
    play.end(0, Reason.PREEMPTED).clean()
    assert attempts(play) == 101
    assert play.run.reason == "worker_failed"


def test_preemptions_do_not_use_up_the_failures() -> None:
    play = Play(retry=RetryPolicy(on_events=ALL, max_failures=1))
    play.live_and_end(reason=Reason.PREEMPTED)
    fail(play.wait(15), after=60)
    assert attempts(play) == 3


@pytest.mark.parametrize("reason", [Reason.JOB_ABORTED_BY_USER, Reason.NODE_DRAINED])
def test_an_end_without_a_budget_is_never_charged(reason: Reason) -> None:
    play = Play(retry=RetryPolicy(max_preemptions=0))
    for _ in range(3):
        play.to_running().wait(60)
        play.end(0, reason).clean()
    assert attempts(play) == 4


@pytest.mark.parametrize("reason", sorted(ALLOCATION_LOST))
def test_a_place_lost_before_the_container_ran_charges_nothing_and_is_always_replaced(
    reason: Reason,
) -> None:
    play = Play(retry=RetryPolicy(on_events=frozenset(), max_preemptions=0)).to_pulling()
    play.send(play.node_gone(reason=reason, confirmed=True))
    assert play.attempt(number=0).reason is reason
    assert play.attempt().status is AttemptStatus.SUBMITTED


def test_a_place_lost_after_the_container_ran_follows_the_policy() -> None:
    play = Play(retry=RetryPolicy(on_events=frozenset())).to_container()
    play.send(play.node_gone(confirmed=True))
    assert play.run.status is RunStatus.FAILED


def test_no_capacity_is_tried_again_for_the_duration_since_submission() -> None:
    policy = RetryPolicy(on_events=frozenset({RetryEvent.NO_CAPACITY}), duration=20.0)
    play = Play(retry=policy)
    no_capacity = Reason.FAILED_TO_START_DUE_TO_NO_CAPACITY
    play.to_pulling()
    play.end(0, no_capacity).clean()
    assert play.job().retry_at == START + 15
    play.wait(15).to_pulling()
    play.now += 6
    play.end(0, no_capacity).clean()
    assert attempts(play) == 2
    assert play.run.reason == "retry_limit_exceeded"


def test_the_duration_of_other_events_counts_from_the_last_end_of_a_placed_attempt() -> None:
    play = Play(retry=RetryPolicy(on_events=ERROR, duration=10.0))
    for _ in range(5):
        fail(play, after=600)
    assert attempts(play) == 6


def test_the_duration_goes_on_while_no_attempt_gets_a_place() -> None:
    """A job that is ended in the queue has begun nothing anew."""
    interruptions = frozenset({RetryEvent.INTERRUPTION})
    play = Play(retry=RetryPolicy(on_events=interruptions, duration=100.0))
    play.to_running().wait(600.0)
    play.end(0, Reason.PREEMPTED).clean()
    play.wait(60.0).send(Ask(play).abort())
    assert play.attempt().status is AttemptStatus.SUBMITTED
    play.wait(60.0).send(Ask(play).abort())
    assert attempts(play) == 3
    assert play.run.reason == "retry_limit_exceeded"


def test_an_abandoned_job_gets_no_new_attempt() -> None:
    play = Play(jobs=2).to_running(0).to_running(1)
    play.change_job(0, abandoned=True)
    play.end(0, Reason.PREEMPTED).clean(0)
    assert attempts(play, 0) == 1
    assert play.run.status is RunStatus.RUNNING


def test_a_suspended_run_starts_nothing_again() -> None:
    play = Play().to_running().change_run(suspended=True)
    play.end(0, Reason.PREEMPTED).clean().wait(10_000)
    assert attempts(play) == 1
    assert play.run.status is RunStatus.PENDING


# -- waits ----------------------------------------------------------------------------------


def test_short_lives_wait_longer_and_longer() -> None:
    play = Play(retry=RetryPolicy(on_events=ERROR))
    waits = []
    for _ in range(9):
        fail(play)
        retry_at = play.job().retry_at
        waits.append(0.0 if retry_at is None else retry_at - play.now)
        play.wait(waits[-1])
    assert waits == [0, 15, 30, 60, 120, 300, 600, 600, 600]


def test_a_minute_of_running_clears_the_count() -> None:
    play = Play(retry=RetryPolicy(on_events=ERROR))
    fail(fail(play)).wait(15)
    fail(play, after=60)
    assert play.job().retry_at is None
    assert attempts(play) == 4
    fail(play)
    assert play.job().retry_at is None, "the first short life after a long one waits for nothing"


def test_uncharged_lives_wait_too() -> None:
    play = Play()
    play.to_pulling().send(play.node_gone(confirmed=True))
    play.to_pulling().send(play.node_gone(confirmed=True))
    assert play.job().retry_at == START + 15


def test_a_wait_is_told_and_wakes_the_run() -> None:
    play = Play(retry=RetryPolicy(on_events=ERROR))
    fail(fail(play))
    assert play.run.status is RunStatus.PENDING
    assert play.wake_at == START + 15
    assert [e.message for e in play.events if e.kind is EventKind.WAIT] == ["next attempt in 15 s"]
    assert play.wait(14).run.status is RunStatus.PENDING
    assert play.wait(1).run.status is RunStatus.SUBMITTED


@pytest.mark.parametrize(("jitter", "wait"), [(-1.0, 12.0), (0.0, 15.0), (1.0, 18.0)])
def test_a_wait_is_spread_by_a_fifth(jitter: float, wait: float) -> None:
    play = Play(retry=RetryPolicy(on_events=ERROR), jitter=jitter)
    fail(fail(play))
    assert play.job().retry_at == START + wait


def test_a_stop_ends_a_run_that_waits() -> None:
    play = Play(retry=RetryPolicy(on_events=ERROR))
    fail(fail(play)).send(play.stop())
    assert play.run.status is RunStatus.TERMINATED
    assert play.job().retry_at is None
    assert play.wake_at is None


# -- replicas -------------------------------------------------------------------------------


def test_a_failed_job_stops_its_replica_and_all_of_it_is_tried_again_in_place() -> None:
    play = Play(jobs=3, one_replica=True, retry=RetryPolicy(on_events=ERROR))
    for n in range(3):
        play.to_running(n, node=f"n{n}")
    kept = play.allocation(1)
    play.send(play.exited(2)).clean(2)
    play.send(play.exited(0, FAILED))
    assert play.attempt(1).reason is Reason.SIBLING_FAILED
    play.clean(0)
    assert attempts(play, 0) == 1, "the others are not final yet"
    play.clean(1)
    assert [attempts(play, n) for n in range(3)] == [2, 2, 2]
    assert play.attempt(1).status is AttemptStatus.PROVISIONING
    assert play.attempt(1).allocation_id == kept.id
    assert play.attempt(0).status is AttemptStatus.SUBMITTED
    assert play.allocation(0, 0).state is AllocationState.RELEASED
    assert play.allocation(1).state is AllocationState.HELD


@pytest.mark.parametrize("order", [StartupOrder.MASTER_FIRST, StartupOrder.WORKERS_FIRST])
def test_siblings_that_start_in_an_order_give_their_allocations_back(order: StartupOrder) -> None:
    """The job that the others wait for may find no room beside what they hold."""
    play = Play(jobs=2, one_replica=True, startup_order=order, retry=RetryPolicy(on_events=ERROR))
    first, second = (0, 1) if order is StartupOrder.MASTER_FIRST else (1, 0)
    play.to_running(first).to_running(second)
    play.send(play.exited(first, FAILED)).clean(first).clean(second)
    assert [attempts(play, n) for n in (0, 1)] == [2, 2]
    assert play.attempt(second).allocation_id is None
    assert play.allocation(second, 0).state is AllocationState.RELEASED
    assert play.to_running(first).wanted(second) == ()
    assert play.to_running(second).attempt(second).status is AttemptStatus.RUNNING


def test_a_sibling_that_waits_for_a_place_is_tried_again_in_the_same_turn() -> None:
    play = Play(jobs=2, one_replica=True, retry=RetryPolicy(on_events=ERROR))
    fail(play, 1)
    assert [attempts(play, n) for n in (0, 1)] == [2, 2]
    assert play.attempt(0, 0).reason is Reason.SIBLING_FAILED
    assert play.run.status is RunStatus.SUBMITTED


def test_two_failed_jobs_of_a_replica_wait_for_each_other_to_be_final() -> None:
    play = Play(jobs=2, one_replica=True, retry=RetryPolicy(on_events=ERROR))
    play.to_running(0).to_running(1)
    play.send(play.exited(0, FAILED), play.exited(1, FAILED)).clean(1)
    assert [attempts(play, n) for n in (0, 1)] == [1, 1]
    play.clean(0)
    assert [attempts(play, n) for n in (0, 1)] == [2, 2]
    assert play.attempt(0, 0).later_reasons == play.attempt(1, 0).later_reasons == ()


def test_a_job_whose_wait_is_over_waits_on_for_what_ends_of_its_replica_without_asking_again() -> (
    None
):
    play = Play(jobs=2, one_replica=True, retry=RetryPolicy(on_events=ERROR)).to_running(1, "n2")
    for _ in range(2):
        play.to_provisioning(0, "n1").send(play.node_gone("n1", confirmed=True))
    assert play.job(0).retry_at == play.now + 15
    play.send(play.exited(1, FAILED))
    assert play.job(0).retry_at is None
    play.wait(15).clean(1)
    assert [play.job(n).retry_at for n in (0, 1)] == [play.now + 15] * 2
    assert [attempts(play, n) for n in (0, 1)] == [2, 1]
    play.wait(15)
    assert [attempts(play, n) for n in (0, 1)] == [3, 2]


def test_a_failed_job_of_an_independent_group_leaves_the_others_alone() -> None:
    play = Play(jobs=2, retry=RetryPolicy(on_events=ERROR)).to_running(1)
    fail(play, 0)
    assert attempts(play, 0) == 2
    assert play.attempt(1).status is AttemptStatus.RUNNING


def test_a_place_kept_during_a_wait_is_released_when_the_run_ends() -> None:
    play = Play(jobs=2, one_replica=True, retry=RetryPolicy(on_events=ERROR))
    for _ in range(2):
        for n in (0, 1):
            if play.attempt(n).status is AttemptStatus.SUBMITTED:
                play.to_running(n)
            else:
                play.send(play.accepted(n), play.started(n))
        play.send(play.exited(0, FAILED)).clean(0).clean(1)
    assert play.allocation(1).state is AllocationState.HELD
    assert play.job(1).retry_at == START + 15
    play.send(play.stop())
    assert play.allocation(1).releasing
    assert play.run.finished_at is None
    play.release_places()
    assert play.allocation(1).state is AllocationState.RELEASED
    assert play.run.status is RunStatus.TERMINATED


def test_a_place_that_is_lost_during_a_wait_is_not_taken_over() -> None:
    play = Play(jobs=2, one_replica=True, retry=RetryPolicy(on_events=ERROR))
    for n in (0, 1):
        play.to_running(n, node=f"n{n}")
    play.send(play.exited(0, FAILED)).clean(0).clean(1)
    play.to_running(0, node="n0").send(play.accepted(1), play.started(1))
    play.send(play.exited(0, FAILED)).clean(0).clean(1)
    kept = play.allocation(1)
    assert (kept.state, kept.node_id) == (AllocationState.HELD, "n1")
    play.send(play.node_gone("n1")).wait(15.0)
    assert attempts(play, 1) == 3
    assert play.attempt(1).status is AttemptStatus.SUBMITTED
    assert play.attempt(1).allocation_id is None


def test_siblings_that_were_stopped_are_not_charged() -> None:
    play = Play(jobs=2, one_replica=True, retry=RetryPolicy(on_events=ERROR, max_failures=1))
    play.to_running(0).to_running(1).wait(60)
    play.send(play.exited(0, FAILED)).clean(0).clean(1)
    play.to_running(0).send(play.accepted(1), play.started(1)).wait(60)
    play.send(play.exited(1, FAILED)).clean(1).clean(0)
    assert [attempts(play, n) for n in (0, 1)] == [3, 3]


# -- limits of the run ----------------------------------------------------------------------


def test_max_failed_attempts_does_not_count_those_of_slots_that_were_scaled_away() -> None:
    play = Play(jobs=2, retry=RetryPolicy(on_events=ERROR), max_failed_attempts=1)
    fail(play, 1)
    play.send(Ask(play).scale(1))
    fail(play, 0)
    assert play.run.reason is None
    play.wait(60.0)
    fail(play, 0)
    assert play.run.reason == "retry_limit_exceeded"


def test_max_failed_attempts_ends_the_run() -> None:
    retry = RetryPolicy(on_events=ERROR)
    play = Play(plan=planned(2), retry=retry, max_failed_attempts=1)
    fail(play, 0)
    assert play.run.status is RunStatus.SUBMITTED
    fail(play, 1)
    assert play.run.reason == "retry_limit_exceeded"


def test_fail_on_job_restart_ends_the_run_instead_of_a_retry() -> None:
    play = Play(fail_on_job_restart=True).live_and_end(reason=Reason.PREEMPTED)
    assert attempts(play) == 1
    assert play.run.reason == "job_failed"


def test_a_job_whose_container_never_ran_is_no_restart() -> None:
    play = Play(fail_on_job_restart=True).to_pulling()
    play.send(play.node_gone(confirmed=True))
    assert attempts(play) == 2


def test_a_completed_job_is_started_again_when_that_is_asked_for() -> None:
    play = Play(restart_completed_jobs=True).live_and_end()
    assert attempts(play) == 2
    assert play.run.status is RunStatus.SUBMITTED
