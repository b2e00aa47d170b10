"""docs/rules.md 5: which places and ranks survive a switch, and when a gang queues whole."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from controller.lifecycle.effects import EffectKind, releases
from controller.lifecycle.gangs.incarnation import Phase
from controller.lifecycle.membership import ranks
from controller.lifecycle.model import Group, RetryEvent, RetryPolicy, RunState
from controller.lifecycle.reports import AllocationReleased, GangTooLarge
from fairlead.model.reasons import Reason, SwitchReason
from fairlead.model.statuses import AllocationState, AttemptStatus, RunStatus
from tests.unit.lifecycle.gangs.stage import FAILED, GangPlay, gang
from tests.unit.lifecycle.play import START

CHANGED = Reason.INCARNATION_CHANGED


def test_survivors_start_again_in_the_same_place_and_the_culprit_needs_a_new_one() -> None:
    play = GangPlay().run_all()
    before = {a.id: a for a in play.state.allocations}
    old = play.places()
    play.fail(1).clean_all()
    assert [play.places()[0], play.places()[2]] == [old[0], old[2]]
    assert play.statuses() == [
        AttemptStatus.PROVISIONING,
        AttemptStatus.SUBMITTED,
        AttemptStatus.PROVISIONING,
    ]
    kept = play.allocation(0)
    assert (kept.node_id, kept.gpus) == (before[kept.id].node_id, before[kept.id].gpus)
    assert play.allocation(1, 0).state is AllocationState.RELEASED


def test_the_scheduler_is_told_who_waits_and_where_the_survivors_are() -> None:
    play = GangPlay(gang(4, 3))
    assert len(ranks.waiting_ranked(play.state)) == 3
    assert [a.id for a in ranks.waiting_reserved(play.state)] == [play.attempt(3).id]
    assert not ranks.ranked_hold_allocations(play.run, play.state.jobs)
    assert ranks.anchors(play.state) == []
    play.run_all().fail(1).clean_all()
    assert ranks.waiting_ranked(play.state) == []
    assert [a.id for a in ranks.waiting_reserved(play.state)] == [play.attempt(1).id]
    play.run_all().fail(0)
    play.surround("n3")
    play.clean_all().wait(15)
    assert [a.rank for a in ranks.waiting_ranked(play.state)] == [1]
    assert not ranks.ranked_hold_allocations(play.run, play.state.jobs)
    assert [a.placement for a in ranks.anchors(play.state)] == ["rack"] * 2


def test_a_place_on_a_node_that_is_not_healthy_does_not_survive() -> None:
    play = GangPlay().run_all().fail(1)
    play.surround("n0")
    play.clean(0).clean(1).clean(2)
    assert play.attempt(0).status is AttemptStatus.SUBMITTED
    assert play.allocation(0, 0).state is AllocationState.HELD
    assert play.allocation(0, 0).releasing
    assert play.attempt(2).status is AttemptStatus.PROVISIONING
    play.release_places()
    assert play.allocation(0, 0).state is AllocationState.RELEASED


def test_a_place_with_a_nomination_on_it_does_not_survive() -> None:
    play = GangPlay().run_all().fail(1)
    play.surround(nominated=(play.allocation(2).id,))
    play.clean_all()
    assert play.attempt(2).status is AttemptStatus.SUBMITTED
    assert play.attempt(0).status is AttemptStatus.PROVISIONING


def test_a_place_whose_gpu_is_broken_does_not_survive() -> None:
    play = GangPlay().run_all().fail(1)
    play.surround(broken_allocations=(play.allocation(2).id,))
    play.clean_all()
    assert play.attempt(2).status is AttemptStatus.SUBMITTED


def test_a_link_that_is_just_being_made_again_is_waited_for() -> None:
    play = GangPlay().run_all().fail(1)
    play.surround(undecided_nodes=("n2",))
    play.clean_all()
    assert play.phase() is Phase.WAITING
    assert play.wake_at == play.now + 1
    play.surround()
    play.wait(1)
    assert play.attempt(2).status is AttemptStatus.PROVISIONING


def test_a_link_that_stays_down_is_not_waited_for_for_ever() -> None:
    play = GangPlay().run_all().fail(1)
    play.surround(undecided_nodes=("n2",))
    play.clean_all()
    play.surround("n2")
    play.wait(1)
    assert play.attempt(2).status is AttemptStatus.SUBMITTED
    assert play.attempt(0).status is AttemptStatus.PROVISIONING


def test_an_attempt_that_ended_by_itself_during_the_switch_keeps_what_it_had() -> None:
    """The first reason wins: it ended `incarnation_changed`."""
    play = GangPlay().run_all().fail(1)
    play.send(play.exited(2, FAILED))
    play.clean_all()
    assert play.attempt(2).status is AttemptStatus.PROVISIONING


def test_a_place_lost_while_the_gang_waits_does_not_survive() -> None:
    play = GangPlay()
    for _ in range(2):
        play.run_all().fail(1).clean_all()
    assert play.phase() is Phase.WAITING
    play.send(play.node_gone("n0"))
    assert play.allocation(0).state is AllocationState.ORPHANED
    play.wait(15)
    assert play.statuses()[0] is AttemptStatus.SUBMITTED
    assert play.statuses()[2] is AttemptStatus.PROVISIONING


# -- ranks ----------------------------------------------------------------------------------


def test_a_ranked_job_whose_allocation_survived_keeps_its_rank() -> None:
    play = GangPlay().run_all().fail(1).clean_all()
    assert play.ranks() == [0, 1, 2]
    assert [play.attempt(n).rank for n in range(3)] == [0, 1, 2]


def test_lost_ranks_go_to_reserved_survivors_by_cookie() -> None:
    play = GangPlay(gang(5, 3)).place_waiting().run_all().fail(1).clean_all()
    assert play.ranks() == [0, None, 2, 1, None]
    assert play.attempt(3).status is AttemptStatus.PROVISIONING
    assert play.attempt(1).status is AttemptStatus.SUBMITTED
    assert ranks.ranked_hold_allocations(play.run, play.state.jobs)
    assert [a.id for a in ranks.waiting_reserved(play.state)] == [play.attempt(1).id]


def test_a_reserved_job_under_another_placement_value_inherits_no_rank() -> None:
    play = GangPlay(gang(4, 3))
    play.send(*(play.placed_in(n) for n in range(3)))
    play.send(play.placed_in(3, placement="elsewhere"))
    play.run_all().fail(1).clean_all()
    assert play.ranks() == [0, 1, 2, None]


@pytest.mark.parametrize(("lost", "ranked"), [(0, [None, 1, 2, 0]), (2, [0, 1, None, 2])])
def test_an_abandoned_rank_stays_with_its_job_and_is_counted(
    lost: int, ranked: list[int | None]
) -> None:
    play = GangPlay(gang(4, 3)).run_all().change_job(1, abandoned=True)
    assert isinstance(play, GangPlay)
    play.fail(1).clean_all()
    assert play.number == 1
    play.fail(lost).clean_all()
    assert play.number == 2
    assert play.ranks() == ranked
    assert len(play.job(1).attempts) == 1
    assert ranks.ranked_hold_allocations(play.run, play.state.jobs)


# -- not whole in time ----------------------------------------------------------------------


def test_a_gang_that_is_not_whole_in_time_queues_whole() -> None:
    play = GangPlay().run_all().fail(1).clean_all()
    assert play.phase() is Phase.GATHERING
    play.send(play.accepted(0), play.seen(0), play.accepted(2), play.seen(2))
    play.wait(599)
    assert play.number == 2
    play.wait(1)
    assert play.number == 3
    assert play.run.switches[-1].reason == SwitchReason.REINCARNATION_TIMEOUT
    assert play.run.switches[-1].whole
    assert play.reasons() == [CHANGED] * 3
    play.clean_all()
    assert all(a.state is AllocationState.RELEASED for a in play.state.allocations)
    play.wait(15)
    assert play.statuses() == [AttemptStatus.SUBMITTED] * 3


def test_queueing_whole_is_uncharged() -> None:
    once = RetryPolicy(on_events=frozenset({RetryEvent.ERROR}), max_failures=1)
    play = GangPlay(retry=once).run_all().fail(1).clean_all()
    play.send(play.accepted(0), play.accepted(2))
    for _ in range(3):
        play.wait(600)
        play.clean_all().wait(600)
        play.send(*(play.placed_in(n) for n in range(3)))
        play.send(*(play.accepted(n) for n in range(3)))
    assert play.number == 5
    assert play.run.status is not RunStatus.TERMINATING


def test_the_timeout_counts_from_the_first_placement_not_from_the_queue() -> None:
    play = GangPlay()
    play.wait(5000)
    assert play.wake_at is None
    play.place_waiting()
    for n in (0, 1):
        play.send(play.accepted(n), play.seen(n, started=False, creating=True))
    play.send(play.accepted(2))
    play.wait(600)
    assert play.run.switches[-1].reason == SwitchReason.REINCARNATION_TIMEOUT


def pulling(play: GangPlay, n: int, pulled: int) -> GangPlay:
    play.send(play.seen(n, started=False, progress=pulled, version=pulled))
    return play


def begun() -> GangPlay:
    """All placed, two run, the third pulls a large image."""
    play = GangPlay().place_waiting()
    for n in (0, 1):
        play.send(play.accepted(n), play.seen(n), play.started(n))
    play.send(play.accepted(2), play.seen(2, started=False))
    return play


def test_a_gang_whose_pull_goes_on_is_waited_for_however_long_it_takes() -> None:
    play = begun()
    for n in range(1, 20):
        play.wait(300)
        pulling(play, 2, n << 30)
    assert (play.number, play.phase()) == (1, Phase.GATHERING)
    assert play.wake_at == play.now + 600
    play.send(play.seen(2))
    assert play.phase() is Phase.WHOLE


def test_a_pull_that_stands_still_is_not_waited_for() -> None:
    play = begun()
    play.wait(300)
    pulling(play, 2, 5 << 30)
    for _ in range(6):
        play.wait(99)
        pulling(play, 2, 5 << 30)
    assert play.number == 1
    play.wait(6)
    assert play.run.switches[-1].reason == SwitchReason.REINCARNATION_TIMEOUT
    assert play.run.switches[-1].message == (
        "not whole, and no progress for 600 s: 2 of 3 ranks are there: train/2 pulls its image"
    )


def test_a_shim_that_was_started_anew_and_pulls_from_the_beginning_comes_further() -> None:
    play = begun()
    pulling(play, 2, 5 << 30).wait(590)
    pulling(play, 2, 1 << 20).wait(590)
    assert play.number == 1


def test_the_placement_of_a_rank_is_progress_too() -> None:
    play = GangPlay().run_all().fail(1).clean_all()
    for n in (0, 2):
        play.send(play.accepted(n), play.seen(n, started=False, creating=True))
    play.wait(500).send(play.placed_in(1)).send(play.accepted(1))
    play.wait(599)
    assert play.number == 2
    play.wait(1)
    assert play.number == 3


def test_bytes_are_noted_only_as_often_as_the_timeout_needs() -> None:
    """They come twice a second, from every rank, and each note is a commit."""
    play = begun()
    noted = 0
    for n in range(1, 241):
        before = play.state
        play.now += 0.5
        pulling(play, 2, n << 20)
        noted += play.state is not before
    assert noted == 4


def test_the_pull_of_a_reserved_job_is_nobody_s_progress() -> None:
    play = GangPlay(gang(3, 2)).place_waiting()
    play.send(*(play.seen(n, started=False) for n in range(3)))
    before = play.state
    assert pulling(play, 2, 1 << 30).state is before


def test_there_means_that_the_shim_reported_creating_or_later() -> None:
    play = GangPlay().place_waiting()
    for n in range(3):
        play.send(play.accepted(n))
        assert play.phase() is Phase.GATHERING
        play.send(play.seen(n, started=False, creating=True))
    assert play.phase() is Phase.WHOLE
    play.wait(1000)
    assert play.number == 1


def test_a_plain_job_that_is_replaced_makes_the_gang_no_less_whole() -> None:
    play = GangPlay(gang(2), Group(name="data", nodes=1)).run_all()
    play.wait(700).send(play.node_gone("n2"))
    assert play.attempt(2).number == 1
    assert play.phase() is Phase.WHOLE
    assert play.number == 1


def test_reserved_jobs_are_not_waited_for() -> None:
    play = GangPlay(gang(3, 2))
    play.send(*(play.placed_in(n) for n in range(2)))
    for n in range(2):
        play.send(play.accepted(n), play.seen(n))
    assert play.phase() is Phase.WHOLE


def test_a_placement_value_that_cannot_hold_the_gang_makes_it_queue_whole() -> None:
    play = GangPlay().run_all().fail(1).clean_all()
    play.send(GangTooLarge(run_id=play.run_id, message="rack rack has 2 nodes"))
    assert play.number == 3
    switch = play.run.switches[-1]
    assert (switch.reason, switch.whole) == (SwitchReason.PLACEMENT_TOO_SMALL, True)
    assert switch.message == "rack rack has 2 nodes"


def test_a_gang_that_was_whole_is_not_ended_for_a_plain_job_that_finds_no_room() -> None:
    play = GangPlay(gang(2), Group(name="data", nodes=1)).run_all()
    play.wait(100).send(play.node_gone("n2"))
    before = play.state
    play.send(GangTooLarge(run_id=play.run_id, message="rack rack has 2 nodes"))
    assert play.state is before


def test_a_gang_without_places_is_never_too_large_for_them() -> None:
    play = GangPlay()
    before = play.state
    play.send(GangTooLarge(run_id=play.run_id, message="late"))
    assert play.state is before


def test_when_no_place_survived_the_gang_queues_whole() -> None:
    play = GangPlay().run_all().fail(1)
    play.surround("n0", "n2")
    play.clean_all()
    assert play.statuses() == [AttemptStatus.SUBMITTED] * 3
    assert ranks.anchors(play.state) == []


def test_a_gang_that_ends_for_no_capacity_queues_whole_after_fifteen_seconds() -> None:
    every = RetryPolicy(on_events=frozenset(RetryEvent))
    play = GangPlay(retry=every).place_waiting()
    no_capacity = Reason.FAILED_TO_START_DUE_TO_NO_CAPACITY
    play.send(play.accepted(1))
    play.end(1, no_capacity)
    play.clean_all()
    assert play.run.switches[0].whole
    assert play.wake_at == START + 15
    assert all(a.state is AllocationState.RELEASED for a in play.state.allocations)


# -- the node's side ------------------------------------------------------------------------


def test_a_place_that_survives_is_never_released_on_its_shim() -> None:
    play = GangPlay().run_all().fail(1)
    play.send(play.seen(0, terminated=True)).send(play.logs_complete(0))
    assert play.removed(0).allocation_released is False
    assert play.removed(1).allocation_released is True
    play.clean_all()
    assert releases(play.state) == {}


def test_a_kept_place_is_released_by_an_effect_of_its_own_and_the_run_waits_for_it() -> None:
    play = GangPlay()
    for _ in range(2):
        play.run_all().fail(1).clean_all()
    play.send(play.stop())
    wanted = releases(play.state)
    assert [effect.kind for effect in wanted.values()] == [EffectKind.RELEASE_ALLOCATION] * 2
    assert {effect.node_id for effect in wanted.values()} == {"n0", "n2"}
    going = [a for a in play.state.allocations if a.releasing]
    first = AllocationReleased(run_id=play.run_id, allocation_id=going[0].id)
    assert play.send(first).run.finished_at is None
    play.release_places()
    assert play.run.status is RunStatus.TERMINATED
    assert releases(play.state) == {}


def test_a_kept_place_on_a_lost_node_is_orphaned_until_its_shim_lets_go() -> None:
    play = GangPlay()
    for _ in range(2):
        play.run_all().fail(1).clean_all()
    play.send(play.stop(), play.node_gone("n0")).release_places()
    assert play.allocation(2).state is AllocationState.RELEASED


def test_only_its_shim_can_free_a_place_that_was_taken_over() -> None:
    """The new attempt's task was not there yet, so its absence says nothing about the place."""
    play = GangPlay().run_all().fail(1).clean_all()
    play.send(play.node_gone("n0", confirmed=True))
    assert play.allocation(0, 0).releasing
    assert play.allocation(0, 0).released_at is None
    play.release_places()
    assert play.allocation(0, 0).state is AllocationState.RELEASED


def test_a_taken_over_place_of_a_lost_node_stays_orphaned_until_its_shim_lets_go() -> None:
    play = GangPlay().run_all().fail(1).clean_all()
    place = play.allocation(0).id
    play.send(play.node_gone("n0")).send(play.node_gone("n0", confirmed=True))
    (orphaned,) = [a for a in play.state.allocations if a.id == place]
    assert (orphaned.state, orphaned.releasing) == (AllocationState.ORPHANED, True)
    play.release_places()
    (freed,) = [a for a in play.state.allocations if a.id == place]
    assert freed.state is AllocationState.RELEASED


def test_an_admin_who_gives_a_node_up_frees_the_places_that_were_kept_there() -> None:
    play = GangPlay()
    for _ in range(2):
        play.run_all().fail(1).clean_all()
    gone = msgspec.structs.replace(play.node_gone("n0", confirmed=True), removed=True)
    play.send(gone)
    assert play.allocation(0).state is AllocationState.RELEASED


def test_a_word_about_a_place_that_is_needed_changes_nothing() -> None:
    play = GangPlay().run_all()
    before = play.state
    play.send(AllocationReleased(run_id=play.run_id, allocation_id=play.allocation(0).id))
    assert play.state is before


def test_an_orphaned_kept_place_of_an_ended_run_is_still_asked_for() -> None:
    play = GangPlay()
    for _ in range(2):
        play.run_all().fail(1).clean_all()
    play.send(play.node_gone("n0")).send(play.stop())
    going = [a for a in play.state.allocations if a.releasing and a.node_id == "n2"]
    play.send(*(AllocationReleased(run_id=play.run_id, allocation_id=a.id) for a in going))
    assert play.run.status is RunStatus.TERMINATED
    assert play.allocation(0).state is AllocationState.ORPHANED
    assert [effect.node_id for effect in releases(play.state).values()] == ["n0"]
    play.release_places()
    assert play.allocation(0).state is AllocationState.RELEASED


# -- monitoring_descriptor ------------------------------------------------------------------


def test_a_monitoring_descriptor_is_random_per_allocation_and_kept_with_it() -> None:
    play = GangPlay().run_all()
    names = [play.allocation(n).monitoring_descriptor for n in range(3)]
    assert len(set(names)) == 3
    play.fail(1).clean_all().place_waiting()
    assert play.allocation(0).monitoring_descriptor == names[0]
    assert play.allocation(1).monitoring_descriptor not in names


def test_by_rank_the_descriptor_follows_the_rank() -> None:
    group = gang(3, 2, monitoring_by_rank=True)
    play = GangPlay(Group(name="data", nodes=1), group).run_all()
    run_id = play.run_id
    by_rank = [play.allocation(n).monitoring_descriptor for n in range(1, 4)]
    assert by_rank[:2] == [f"{run_id}/1", f"{run_id}/3"]
    assert not (by_rank[2] or "").startswith(f"{run_id}/")
    play.fail(2).clean_all()
    assert play.ranks()[3] == 1
    assert play.allocation(3).monitoring_descriptor == f"{run_id}/3"


# -- starting -------------------------------------------------------------------------------


def test_no_rank_is_started_before_all_have_their_places() -> None:
    play = GangPlay().run_all().fail(1).clean_all()
    play.send(play.accepted(0), play.seen(0), play.accepted(2))
    assert play.wanted(0) == ()
    play.wait(400)
    assert play.attempt(0).reason is None, "its start limit stands still meanwhile"
    play.place_waiting()
    assert play.wanted(0)[0] is EffectKind.START_JOB


def test_two_states_of_a_gang_are_equal_when_nothing_happened() -> None:
    play = GangPlay().run_all()
    before: RunState = play.state
    play.send()
    assert play.state is before
    assert replace(before) == before
