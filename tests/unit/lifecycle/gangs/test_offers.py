"""A gang is placed whole, in one placement value, or not at all, whoever hands its places in."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.lifecycle.model import Group
from controller.lifecycle.pending_reasons import GangApart, GangInPart, VictimsLeave
from controller.lifecycle.reports import Nominated, Placed
from fairlead.model.statuses import AllocationState, AttemptStatus
from tests.unit.lifecycle.asking import Ask
from tests.unit.lifecycle.gangs.stage import GangPlay, gang

SUBMITTED, PROVISIONING = AttemptStatus.SUBMITTED, AttemptStatus.PROVISIONING


def nominated(play: GangPlay, placed: Placed) -> Nominated:
    return Nominated(
        run_id=play.run_id,
        attempt_id=placed.attempt_id,
        allocation=replace(placed.allocation, state=AllocationState.NOMINATED, victims=("other",)),
        pending_reason=VictimsLeave(count=1),
    )


@pytest.mark.parametrize("some", [(0,), (0, 1), (1, 2)])
def test_places_for_a_part_of_the_ranks_are_given_to_nobody(some: tuple[int, ...]) -> None:
    play = GangPlay()
    play.send(*(play.placed_in(n) for n in some))
    assert play.statuses() == [SUBMITTED] * 3
    assert play.state.allocations == ()
    assert play.attempt(0).pending_reason == GangInPart(found=len(some), waiting=3)
    play.place_waiting()
    assert play.statuses() == [PROVISIONING] * 3


def test_places_under_two_placement_values_are_given_to_nobody() -> None:
    play = GangPlay()
    play.send(play.placed_in(0), play.placed_in(1), play.placed_in(2, placement="other"))
    assert play.statuses() == [SUBMITTED] * 3
    assert play.state.allocations == ()
    assert play.attempt(0).pending_reason == GangApart(values=2)


def test_a_rank_that_is_replaced_goes_where_the_survivors_are_or_nowhere() -> None:
    play = GangPlay().run_all().fail(1).clean_all()
    assert play.statuses() == [PROVISIONING, SUBMITTED, PROVISIONING]
    play.send(play.placed_in(1, placement="other"))
    assert play.attempt(1).status is SUBMITTED
    play.send(play.placed_in(1))
    assert play.attempt(1).status is PROVISIONING


def test_a_plain_group_beside_the_gang_is_placed_with_it() -> None:
    play = GangPlay(gang(2), Group(name="data", nodes=1))
    play.send(play.placed_in(0), play.placed_in(1))
    assert play.statuses() == [SUBMITTED] * 3
    play.place_waiting()
    assert play.statuses() == [PROVISIONING] * 3


def test_a_reserved_job_gets_no_place_before_all_ranks_have_theirs() -> None:
    play = GangPlay(gang(3, 2))
    play.send(play.placed_in(2))
    assert play.statuses() == [SUBMITTED] * 3
    play.send(play.placed_in(0), play.placed_in(2))
    assert play.statuses() == [SUBMITTED] * 3
    play.send(play.placed_in(0), play.placed_in(1), play.placed_in(2))
    assert play.statuses() == [PROVISIONING] * 3


def test_a_rank_that_was_abandoned_meanwhile_is_not_missed() -> None:
    """The places were found before; the others still are all that wait."""
    play = GangPlay()
    offers = [play.placed_in(n) for n in range(3)]
    play.send(Ask(play).abandon(1))
    play.send(*offers)
    assert play.statuses() == [PROVISIONING, AttemptStatus.TERMINATED, PROVISIONING]


def test_nominations_for_a_part_of_the_ranks_are_given_to_nobody() -> None:
    play = GangPlay()
    offers = [play.placed_in(n) for n in range(3)]
    play.send(*(nominated(play, offer) for offer in offers[:2]))
    assert play.places() == [None] * 3
    play.send(*(nominated(play, offer) for offer in offers))
    assert [a.state for a in play.state.allocations] == [AllocationState.NOMINATED] * 3
    play.send(*offers)
    assert play.statuses() == [PROVISIONING] * 3
