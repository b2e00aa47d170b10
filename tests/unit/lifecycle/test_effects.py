"""The effects that are wanted at each point of a life."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.lifecycle.effects import EffectKind, wanted
from fairlead.model.reasons import Reason
from tests.unit.lifecycle.asking import Ask
from tests.unit.lifecycle.play import Play

STARTING = (EffectKind.START_JOB, EffectKind.COLLECT_LOGS)


def test_nothing_is_wanted_for_a_job_that_waits_for_a_place() -> None:
    assert Play().wanted() == ()


def test_a_placed_job_is_sent_to_its_shim_until_that_has_it() -> None:
    assert Play().to_provisioning().wanted() == (EffectKind.SUBMIT_TASK,)
    assert Play().to_pulling().wanted() == ()


def test_a_shim_that_asks_for_credentials_again_gets_the_task_again_until_it_has_them() -> None:
    play = Play().to_pulling()
    ask = play.seen(started=False, needs_credentials=True, version=5)
    assert play.send(ask).wanted() == (EffectKind.SUBMIT_TASK,)
    assert play.send(play.seen(started=False, version=4)).wanted() == (EffectKind.SUBMIT_TASK,)
    assert play.send(play.seen(started=False, version=5)).wanted() == ()
    assert play.send(ask).wanted() == (EffectKind.SUBMIT_TASK,)
    assert play.send(play.seen(version=9)).wanted() == STARTING


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_newer_word_about_credentials_in_one_turn_counts(
    order: tuple[int, int],
) -> None:
    def wanted_after(asks: int, has: int) -> tuple[EffectKind, ...]:
        play = Play().to_pulling()
        told = [
            play.seen(started=False, needs_credentials=True, version=asks),
            play.seen(started=False, version=has),
        ]
        return play.send(*(told[at] for at in order)).wanted()

    assert wanted_after(asks=2, has=1) == (EffectKind.SUBMIT_TASK,)
    assert wanted_after(asks=1, has=2) == ()


def test_a_started_container_is_given_its_job_and_its_log_is_followed() -> None:
    assert Play().to_container().wanted() == STARTING


def test_a_running_job_is_followed() -> None:
    expected = (EffectKind.FOLLOW_RUNNER, EffectKind.COLLECT_LOGS)
    assert Play().to_running().wanted() == expected


def test_a_stopped_job_is_asked_first_and_terminated_when_its_grace_is_over() -> None:
    play = Play(stop_duration=30.0).to_running()
    play.send(play.stop())
    assert play.wanted() == (
        EffectKind.COLLECT_LOGS,
        EffectKind.FOLLOW_RUNNER,
        EffectKind.STOP_JOB,
    )
    play.wait(30)
    assert play.wanted() == (EffectKind.COLLECT_LOGS, EffectKind.TERMINATE_TASK)


def test_an_aborted_job_is_terminated_at_once() -> None:
    play = Play().to_running()
    play.send(play.stop(abort=True))
    assert play.wanted() == (EffectKind.COLLECT_LOGS, EffectKind.TERMINATE_TASK)


def test_a_pull_is_cancelled_by_terminating_the_task() -> None:
    play = Play().to_pulling()
    play.send(play.stop())
    assert play.wanted() == (EffectKind.TERMINATE_TASK,)


def test_a_job_that_ended_by_itself_is_left_to_end_its_container() -> None:
    play = Play().to_running()
    play.send(play.exited())
    assert play.wanted() == (EffectKind.COLLECT_LOGS,)
    play.send(play.logs_complete())
    assert play.wanted() == ()


def test_logs_are_read_from_the_shim_before_the_task_is_removed() -> None:
    play = Play().to_running()
    play.send(play.exited()).send(play.seen(terminated=True))
    assert play.wanted() == (EffectKind.COLLECT_LOGS,)
    play.send(play.logs_complete())
    assert play.wanted() == (EffectKind.REMOVE_TASK,)
    play.send(play.removed())
    assert play.wanted() == ()


def test_a_lost_attempt_is_cleaned_up_when_its_node_is_reached_again() -> None:
    play = Play().to_running()
    play.send(play.node_gone())

    def kinds() -> list[EffectKind]:
        return [e.kind for e in wanted(play.state, play.attempt(number=0), play.now)]

    assert kinds() == [EffectKind.TERMINATE_TASK]
    lost_id = play.attempt(number=0).id
    seen = play.seen(terminated=True, reason=Reason.INSTANCE_UNREACHABLE)
    play.send(replace(seen, attempt_id=lost_id))
    assert kinds() == [EffectKind.COLLECT_LOGS]


def test_an_effect_names_its_run_attempt_and_node() -> None:
    play = Play().to_provisioning(node="n7")
    (effect,) = wanted(play.state, play.attempt(), play.now)
    assert (effect.run_id, effect.attempt_id, effect.node_id) == (
        play.run_id,
        play.attempt().id,
        "n7",
    )


def test_a_runner_is_told_that_its_limit_stands_still_while_its_run_is_suspended() -> None:
    play = Play(max_duration=600.0).to_running()
    following = play.wanted()
    ask = Ask(play)
    play.wait(10).send(ask.suspend())
    assert play.wanted() == (*following, EffectKind.SUSPEND_LIMIT)
    play.wait(10).send(ask.resume())
    assert play.wanted() == (*following, EffectKind.RESUME_LIMIT)
    play.wait(10).send(ask.suspend())
    assert play.wanted() == (*following, EffectKind.SUSPEND_LIMIT)


def test_a_runner_without_a_limit_is_told_of_no_suspension() -> None:
    play = Play().to_running()
    before = play.wanted()
    assert play.send(Ask(play).suspend()).wanted() == before


def test_a_job_that_began_after_a_suspension_hears_of_none() -> None:
    play = Play(max_duration=600.0)
    ask = Ask(play)
    play.send(ask.suspend()).wait(10).send(ask.resume()).wait(10).to_running()
    assert play.wanted() == (EffectKind.FOLLOW_RUNNER, EffectKind.COLLECT_LOGS)
