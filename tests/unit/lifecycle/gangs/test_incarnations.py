"""The incarnation machine: its phases follow each other along the printed table alone."""

from __future__ import annotations

from itertools import product

import pytest

from controller.lifecycle.draft import DecisionContext
from controller.lifecycle.gangs.incarnation import PHASE_MOVES, Phase, check_move
from controller.lifecycle.gangs.switching import SWITCHES
from fairlead.model.reasons import SwitchReason
from fairlead.model.statuses import IllegalMove
from tests.unit.lifecycle.gangs.stage import GangPlay, gang
from tests.unit.lifecycle.play import START, Play


@pytest.mark.parametrize(("source", "target"), [*product(Phase, Phase)])
def test_an_incarnation_moves_only_along_its_table(source: Phase, target: Phase) -> None:
    if target in PHASE_MOVES[source]:
        check_move(source, target)
    else:
        with pytest.raises(IllegalMove):
            check_move(source, target)


def test_a_run_without_a_gang_is_in_no_phase() -> None:
    with pytest.raises(IllegalMove):
        check_move(None, Phase.GATHERING)
    assert Play().run.incarnation is None


def test_every_reason_for_a_switch_is_printed() -> None:
    assert {reason for reason, _, _ in SWITCHES} == set(SwitchReason)


def test_the_phases_of_a_life() -> None:
    play = GangPlay(gang(2))
    seen = [play.phase()]
    play.place_waiting()
    seen.append(play.phase())
    play.run_all()
    seen.append(play.phase())
    play.fail(0)
    seen.append(play.phase())
    play.clean_all().run_all().fail(0).clean_all()
    seen.append(play.phase())
    play.send(play.stop())
    seen.append(play.phase())
    assert seen == [
        Phase.GATHERING,
        Phase.GATHERING,
        Phase.WHOLE,
        Phase.STOPPING,
        Phase.WAITING,
        Phase.OVER,
    ]


def test_each_occurrence_of_a_scheduled_gang_is_a_new_incarnation_with_its_first_ranks() -> None:
    play = GangPlay(gang(3, 2), schedule=("0 8 * * *",))
    play.around = DecisionContext(next_trigger=START + 100)
    play.send()
    assert play.phase() is Phase.OVER
    play.around = DecisionContext(next_trigger=START + 200)
    play.wait(100)
    first = play.number
    play.run_all().fail(0).clean_all()
    assert play.ranks() == [None, 1, 0]
    play.send(play.accepted(1), play.seen(1), play.started(1))
    play.send(play.accepted(2), play.seen(2), play.started(2))
    done = [play.exited(n) for n in (1, 2)]
    play.send(*done)
    play.clean_all()
    assert play.run.occurrence >= 1
    assert play.phase() is Phase.OVER
    assert all(play.attempt(n).finished_at is not None for n in range(3))
    play.around = DecisionContext(next_trigger=START + 300)
    play.wait(100)
    assert play.phase() is Phase.GATHERING
    assert play.number == first + 2
    assert play.ranks() == [0, 1, None]
