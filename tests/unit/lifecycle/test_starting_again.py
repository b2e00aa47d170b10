"""A running job starts again in its container (docs/rules.md 2.15)."""

from __future__ import annotations

from msgspec.structs import replace

from controller.lifecycle.effects import EffectKind
from controller.lifecycle.reports import (
    StartAgainRefused,
    StartAgainRequested,
    StartedAgain,
    SuspendRequested,
)
from controller.lifecycle.runs.submission import PlannedJob
from fairlead.model.reasons import Reason
from fairlead.model.spec import JobSpec
from fairlead.model.starts import Starts
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
