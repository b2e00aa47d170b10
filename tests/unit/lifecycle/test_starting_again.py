"""A running job starts again in its container (docs/rules.md 2.15)."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from controller.lifecycle.effects import EffectKind
from controller.lifecycle.model import RetryEvent, RetryPolicy
from controller.lifecycle.reports import (
    ControllerStarted,
    NodeDrained,
    Preempted,
    StartAgainRefused,
    StartAgainRequested,
    StartedAgain,
    StartEnded,
    SuspendRequested,
    WatcherSeen,
)
from controller.lifecycle.runs.first_state import PlannedJob
from fairlead.model.reasons import Reason
from fairlead.model.spec import JobSpec
from fairlead.model.starts import LEASE_SECONDS, Starts
from fairlead.model.statuses import AttemptStatus, RunStatus
from tests.unit.lifecycle.play import Play

FIRST = JobSpec(image="busybox", commands=("one",))


def running(keeps_for: float | None = 600.0) -> Play:
    plan = [PlannedJob(group="main", replica=0, cookie=0, spec=FIRST)]
    return Play(plan=plan, keeps_for=keeps_for).to_running()


def wish(play: Play, command: str, at: float = 0.0) -> StartAgainRequested:
    return StartAgainRequested(
        run_id=play.run_id,
        attempt_id=play.attempt().id,
        spec=replace(FIRST, commands=(command,)),
        configuration={"commands": [command]},
        by="ada",
        at=at,
    )


def begun(play: Play, number: int) -> StartedAgain:
    return StartedAgain(run_id=play.run_id, attempt_id=play.attempt().id, number=number)


def refused(play: Play, number: int) -> StartAgainRefused:
    ids = {"run_id": play.run_id, "attempt_id": play.attempt().id}
    return StartAgainRefused(**ids, number=number, message="no git")


def test_the_runner_is_asked_until_the_start_has_begun() -> None:
    play = running()
    assert EffectKind.START_AGAIN not in play.wanted()
    play.send(wish(play, "two"))
    assert EffectKind.START_AGAIN in play.wanted()
    assert play.job().spec.commands == ("two",)
    assert play.run.configuration == {"commands": ["two"]}
    play.send(begun(play, 1))
    assert EffectKind.START_AGAIN not in play.wanted()
    assert play.attempt().starts == Starts(asked=1, begun=1)


def test_of_several_requests_in_a_turn_the_newest_counts_whatever_their_order() -> None:
    for turned in (False, True):
        play = running()
        wishes = [wish(play, "two", at=1.0), wish(play, "three", at=2.0)]
        play.send(*(reversed(wishes) if turned else wishes))
        assert play.job().spec.commands == ("three",)
        assert play.attempt().starts == Starts(asked=1)


def test_a_request_that_is_repeated_starts_nothing_more() -> None:
    play = running()
    play.send(wish(play, "two")).send(wish(play, "two", at=9.0))
    assert play.attempt().starts == Starts(asked=1)


def test_a_late_answer_about_an_earlier_start_leaves_the_newer_one_owed() -> None:
    play = running()
    play.send(wish(play, "two")).send(wish(play, "three"))
    play.send(begun(play, 1), refused(play, 1))
    assert play.attempt().starts == Starts(asked=2, begun=1)
    assert EffectKind.START_AGAIN in play.wanted()
    play.send(begun(play, 2)).send(begun(play, 1)).send(refused(play, 2))
    assert play.attempt().starts == Starts(asked=2, begun=2)


def test_a_start_that_is_refused_is_not_asked_for_any_more_but_the_next_one_is() -> None:
    play = running()
    play.send(wish(play, "two")).send(refused(play, 1))
    assert play.attempt().starts == Starts(asked=1, refused="no git")
    assert EffectKind.START_AGAIN not in play.wanted()
    play.send(wish(play, "three"))
    assert EffectKind.START_AGAIN in play.wanted()


def test_the_next_attempt_has_what_was_accepted_last() -> None:
    play = running()
    play.send(wish(play, "two"))
    play.end(0, Reason.PREEMPTED).clean()
    assert play.job().attempts[-1].number == 1
    assert play.job().spec.commands == ("two",)
    assert play.attempt().starts is None


def test_nothing_starts_again_that_does_not_wait_for_it() -> None:
    for play in (
        running(keeps_for=None),
        Play(keeps_for=600.0).to_container(),
        running().send(SuspendRequested(run_id="x", abort_running=False, by="ada")),
    ):
        before = play.job().spec
        play.send(wish(play, "two"))
        assert (play.job().spec, play.attempt().starts) == (before, None)


def test_a_run_that_ends_asks_the_runner_no_more() -> None:
    play = running()
    play.send(wish(play, "two")).send(play.stop())
    assert EffectKind.START_AGAIN not in play.wanted()


def ended(play: Play, number: int, exit_code: int = 0) -> StartEnded:
    reason = Reason.CONTAINER_EXITED_WITH_ERROR if exit_code else Reason.DONE_BY_RUNNER
    return StartEnded(
        run_id=play.run_id,
        attempt_id=play.attempt().id,
        number=number,
        at=play.now,
        reason=reason,
        exit_code=exit_code,
    )


@pytest.mark.parametrize("at", [-1e300, 1e300])
def test_a_start_ends_within_the_life_of_its_attempt_whatever_time_is_told(at: float) -> None:
    play = running()
    play.send(msgspec.structs.replace(ended(play, 0), at=at))
    attempt = play.attempt()
    assert attempt.starts is not None
    assert attempt.starts.ended is not None
    assert attempt.submitted_at <= attempt.starts.ended.at <= play.now


def watcher(play: Play, seconds: float = LEASE_SECONDS, name: str = "here") -> WatcherSeen:
    return WatcherSeen(run_id=play.run_id, watcher=name, until=play.now + seconds, at=play.now)


@pytest.mark.parametrize("number", [0, 1])
def test_a_node_that_is_lost_while_the_container_waits_takes_no_result_along(number: int) -> None:
    play = running()
    if number:
        play.send(wish(play, "two")).send(begun(play, 1))
    play.send(ended(play, number)).send(play.node_gone()).clean()
    attempt = play.attempt()
    assert (attempt.reason, attempt.exit_code) == (Reason.DONE_BY_RUNNER, 0)
    assert attempt.later_reasons == (Reason.INSTANCE_UNREACHABLE,)
    assert play.run.status is RunStatus.DONE


@pytest.mark.parametrize("reason", [Reason.PREEMPTED, Reason.NODE_DRAINED])
def test_a_container_that_is_taken_away_while_it_waits_ends_as_its_last_start(
    reason: Reason,
) -> None:
    play = running()
    play.send(ended(play, 0, exit_code=3))
    if reason is Reason.PREEMPTED:
        ids = {"run_id": play.run_id, "attempt_id": play.attempt().id}
        play.send(Preempted(**ids, message="by another"))
    else:
        play.send(NodeDrained(run_id=play.run_id, node_id="n1", message="its time has come"))
    attempt = play.attempt()
    assert (attempt.reason, attempt.exit_code) == (Reason.CONTAINER_EXITED_WITH_ERROR, 3)
    assert attempt.status is AttemptStatus.TERMINATING


@pytest.mark.parametrize(
    ("told", "exit_code"),
    [("container_exited_with_error", 137), ("out_of_memory", 137), (None, 0), (None, 137)],
)
def test_a_container_that_is_killed_while_it_waits_takes_no_result_along(
    told: str | None, exit_code: int
) -> None:
    play = running()
    play.send(ended(play, 0))
    play.send(play.seen(terminated=True, reason=told, exit_code=exit_code)).clean()
    attempt = play.attempt()
    assert (attempt.reason, attempt.exit_code) == (Reason.DONE_BY_RUNNER, 0)
    assert play.run.status is RunStatus.DONE


def test_a_start_that_runs_or_is_owed_is_interrupted_by_the_loss_of_its_node() -> None:
    for changes in (False, True):
        play = running()
        play.send(ended(play, 0)).send(wish(play, "two"))
        if changes:
            play.send(begun(play, 1))
        play.send(play.node_gone())
        assert play.job().attempts[0].reason is Reason.INSTANCE_UNREACHABLE


def test_the_end_of_a_start_may_be_told_before_its_begin_and_late() -> None:
    play = running()
    play.send(wish(play, "two")).send(ended(play, 1, exit_code=4))
    starts = play.attempt().starts
    assert starts is not None
    assert starts.result is not None
    assert (starts.begun, starts.result.exit_code) == (1, 4)
    play.send(begun(play, 1)).send(ended(play, 0))
    assert play.attempt().starts == starts


def test_an_end_of_a_start_that_nobody_asked_for_is_not_believed() -> None:
    play = running()
    play.send(ended(play, 7))
    assert play.attempt().starts is None
    play.send(replace(ended(play, 0), reason=Reason.INSTANCE_UNREACHABLE, exit_code=0))
    starts = play.attempt().starts
    assert starts is not None
    assert starts.result is not None
    assert starts.result.reason is Reason.CONTAINER_EXITED_WITH_ERROR


def test_a_container_waits_as_long_as_somebody_watches_and_no_longer() -> None:
    play = running()
    play.send(watcher(play)).send(ended(play, 0, exit_code=2))
    play.wait(LEASE_SECONDS - 1).send(watcher(play))
    play.wait(LEASE_SECONDS - 1)
    assert play.attempt().status is AttemptStatus.RUNNING
    play.wait(1)
    attempt = play.attempt()
    assert (attempt.reason, attempt.exit_code) == (Reason.CONTAINER_EXITED_WITH_ERROR, 2)


def test_a_watcher_that_leaves_ends_the_wait_at_once_and_does_not_stop_a_job() -> None:
    play = running()
    play.send(watcher(play)).send(watcher(play, 0.0))
    assert play.attempt().status is AttemptStatus.RUNNING
    play.send(ended(play, 0))
    assert play.attempt().reason is Reason.DONE_BY_RUNNER


def test_one_of_two_watchers_leaves_and_the_container_waits_for_the_other() -> None:
    play = running()
    play.send(watcher(play), watcher(play, name="there")).send(ended(play, 0))
    play.send(watcher(play, 0.0))
    assert play.attempt().status is AttemptStatus.RUNNING
    play.send(watcher(play, 0.0, "there"))
    assert play.attempt().reason is Reason.DONE_BY_RUNNER


def test_a_run_that_no_client_ever_watched_waits_as_its_runner_says() -> None:
    play = running()
    play.send(ended(play, 0)).wait(10 * LEASE_SECONDS)
    assert play.attempt().status is AttemptStatus.RUNNING


def test_while_no_controller_was_there_no_lease_ran_out() -> None:
    play = running()
    play.send(watcher(play)).send(ended(play, 0))
    play.now += 10 * LEASE_SECONDS
    play.send(ControllerStarted(run_id=play.run_id))
    assert play.attempt().status is AttemptStatus.RUNNING
    play.wait(LEASE_SECONDS)
    assert play.attempt().reason is Reason.DONE_BY_RUNNER


def test_the_next_attempt_knows_who_watches() -> None:
    play = running()
    play.send(watcher(play))
    play.end(0, Reason.PREEMPTED).clean()
    starts = play.attempt().starts
    assert starts is not None
    assert starts.watched_until == play.now + LEASE_SECONDS


def test_a_watcher_that_is_seen_between_two_attempts_is_known_to_the_next() -> None:
    retry = RetryPolicy(on_events=frozenset({RetryEvent.ERROR}), max_failures=3)
    plan = [PlannedJob(group="main", replica=0, cookie=0, spec=FIRST)]
    play = Play(plan=plan, keeps_for=600.0, retry=retry)
    for _ in range(2):
        play.to_running().end(0, Reason.CONTAINER_EXITED_WITH_ERROR).clean()
    retry_at = play.job().retry_at
    assert retry_at is not None
    play.send(watcher(play))
    seen_at = play.now
    play.wait(retry_at - play.now)
    starts = play.attempt().starts
    assert play.attempt().number == 2
    assert starts is not None
    assert starts.watched_until == seen_at + LEASE_SECONDS
