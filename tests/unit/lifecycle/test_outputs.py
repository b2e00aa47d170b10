"""Outputs (docs/rules.md 2.14): a task is not removed before they are stored; a loss is said."""

from __future__ import annotations

import pytest

from controller.lifecycle.effects import EffectKind
from controller.lifecycle.events import EventKind
from controller.lifecycle.outputs import sentence, state_of
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AttemptStatus, OutputsState
from tests.unit.lifecycle.play import Play


def ended(reason: Reason = Reason.DONE_BY_RUNNER) -> Play:
    """The container is gone, and the job left something."""
    play = Play().to_running()
    play.end(0, reason)
    return play.send(play.seen(terminated=True, has_outputs=True))


def said(play: Play) -> list[tuple[str | None, str | None]]:
    return [
        (event.to_status, event.message) for event in play.events if event.kind is EventKind.OUTPUTS
    ]


@pytest.mark.parametrize(
    "reason",
    [
        Reason.DONE_BY_RUNNER,
        Reason.CONTAINER_EXITED_WITH_ERROR,
        Reason.MAX_DURATION_EXCEEDED,
    ],
)
def test_however_a_job_ends_its_outputs_are_stored_before_its_task_is_removed(
    reason: Reason,
) -> None:
    play = ended(reason)
    assert play.wanted() == (EffectKind.COLLECT_LOGS, EffectKind.COLLECT_OUTPUTS)
    play.send(play.logs_complete())
    assert play.wanted() == (EffectKind.COLLECT_OUTPUTS,)
    assert state_of(play.attempt()) is OutputsState.COLLECTING
    play.send(play.outputs_collected())
    assert play.wanted() == (EffectKind.REMOVE_TASK,)
    play.send(play.removed())
    assert state_of(play.attempt()) is OutputsState.COLLECTED
    assert said(play) == [
        ("collected", sentence(play.outputs_collected().outputs)),
    ]


def test_an_aborted_and_a_stopped_job_keep_their_outputs_too() -> None:
    for abort in (True, False):
        play = Play().to_running()
        play.send(play.stop(abort=abort))
        play.send(play.seen(terminated=True, has_outputs=True)).send(play.logs_complete())
        assert play.wanted() == (EffectKind.COLLECT_OUTPUTS,)


def test_a_job_that_left_nothing_costs_no_request() -> None:
    play = Play().to_running()
    play.send(play.exited()).send(play.seen(terminated=True)).send(play.logs_complete())
    assert play.wanted() == (EffectKind.REMOVE_TASK,)
    assert state_of(play.attempt()) is OutputsState.NONE


def test_what_is_reported_twice_is_told_once() -> None:
    play = ended()
    play.send(play.outputs_collected()).send(play.outputs_collected())
    assert len(said(play)) == 1


def test_a_node_that_is_lost_takes_the_outputs_with_it_and_the_events_say_so() -> None:
    play = ended()
    play.send(play.node_gone())
    first = play.attempt(number=0)
    assert first.status is AttemptStatus.DONE
    assert state_of(first) is OutputsState.LOST
    assert said(play) == [("lost", "its outputs are lost with its node")]


def test_a_job_that_ran_when_its_node_was_lost_may_have_lost_outputs() -> None:
    play = Play().to_running()
    play.send(play.node_gone())
    first = play.attempt(number=0)
    assert state_of(first) is OutputsState.LOST
    ((status, message),) = said(play)
    assert status == "lost"
    assert message is not None
    assert message.startswith("what it wrote to its output folder is lost")


def test_outputs_of_a_lost_node_that_comes_back_are_stored_after_all() -> None:
    play = ended()
    collected = play.outputs_collected()
    play.send(play.node_gone())
    play.send(collected)
    assert state_of(play.attempt(number=0)) is OutputsState.COLLECTED


def test_what_was_left_out_is_said() -> None:
    play = ended()
    outputs = play.outputs_collected().outputs
    assert sentence(outputs) == (
        "2 files, 30 bytes; left out: 1 file, 5 bytes, which are beyond the limit of outputs or are"
        " no files, folders or links within"
    )
