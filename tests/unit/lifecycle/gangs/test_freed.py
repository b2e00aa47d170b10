"""docs/rules.md 5: what a switch frees stays nominated for its run until the gang is whole
again or gives up."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.lifecycle.draft import DecisionContext
from controller.lifecycle.events import EventKind
from controller.lifecycle.gangs import freed
from controller.lifecycle.gangs.incarnation import Phase
from controller.lifecycle.model import Allocation, Group, RetryPolicy
from controller.lifecycle.reports import FreedAllocationLost, GangTooLarge, Placed
from fairlead.model.reasons import Reason, SwitchReason
from fairlead.model.statuses import AllocationState, AttemptStatus, RunStatus
from tests.unit.lifecycle.asking import Ask
from tests.unit.lifecycle.gangs.stage import FAILED, GangPlay, gang


def kept(play: GangPlay) -> list[Allocation]:
    return freed.kept(play.state.allocations)


def nodes(play: GangPlay) -> list[str]:
    return sorted(place.node_id for place in kept(play))


def switching(*failed: int, groups: tuple[Group, ...] = (), **more: object) -> GangPlay:
    """Those ended, and are cleaned up; the others are still being stopped."""
    play = GangPlay(*groups, **more).run_all()  # type: ignore[arg-type]
    play.send(*(play.exited(n, FAILED) for n in failed))
    for n in failed:
        play.clean(n)
    return play


def instead_of(play: GangPlay, n: int, *places: Allocation) -> Placed:
    return replace(play.placed_in(n), instead_of=tuple(place.id for place in places))


# -- kept ------------------------------------------------------------------------------------------


def test_the_room_of_a_rank_that_ended_is_nominated_for_the_run_once_its_place_is_released() -> (
    None
):
    play = GangPlay().run_all().fail(1)
    assert kept(play) == []
    play.clean(1)
    old = play.allocation(1)
    assert old.state is AllocationState.RELEASED
    (place,) = kept(play)
    assert (place.node_id, place.resources, place.gpus) == ("n1", old.resources, old.gpus)
    assert (place.state, place.victims) == (AllocationState.NOMINATED, (old.id,))
    assert play.phase() is Phase.STOPPING
    (event,) = (e for e in play.events if e.cause == "freed by a switch")
    assert (event.kind, event.job_id, event.to_status) == (
        EventKind.ALLOCATION,
        play.job(1).id,
        "nominated",
    )


def test_it_is_kept_while_the_gang_gathers_and_no_longer_than_until_every_rank_is_there() -> None:
    play = switching(1).clean_all()
    assert play.phase() is Phase.GATHERING
    assert nodes(play) == ["n1"]
    play.send(play.placed_in(1, node="n7"))
    assert nodes(play) == ["n1"], "the gang is placed, but not whole"
    for n in range(3):
        play.send(play.accepted(n), play.seen(n))
    assert play.phase() is Phase.WHOLE
    assert kept(play) == []
    assert any(e.cause == "the gang is whole or has given up" for e in play.events)


def test_a_place_of_the_run_uses_it_up() -> None:
    play = switching(1).clean_all()
    play.send(instead_of(play, 1, *kept(play)))
    assert kept(play) == []
    assert play.attempt(1).status is AttemptStatus.PROVISIONING


def test_a_place_that_is_refused_uses_nothing_up() -> None:
    """Half a gang gets no place, whoever hands it in."""
    play = switching(1, 2).clean_all()
    play.send(instead_of(play, 1, *kept(play)))
    assert play.attempt(1).status is AttemptStatus.SUBMITTED
    assert nodes(play) == ["n1", "n2"]


def test_it_is_kept_over_a_wait_and_over_another_switch() -> None:
    play = switching(1).clean_all()
    play.send(play.accepted(0), play.seen(0)).fail(0).clean_all()
    assert play.phase() is Phase.WAITING
    assert nodes(play) == ["n0", "n1"]
    play.wait(15)
    assert (play.phase(), nodes(play)) == (Phase.GATHERING, ["n0", "n1"])


def test_the_place_of_a_rank_that_reserved_jobs_replace_is_kept_for_the_job_that_lost_it() -> None:
    play = switching(1, groups=(gang(4, 3),)).clean_all()
    assert play.ranks() == [0, None, 2, 1]
    assert nodes(play) == ["n1"]
    play.send(instead_of(play, 1, *kept(play)))
    assert kept(play) == []


def test_a_survivor_whose_node_is_away_at_the_restart_keeps_its_room_for_the_run() -> None:
    play = GangPlay().run_all().fail(1)
    play.surround("n2")
    play.clean_all()
    assert play.statuses()[2] is AttemptStatus.SUBMITTED
    assert nodes(play) == ["n1", "n2"]


def test_the_room_on_a_machine_that_was_started_anew_is_kept() -> None:
    play = GangPlay().run_all()
    play.send(play.node_gone("n1", confirmed=True))
    assert play.number == 2
    assert nodes(play) == ["n1"]


def test_the_room_of_a_job_s_first_attempt_is_kept_although_the_job_had_a_second_one() -> None:
    """Another task of the job holds the allocation no more, but its node confirms that late."""
    play = GangPlay(gang(2), Group(name="data", nodes=1)).run_all()
    play.fail(0).clean_all().run_all()
    old = play.allocation(2)
    assert old.taken_over
    play.fail(2).send(play.seen(2, terminated=True)).send(play.logs_complete(2))
    play.send(replace(play.removed(2), allocation_released=False)).wait(60)
    first, second = play.job(2).attempts[-2:]
    assert first.incarnation == second.incarnation
    assert (first.allocation_id, second.allocation_id) == (old.id, None)
    play.fail(1)
    assert play.run.incarnation != second.incarnation
    assert kept(play) == []
    play.release_places()
    assert [place.victims for place in kept(play)] == [(old.id,)]


# -- not kept --------------------------------------------------------------------------------------


def test_where_nothing_can_survive_nothing_is_kept() -> None:
    play = switching(0, 1, 2)
    assert play.phase() is Phase.GATHERING
    assert kept(play) == []


def test_where_nothing_survived_what_was_kept_goes() -> None:
    play = switching(1)
    play.surround("n0", "n2")
    play.clean_all()
    assert play.statuses() == [AttemptStatus.SUBMITTED] * 3
    assert kept(play) == []


def test_a_gang_that_gives_up_keeps_nothing() -> None:
    play = switching(1).clean_all()
    play.send(play.accepted(0), play.accepted(2))
    assert nodes(play) == ["n1"]
    play.wait(600)
    assert play.run.switches[-1].reason == SwitchReason.REINCARNATION_TIMEOUT
    assert kept(play) == []
    play.clean_all()
    assert kept(play) == []


def test_a_gang_that_is_too_large_for_where_it_is_keeps_nothing() -> None:
    play = switching(1).clean_all()
    play.send(GangTooLarge(run_id=play.run_id, message="rack rack has 2 nodes"))
    assert kept(play) == []


@pytest.mark.parametrize("amid", [True, False])
def test_a_suspended_run_keeps_nothing(amid: bool) -> None:
    play = switching(1)
    if not amid:
        play.clean_all()
    play.send(Ask(play).suspend())
    assert kept(play) == []
    play.clean_all()
    assert kept(play) == []


def test_a_run_that_ends_keeps_nothing() -> None:
    play = switching(1).clean_all()
    play.send(play.stop())
    assert kept(play) == []
    play.clean_all()
    assert play.run.status is RunStatus.TERMINATED
    assert all(one.state is AllocationState.RELEASED for one in play.state.allocations)


def test_the_room_of_an_abandoned_rank_goes() -> None:
    play = GangPlay().run_all().fail(1)
    play.send(Ask(play).abandon(1)).clean_all()
    assert kept(play) == []


def test_the_end_of_a_job_that_switches_nothing_keeps_nothing() -> None:
    """It is tried again by itself, at its run's place in the queue."""
    play = GangPlay(gang(3, 2), Group(name="data", nodes=1)).run_all()
    play.fail(2).fail(3).clean_all()
    assert play.number == 1
    assert kept(play) == []


def test_a_place_on_which_another_run_s_nomination_lies_is_not_kept() -> None:
    play = GangPlay().run_all().fail(1, Reason.PREEMPTED)
    play.surround(nominated=(play.allocation(1).id,))
    play.clean_all()
    assert kept(play) == []


def test_a_place_on_a_node_that_drains_is_not_kept() -> None:
    play = GangPlay().run_all().fail(1)
    play.around = DecisionContext(
        unusable_nodes=frozenset({"n1"}), draining_nodes=frozenset({"n1"})
    )
    play.clean_all()
    assert kept(play) == []


def test_a_kept_place_is_lost_with_its_node_alone() -> None:
    play = switching(1, 2).clean_all()
    (lost,) = (one for one in kept(play) if one.node_id == "n1")
    cause = "node n1 takes no more work"
    report = FreedAllocationLost(run_id=play.run_id, allocation_id=lost.id, cause=cause)
    play.send(report)
    assert nodes(play) == ["n2"]
    before = play.state
    assert play.send(report).state is before


def test_a_kept_place_s_loss_says_nothing_about_one_that_is_held() -> None:
    play = GangPlay().run_all()
    before = play.state
    play.send(
        FreedAllocationLost(run_id=play.run_id, allocation_id=play.allocation(1).id, cause="no")
    )
    assert play.state is before


def test_a_gang_without_another_try_keeps_nothing() -> None:
    play = switching(1, retry=RetryPolicy(on_events=frozenset()))
    assert play.run.status is RunStatus.TERMINATING
    assert kept(play) == []
