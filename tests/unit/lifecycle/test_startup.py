"""`startup_order`: who may start when, and that waiting for one's turn costs nobody anything."""

from __future__ import annotations

import pytest

from controller.lifecycle.attempts.startup import master_of
from controller.lifecycle.effects import EffectKind
from controller.lifecycle.model import RetryEvent, RetryPolicy, StartupOrder
from controller.lifecycle.pending_reasons import NoNodeConnected
from controller.lifecycle.reports import NotPlaced, ScaleRequested
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AttemptStatus
from tests.unit.lifecycle.play import Play, planned

FAILED = Reason.CONTAINER_EXITED_WITH_ERROR
START_JOB = (EffectKind.START_JOB, EffectKind.COLLECT_LOGS)


def _all_in_containers(order: StartupOrder, **policy: object) -> Play:
    play = Play(jobs=3, startup_order=order, **policy)  # type: ignore[arg-type]
    for n in range(3):
        play.to_container(n)
    return play


def _may_start(play: Play) -> list[int]:
    return [n for n in range(len(play.state.jobs)) if play.wanted(n) == START_JOB]


def test_with_any_order_every_job_starts_at_once() -> None:
    assert _may_start(_all_in_containers(StartupOrder.ANY)) == [0, 1, 2]


def test_master_first_lets_the_others_start_once_the_master_runs() -> None:
    play = _all_in_containers(StartupOrder.MASTER_FIRST)
    assert _may_start(play) == [0]
    play.send(play.started(0))
    assert _may_start(play) == [1, 2]


def test_master_first_lets_the_others_start_when_the_master_is_done_already() -> None:
    play = _all_in_containers(StartupOrder.MASTER_FIRST)
    play.send(play.started(0)).send(play.exited(0)).clean(0)
    assert _may_start(play) == [1, 2]


def test_master_first_waits_for_the_masters_next_attempt() -> None:
    retry = RetryPolicy(on_events=frozenset({RetryEvent.ERROR}))
    play = _all_in_containers(StartupOrder.MASTER_FIRST, retry=retry)
    play.send(play.started(0)).send(play.exited(0, FAILED)).clean(0)
    assert _may_start(play) == []
    play.to_running(0)
    assert _may_start(play) == [1, 2]


def test_workers_first_lets_the_master_start_once_all_workers_run() -> None:
    play = _all_in_containers(StartupOrder.WORKERS_FIRST)
    assert _may_start(play) == [1, 2]
    play.send(play.started(1))
    assert _may_start(play) == [2]
    play.send(play.started(2))
    assert _may_start(play) == [0]


@pytest.mark.parametrize("reason", [Reason.DONE_BY_RUNNER, FAILED])
def test_workers_first_waits_for_no_worker_that_is_over(reason: Reason) -> None:
    play = _all_in_containers(StartupOrder.WORKERS_FIRST, max_failed_jobs=1)
    play.send(play.started(1), play.started(2)).send(play.exited(1, reason))
    assert _may_start(play) == [0]


def test_workers_first_waits_for_no_worker_that_was_scaled_away() -> None:
    play = _all_in_containers(StartupOrder.WORKERS_FIRST)
    play.send(play.started(1))
    play.send(ScaleRequested(run_id=play.run_id, group="main", nodes=2, by="ada"))
    assert _may_start(play) == [0]


def test_the_master_is_of_the_first_group() -> None:
    play = Play(plan=[*planned(2, group="head"), *planned(2, group="tail")])
    assert master_of(play.state.jobs) is play.job(0)


def test_waiting_runner_stands_still_while_a_job_waits_for_its_turn() -> None:
    play = _all_in_containers(StartupOrder.MASTER_FIRST)
    play.wait(200)
    play.send(play.started(0)).wait(299)
    assert [play.attempt(n).status for n in (1, 2)] == [AttemptStatus.PULLING] * 2
    play.wait(1)
    assert play.attempt(1).reason is Reason.WAITING_RUNNER_LIMIT_EXCEEDED


def test_the_one_whose_turn_it_is_has_its_limit() -> None:
    play = _all_in_containers(StartupOrder.MASTER_FIRST)
    assert play.wake_at == play.now + 300
    assert play.wait(300).attempt(0).reason is Reason.WAITING_RUNNER_LIMIT_EXCEEDED


def test_a_job_of_its_own_waits_for_its_turn_without_a_place_or_a_limit() -> None:
    play = Play(jobs=2, startup_order=StartupOrder.MASTER_FIRST, scheduling_timeout=60)
    assert play.send().attempt(1).pending_reason is not None
    play.to_provisioning(0).wait(100)
    play.to_running(0)
    looked = NotPlaced(
        run_id=play.run_id, attempt_id=play.attempt(1).id, pending_reason=NoNodeConnected()
    )
    play.send(looked).wait(59)
    assert play.attempt(1).reason is None
    assert play.wait(1).attempt(1).reason is Reason.UNSCHEDULABLE
