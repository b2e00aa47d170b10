"""docs/rules.md 5 where two of its sentences meet: switches amid requests, drains, waits."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.lifecycle.draft import DecisionContext
from controller.lifecycle.gangs.incarnation import Phase
from controller.lifecycle.membership import ranks
from controller.lifecycle.model import Group, RetryEvent, RetryPolicy
from controller.lifecycle.pending_reasons import VictimsLeave
from controller.lifecycle.reports import NodeDrained, Nominated, Preempted, Report
from fairlead.model.reasons import Reason, SwitchReason
from fairlead.model.statuses import AllocationState, AttemptStatus, RunStatus
from tests.unit.lifecycle.asking import Ask
from tests.unit.lifecycle.gangs.stage import FAILED, GangPlay, gang
from tests.unit.lifecycle.play import START

CHANGED = Reason.INCARNATION_CHANGED
SUBMITTED, PROVISIONING = AttemptStatus.SUBMITTED, AttemptStatus.PROVISIONING


def waiting_gang() -> GangPlay:
    """Twice failed by its second job: nothing lives, the others' places are kept for 15 s."""
    play = GangPlay()
    for _ in range(2):
        play.run_all().fail(1).clean_all()
    assert play.phase() is Phase.WAITING
    return play


# -- restored from a backup -----------------------------------------------------------------


def test_a_gang_restored_to_before_a_switch_begins_anew_when_its_shims_tell_of_it() -> None:
    play = GangPlay().run_all()
    play.send(*(play.seen(n, terminated=True, reason=CHANGED) for n in range(3)))
    assert play.reasons() == [Reason.INSTANCE_UNREACHABLE] * 3
    assert play.run.switches[-1].reason == SwitchReason.JOB_ABORTED
    play.clean_all().wait(60)
    assert play.statuses() == [SUBMITTED] * 3


# -- abandoned ranks ------------------------------------------------------------------------


def test_the_kept_place_of_a_rank_abandoned_during_the_wait_goes_back() -> None:
    play = waiting_gang()
    play.send(Ask(play).abandon(0)).release_places()
    assert play.allocation(0).state is AllocationState.RELEASED
    play.wait(15)
    assert len(play.job(0).attempts) == 2
    assert (play.attempt(1).status, play.attempt(2).status) == (SUBMITTED, PROVISIONING)


def test_the_place_of_a_rank_abandoned_in_the_middle_of_a_switch_goes_back() -> None:
    play = GangPlay().run_all().fail(1)
    play.send(Ask(play).abandon(2)).clean_all()
    assert play.attempt(2).reason is CHANGED
    assert play.allocation(2).state is AllocationState.RELEASED
    assert play.attempt(0).status is PROVISIONING


def test_the_place_of_a_done_rank_that_is_abandoned_goes_back() -> None:
    play = GangPlay().run_all().fail(0, Reason.DONE_BY_RUNNER).clean_all()
    assert play.allocation(0).state is AllocationState.HELD
    play.send(Ask(play).abandon(0)).release_places()
    assert play.allocation(0).state is AllocationState.RELEASED


def test_a_rank_abandoned_before_it_was_there_is_not_waited_for() -> None:
    play = GangPlay().place_waiting()
    for n in (0, 2):
        play.send(play.accepted(n), play.seen(n), play.started(n))
    play.send(Ask(play).abandon(1)).clean(1)
    assert play.phase() is Phase.WHOLE
    play.wait(601)
    assert play.number == 1


def test_a_gang_whose_last_ranks_are_abandoned_during_the_wait_is_done() -> None:
    play = GangPlay(gang(4, 3)).run_all().fail(1).clean_all().run_all().fail(3).clean_all()
    assert (play.phase(), play.ranks()) == (Phase.WAITING, [0, None, 2, 1])
    ask = Ask(play)
    play.send(*(ask.abandon(n) for n in (0, 2, 3))).release_places()
    assert play.run.status is RunStatus.DONE


# -- suspended ------------------------------------------------------------------------------


def test_the_time_of_a_suspension_does_not_count_to_reincarnation_timeout() -> None:
    play = GangPlay().place_waiting()
    play.send(*(play.accepted(n) for n in range(3)))
    play.wait(500).send(Ask(play).suspend())
    play.wait(5000).send(Ask(play).resume())
    assert play.number == 1
    play.wait(599)
    assert play.number == 1
    play.wait(1)
    assert play.run.switches[-1].reason == SwitchReason.REINCARNATION_TIMEOUT


def test_suspended_in_the_middle_of_a_switch_it_gives_its_places_back() -> None:
    """Nobody knows for how long: others may use them. It queues whole when it is resumed."""
    play = GangPlay().run_all().fail(1)
    play.send(Ask(play).suspend()).clean_all()
    assert play.run.status is RunStatus.PENDING
    assert play.statuses()[0] is AttemptStatus.ABORTED
    assert all(a.state is AllocationState.RELEASED for a in play.state.allocations)
    play.wait(3600)
    assert play.number == 2
    assert len(play.job(0).attempts) == 1
    play.send(Ask(play).resume())
    assert play.statuses() == [SUBMITTED] * 3
    assert play.number == 2


def test_suspended_during_the_wait_it_gives_its_places_back_and_waits_anew_when_resumed() -> None:
    play = waiting_gang()
    play.send(Ask(play).suspend()).release_places()
    assert all(a.state is AllocationState.RELEASED for a in play.state.allocations)
    play.wait(3600)
    assert play.phase() is Phase.WAITING
    play.send(Ask(play).resume())
    assert play.phase() is Phase.WAITING
    assert play.wake_at == play.now + 15
    play.wait(15)
    assert play.statuses() == [SUBMITTED] * 3


def test_resumed_before_the_nodes_let_go_its_places_are_lost_all_the_same() -> None:
    """Their shims may be letting go of them just now."""
    play = waiting_gang()
    ask = Ask(play)
    play.send(ask.suspend()).send(ask.resume()).wait(15)
    assert play.statuses() == [SUBMITTED] * 3
    play.release_places()
    assert all(a.state is AllocationState.RELEASED for a in play.state.allocations)


def test_suspended_while_a_rank_waits_for_a_place_the_others_give_theirs_back() -> None:
    """They could not begin before it is placed, and nothing is placed now."""
    play = GangPlay().run_all().fail(1).clean_all()
    assert play.statuses() == [PROVISIONING, SUBMITTED, PROVISIONING]
    play.send(Ask(play).suspend())
    assert play.reasons() == [Reason.SUSPENDED] * 3
    play.clean_all()
    assert play.run.status is RunStatus.PENDING
    assert all(a.state is AllocationState.RELEASED for a in play.state.allocations)
    play.send(Ask(play).resume())
    assert play.run.switches[-1].reason == SwitchReason.RESUMED
    play.wait(60).run_all()
    assert play.statuses() == [AttemptStatus.RUNNING] * 3


def test_suspended_with_all_its_places_it_goes_on_though_not_all_ranks_are_there() -> None:
    play = GangPlay().place_waiting()
    play.send(play.accepted(0)).send(Ask(play).suspend())
    assert play.reasons() == [None] * 3


def test_suspended_while_it_queues_whole_it_just_waits() -> None:
    play = GangPlay()
    play.send(Ask(play).suspend())
    assert play.statuses() == [SUBMITTED] * 3


def test_a_running_gang_that_is_suspended_goes_on_beside_a_plain_job_that_waits() -> None:
    play = GangPlay(gang(2), Group(name="data", nodes=1)).run_all().fail(2).clean_all()
    assert play.attempt(2).status is SUBMITTED
    play.send(Ask(play).suspend())
    assert play.reasons() == [None] * 3


@pytest.mark.parametrize("abort_running", [True, False])
def test_a_done_ranks_place_goes_back_once_the_suspended_gang_has_stopped(
    abort_running: bool,
) -> None:
    play = GangPlay().run_all().fail(0, Reason.DONE_BY_RUNNER).clean_all()
    play.send(Ask(play).suspend(abort_running=abort_running))
    if not abort_running:
        assert play.release_places().allocation(0).state is AllocationState.HELD
        play.fail(1)
    play.clean_all()
    assert all(a.state is AllocationState.RELEASED for a in play.state.allocations)


def test_a_reserved_job_that_ended_while_suspended_is_replaced_after_it() -> None:
    play = GangPlay(gang(3, 2)).run_all()
    play.send(Ask(play).suspend()).fail(2).clean_all()
    assert play.attempt(2).number == 0
    assert [play.attempt(n).reason for n in (0, 1)] == [None, None]
    play.send(Ask(play).resume())
    assert play.attempt(2).number == 1
    assert play.number == 1


# -- reserved and plain jobs amid a switch --------------------------------------------------


def test_a_reserved_job_that_failed_just_before_a_switch_waits_for_the_gang() -> None:
    play = GangPlay(gang(4, 3)).run_all().fail(3).fail(1)
    assert play.number == 2
    play.clean_all()
    assert [len(play.job(n).attempts) for n in range(4)] == [2] * 4
    assert play.ranks() == [0, 1, 2, None]
    assert play.statuses() == [PROVISIONING, SUBMITTED, PROVISIONING, SUBMITTED]


def test_a_reserved_job_whose_wait_was_going_starts_with_the_gang() -> None:
    play = GangPlay(gang(4, 3)).run_all()
    for _ in range(2):
        play.fail(3).clean_all().run_all()
    play.fail(3).clean_all()
    assert play.job(3).retry_at is not None
    play.fail(1)
    assert play.job(3).retry_at is None
    play.clean_all()
    assert play.attempt(3).incarnation == play.run.incarnation


def test_a_rank_is_not_given_to_a_reserved_job_that_is_just_being_replaced() -> None:
    """Its place is gone with it."""
    play = GangPlay(gang(4, 3)).run_all().fail(3)
    play.clean_all()
    assert play.attempt(3).status is SUBMITTED
    play.fail(0).clean_all()
    assert play.ranks() == [0, 1, 2, None]


def test_a_reserved_job_takes_no_room_while_a_rank_beside_the_gang_is_tried_again() -> None:
    """It would keep it for as long as the run goes on, and the rank might find no other."""
    play = GangPlay(gang(2, 1), Group(name="beside", nodes=1)).run_all()
    play.fail(2).clean_all().run_all().fail(2).clean_all()
    play.fail(1).clean_all()
    assert play.attempt(1).status is SUBMITTED
    assert play.attempt(2).reason is FAILED
    assert ranks.waiting_reserved(play.state) == []
    play.wait(15)
    assert [a.id for a in ranks.waiting_ranked(play.state)] == [play.attempt(2).id]
    play.send(play.placed_in(2))
    assert [a.id for a in ranks.waiting_reserved(play.state)] == [play.attempt(1).id]


def test_the_lost_ranks_of_two_groups_go_to_reserved_jobs_of_their_own() -> None:
    play = GangPlay(gang(3, 2, name="train"), gang(3, 2, name="serve")).run_all()
    play.send(play.exited(0, FAILED), play.exited(4, FAILED)).clean_all()
    assert play.number == 2
    assert play.ranks() == [None, 1, 0, 0, None, 1]
    assert [a.id for a in ranks.waiting_reserved(play.state)] == [
        play.attempt(0).id,
        play.attempt(4).id,
    ]


def test_a_reserved_job_inherits_no_rank_of_another_group() -> None:
    play = GangPlay(gang(2, 2, name="train"), gang(3, 2, name="serve")).run_all()
    play.fail(0).clean_all()
    assert play.ranks() == [0, 1, 0, 1, None]
    assert [a.job_id for a in ranks.waiting_ranked(play.state)] == [play.job(0).id]


def test_failures_of_all_gang_groups_count_together() -> None:
    twice = RetryPolicy(on_events=frozenset({RetryEvent.ERROR}), max_failures=2)
    play = GangPlay(gang(2, name="train"), gang(2, name="serve"), retry=twice)
    for culprit in (0, 3):
        play.run_all().fail(culprit).clean_all().wait(60)
    play.run_all().fail(1)
    assert play.run.status is RunStatus.TERMINATING


def test_a_plain_job_that_waits_for_its_retry_starts_with_the_gang() -> None:
    play = GangPlay(gang(2), Group(name="data", nodes=1)).run_all()
    for _ in range(2):
        play.fail(2).clean_all().run_all()
    play.fail(2).clean_all()
    assert play.job(2).retry_at is not None
    play.fail(0).clean_all().wait(60)
    assert play.attempt(2).incarnation == play.run.incarnation
    assert play.attempt(2).rank == 0


def test_a_plain_job_and_a_rank_that_fail_at_once_make_one_switch_for_the_rank() -> None:
    play = GangPlay(Group(name="data", nodes=1), gang(2)).run_all()
    play.send(play.exited(0, FAILED), play.exited(1, FAILED))
    (switch,) = play.run.switches
    assert switch.attempt_id == play.attempt(1).id
    play.clean_all()
    assert play.statuses() == [SUBMITTED, SUBMITTED, PROVISIONING]


# -- places during a switch -----------------------------------------------------------------


def test_a_survivor_whose_node_begins_to_drain_during_the_wait_loses_its_place() -> None:
    play = waiting_gang()
    play.surround("n2")
    play.wait(15)
    assert play.statuses() == [PROVISIONING, SUBMITTED, SUBMITTED]
    play.release_places()
    assert play.allocation(2, 1).state is AllocationState.RELEASED


def test_the_kept_place_of_a_survivor_goes_back_as_soon_as_its_node_drains() -> None:
    play = waiting_gang()
    play.drain("n2")
    play.release_places()
    assert play.phase() is Phase.WAITING
    assert play.allocation(2).state is AllocationState.RELEASED
    assert play.allocation(0).state is AllocationState.HELD


def test_the_place_of_a_done_rank_goes_back_as_soon_as_its_node_drains() -> None:
    """The node is to become empty, and the gang may go on for days."""
    play = GangPlay().run_all().fail(2, Reason.DONE_BY_RUNNER).clean_all()
    assert play.release_places().allocation(2).state is AllocationState.HELD
    play.drain("n2")
    play.release_places()
    assert play.allocation(2).state is AllocationState.RELEASED
    assert play.number == 1
    play.fail(0).clean_all()
    assert play.statuses() == [SUBMITTED, PROVISIONING, SUBMITTED]


def test_the_place_of_a_done_rank_outlives_a_node_that_is_only_silent() -> None:
    play = GangPlay().run_all().fail(2, Reason.DONE_BY_RUNNER).clean_all()
    play.surround("n2")
    assert play.send().release_places().allocation(2).state is AllocationState.HELD


def test_a_drain_whose_deadline_passes_in_the_middle_of_a_switch_changes_no_reason() -> None:
    play = GangPlay().run_all().fail(1)
    play.send(NodeDrained(run_id=play.run_id, node_id="n2", message="maintenance"))
    assert play.attempt(2).reason is CHANGED
    play.surround("n2")
    play.clean_all()
    assert play.statuses() == [PROVISIONING, SUBMITTED, SUBMITTED]
    assert len(play.run.switches) == 1


def test_a_survivor_whose_node_reboots_in_the_middle_of_a_switch_loses_its_place() -> None:
    play = GangPlay().run_all().fail(1)
    play.send(play.node_gone("n2", confirmed=True))
    assert play.attempt(2).reason is CHANGED
    play.clean_all()
    assert play.statuses() == [PROVISIONING, SUBMITTED, SUBMITTED]
    assert play.allocation(2, 0).state is AllocationState.RELEASED


def test_a_node_lost_in_the_middle_of_a_switch_does_not_hold_it_up() -> None:
    play = GangPlay().run_all().fail(1)
    play.send(play.node_gone("n2"))
    play.clean_all()
    assert play.allocation(2, 0).state is AllocationState.ORPHANED
    assert play.statuses() == [PROVISIONING, SUBMITTED, SUBMITTED]


def test_a_nominations_place_given_up_in_a_switch_is_not_kept() -> None:
    """A rank that waited for its victims to leave has no place that could survive."""
    play = GangPlay().run_all().fail(1).clean_all()
    place = play.placed_in(1).allocation
    nominated = replace(place, state=AllocationState.NOMINATED, victims=("other",))
    play.send(
        Nominated(
            run_id=play.run_id,
            attempt_id=play.attempt(1).id,
            allocation=nominated,
            pending_reason=VictimsLeave(count=1),
        )
    )
    play.send(play.accepted(0), play.seen(0), play.started(0)).fail(0)
    assert play.number == 3
    assert play.allocation(1, 1).state is AllocationState.RELEASED
    play.clean_all().wait(60)
    assert play.attempt(1).allocation_id is None
    assert play.attempt(2).status is PROVISIONING


# -- ends amid a switch ---------------------------------------------------------------------


@pytest.mark.parametrize("abort", [True, False])
def test_stopped_in_the_middle_of_a_switch_it_ends_and_nothing_starts(abort: bool) -> None:
    play = GangPlay(gang(4, 3)).run_all().fail(1)
    play.send(play.stop(abort=abort))
    assert play.reasons() == [CHANGED, FAILED, CHANGED, CHANGED]
    assert all(play.attempt(n).remove_at == START + (0 if abort else 10) for n in (0, 2, 3))
    play.clean_all()
    assert play.run.status is RunStatus.TERMINATED
    assert all(len(job.attempts) == 1 for job in play.state.jobs)
    assert all(a.state is AllocationState.RELEASED for a in play.state.allocations)


def test_completed_in_the_middle_of_a_switch_it_is_done() -> None:
    play = GangPlay().run_all().fail(1)
    play.send(Ask(play).complete()).clean_all()
    assert play.run.status is RunStatus.DONE


def test_a_whole_gang_that_is_preempted_switches_once_and_gives_its_places_back() -> None:
    play = GangPlay().run_all()
    gone: list[Report] = [
        Preempted(run_id=play.run_id, attempt_id=play.attempt(n).id, message="for another")
        for n in range(3)
    ]
    play.send(*gone)
    assert [switch.reason for switch in play.run.switches] == ["job_aborted"]
    assert all(play.attempt(n).remove_at == START + 10 for n in range(3))
    play.clean_all()
    assert all(a.state is AllocationState.RELEASED for a in play.state.allocations)
    assert play.statuses() == [SUBMITTED] * 3
    assert ranks.anchors(play.state) == []


# -- not whole in time ----------------------------------------------------------------------


def test_half_a_gang_there_when_the_time_is_over_starts_anew_as_a_whole() -> None:
    play = GangPlay(gang(5, 4)).run_all().wait(60)
    play.send(play.exited(1, FAILED), play.exited(2, FAILED)).clean_all()
    assert play.ranks() == [0, None, 2, 3, 1]
    for n in (0, 3, 4):
        play.send(play.accepted(n), play.seen(n))
    play.wait(600)
    assert play.number == 3
    assert play.run.switches[-1].reason == SwitchReason.REINCARNATION_TIMEOUT
    play.clean_all()
    assert all(a.state is AllocationState.RELEASED for a in play.state.allocations)
    assert ranks.anchors(play.state) == []
    play.wait(60)
    assert play.statuses() == [SUBMITTED] * 5


def test_a_done_ranks_place_goes_back_too_when_the_gang_queues_whole() -> None:
    play = GangPlay().place_waiting()
    for n in (0, 1):
        play.send(play.accepted(n), play.seen(n), play.started(n))
    play.send(play.accepted(2)).fail(0, Reason.DONE_BY_RUNNER).clean_all()
    assert play.allocation(0).state is AllocationState.HELD
    play.wait(600).clean_all()
    assert play.run.switches[-1].reason == SwitchReason.REINCARNATION_TIMEOUT
    assert all(a.state is AllocationState.RELEASED for a in play.state.allocations)


# -- scheduled ------------------------------------------------------------------------------


def test_a_new_occurrence_begins_without_the_waits_and_failures_of_the_last_one() -> None:
    once = RetryPolicy(on_events=frozenset({RetryEvent.ERROR}), max_failures=1)
    play = GangPlay(gang(4, 3), retry=once, schedule=("0 8 * * *",))
    play.around = DecisionContext(next_trigger=START + 100)
    play.send()
    play.around = DecisionContext(next_trigger=START + 500)
    play.wait(100).send()
    play.run_all().fail(1).clean_all().run_all().fail(0).clean_all()
    assert play.phase() is Phase.OVER
    assert [one.status for one in play.run.occurrences] == [RunStatus.FAILED]
    assert all(a.state is AllocationState.RELEASED for a in play.state.allocations)
    play.around = DecisionContext(next_trigger=START + 900)
    play.wait(400).send()
    assert play.statuses() == [SUBMITTED] * 4
    assert play.ranks() == [0, 1, 2, None]
    play.run_all().fail(1).clean_all()
    assert play.statuses() == [PROVISIONING, SUBMITTED, PROVISIONING, PROVISIONING]
