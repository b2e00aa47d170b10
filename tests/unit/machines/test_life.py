"""One record of a machine, moved by reports, its node and time."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from controller.lifecycle.inventory import Node
from controller.lifecycle.machines.life import (
    InstanceGone,
    InstanceKnown,
    InstanceLost,
    OrderRefused,
    ReleaseAnswered,
    ReleaseUnanswered,
    Surroundings,
    ending,
    moved,
    of_broken_orders,
    wakes_at,
)
from controller.lifecycle.machines.model import (
    Machine,
    MachineEnd,
    MachineStatus,
    cost_between,
    token_of,
)
from controller.lifecycle.model import NodeStatus
from tests.unit.machines.parts import NOW, fleet, machine, offer
from tests.unit.scheduling.parts import node

POLICY = fleet(idle_duration=60.0, boot_limit=300.0).machines


def around(status: NodeStatus | None = NodeStatus.CONNECTED, **more: Any) -> Surroundings:
    there: Node | None = None if status is None else node("m1", status=status)
    return Surroundings(node=there, policy=POLICY, **more)


def joined(**more: Any) -> Machine:
    return machine(status=MachineStatus.JOINED, instance_id="i-1", joined_at=NOW, **more)


def test_a_machine_joins_when_its_node_is_connected() -> None:
    after = moved(machine(), [], around(), NOW + 50)
    assert (after.status, after.joined_at) == (MachineStatus.JOINED, NOW + 50)


def test_a_machine_that_is_no_node_in_time_is_ended() -> None:
    expected = around(NodeStatus.EXPECTED)
    assert moved(machine(), [], expected, NOW + 299) is not None
    assert wakes_at(machine(), expected) == NOW + 300
    after = moved(machine(), [], expected, NOW + 300)
    assert (after.status, after.end) == (MachineStatus.TERMINATING, MachineEnd.BOOT_FAILED)


def test_a_machine_joins_once_its_node_takes_work() -> None:
    there = node("m1", status=NodeStatus.CONNECTED, unfit="its engine does not answer: refused")
    unfit = Surroundings(node=there, policy=POLICY)
    assert moved(machine(), [], unfit, NOW + 299) == machine()
    assert wakes_at(machine(), unfit) == NOW + 300
    ended = moved(machine(), [], unfit, NOW + 300)
    assert (ended.status, ended.end) == (MachineStatus.TERMINATING, MachineEnd.BOOT_FAILED)
    assert ended.message == (
        "its node took no work 300 s after its order: its engine does not answer: refused"
    )
    well = Surroundings(node=replace(there, unfit=None), policy=POLICY)
    assert moved(machine(), [], well, NOW + 299).status is MachineStatus.JOINED


def test_a_refused_order_ends_at_once_and_costs_nothing() -> None:
    refused = OrderRefused(machine_id="m1", end=MachineEnd.NO_CAPACITY, message="none left")
    slowed = machine(trouble="rate limit exceeded")
    after = moved(slowed, [refused], around(NodeStatus.EXPECTED), NOW + 9)
    assert (after.status, after.end) == (MachineStatus.TERMINATED, MachineEnd.NO_CAPACITY)
    # What was wrong before the answer is no news of a machine that has ended.
    assert (after.trouble, after.message) == (None, "none left")
    assert cost_between(after, 0.0, NOW + 999) == 0.0


def test_a_refusal_after_the_machine_was_made_changes_nothing() -> None:
    made = machine(instance_id="i-1")
    refused = OrderRefused(machine_id="m1", end=MachineEnd.NO_CAPACITY, message="none left")
    assert moved(made, [refused], around(NodeStatus.EXPECTED), NOW) is made


def test_a_move_that_no_machine_makes_raises() -> None:
    gone = machine(status=MachineStatus.TERMINATED)
    with pytest.raises(ValueError, match="m1: terminated -> terminating"):
        ending(gone, MachineEnd.ASKED, "why", NOW)


def test_the_first_instance_is_kept() -> None:
    told = [InstanceKnown(machine_id="m1", instance_id=one) for one in ("i-1", "i-2")]
    assert moved(machine(), told, around(NodeStatus.EXPECTED), NOW).instance_id == "i-1"


def test_an_unused_machine_closes_and_ends_once_its_shim_confirms() -> None:
    idle = moved(joined(), [], around(), NOW + 10)
    assert idle.idle_since == NOW + 10
    assert wakes_at(idle, around()) == NOW + 70
    assert not moved(idle, [], around(), NOW + 69).closing
    closing = moved(idle, [], around(), NOW + 70)
    assert (closing.closing, closing.status) == (True, MachineStatus.JOINED)
    told = ReleaseAnswered(machine_id="m1", is_empty=True)
    after = moved(closing, [told], around(), NOW + 71)
    assert (after.status, after.end) == (MachineStatus.TERMINATING, MachineEnd.IDLE)


def test_a_shim_that_has_a_task_withdraws_the_release() -> None:
    closing = joined(idle_since=NOW, closing=True)
    told = ReleaseAnswered(machine_id="m1", is_empty=False)
    after = moved(closing, [told], around(), NOW + 61)
    assert (after.closing, after.status) == (False, MachineStatus.JOINED)
    assert after.idle_since == NOW + 61


def test_a_job_that_came_before_the_answer_keeps_the_machine() -> None:
    closing = joined(idle_since=NOW, closing=True)
    told = ReleaseAnswered(machine_id="m1", is_empty=True)
    after = moved(closing, [told], around(is_used=True), NOW + 61)
    assert (after.closing, after.status, after.idle_since) == (False, MachineStatus.JOINED, None)


def test_a_shim_that_never_answers_keeps_no_unused_machine() -> None:
    told = ReleaseUnanswered(machine_id="m1", message="no answer")
    closing = joined(idle_since=NOW, closing=True)
    after = moved(closing, [told], around(), NOW + 1800)
    assert (after.status, after.end, after.message) == (
        MachineStatus.TERMINATING,
        MachineEnd.IDLE,
        "no answer",
    )
    used = moved(closing, [told], around(is_used=True), NOW + 1800)
    assert (used.closing, used.status) == (False, MachineStatus.JOINED)
    withdrawn = joined(idle_since=NOW)
    assert moved(withdrawn, [told], around(), NOW + 1) is withdrawn


def test_use_begins_the_idle_time_again() -> None:
    used = moved(joined(idle_since=NOW), [], around(is_used=True), NOW + 600)
    assert used.idle_since is None
    assert moved(used, [], around(), NOW + 700).idle_since == NOW + 700


def test_an_order_that_nothing_waits_for_any_more_ends_after_the_time_of_an_idle_machine() -> None:
    expected = NodeStatus.EXPECTED
    unwanted = moved(machine(), [], around(expected, is_wanted=False), NOW + 10)
    assert (unwanted.status, unwanted.idle_since) == (MachineStatus.PROVISIONING, NOW + 10)
    # A retry of the job has come.
    wanted = moved(unwanted, [], around(expected, is_wanted=True), NOW + 20)
    assert wanted.idle_since is None
    # Nobody has looked since this controller began.
    assert moved(unwanted, [], around(expected), NOW + 30) is unwanted
    gone = around(expected, is_wanted=False)
    assert moved(unwanted, [], gone, NOW + 69) is unwanted
    ended = moved(unwanted, [], gone, NOW + 70)
    assert (ended.status, ended.end) == (MachineStatus.TERMINATING, MachineEnd.IDLE)
    assert ended.message == "nothing waits for it any more"


def test_an_order_that_nothing_waits_for_has_idled_already_when_it_becomes_a_node() -> None:
    unwanted = machine(idle_since=NOW + 10)
    after = moved(unwanted, [], around(is_wanted=False), NOW + 50)
    assert (after.status, after.idle_since) == (MachineStatus.JOINED, NOW + 10)
    assert wakes_at(after, around()) == NOW + 70


def test_the_least_machines_are_ordered_although_nothing_waits_for_them() -> None:
    kept = around(NodeStatus.EXPECTED, is_wanted=False, may_release=False)
    unwanted = moved(machine(), [], kept, NOW)
    assert moved(unwanted, [], kept, NOW + 299) is unwanted


def test_an_order_is_looked_at_when_nothing_waits_for_it_any_more() -> None:
    gone = around(NodeStatus.EXPECTED, is_wanted=False)
    assert wakes_at(machine(), gone) == NOW
    assert wakes_at(machine(idle_since=NOW + 10), gone) == NOW + 70
    assert wakes_at(machine(), around(NodeStatus.EXPECTED, is_wanted=True)) == NOW + 300


def test_the_least_machines_stay() -> None:
    kept = moved(joined(idle_since=NOW), [], around(may_release=False), NOW + 9999)
    assert not kept.closing


def test_the_least_machines_stay_only_while_their_nodes_may_take_work() -> None:
    why = "its engine does not answer: refused"
    broken = node("m1", status=NodeStatus.CONNECTED, unfit=why, unfit_since=NOW + 10)
    least = Surroundings(node=broken, policy=POLICY, may_release=False)
    kept = joined(idle_since=NOW)
    assert moved(kept, [], least, NOW + 309) is kept
    assert wakes_at(kept, least) == NOW + 310
    closing = moved(kept, [], least, NOW + 310)
    assert closing.closing
    told = ReleaseAnswered(machine_id="m1", is_empty=True)
    after = moved(closing, [told], least, NOW + 311)
    assert after.message == f"nothing used it, and its node takes no work: {why}"
    used = replace(least, is_used=True)
    assert not moved(kept, [], used, NOW + 999).closing


def test_a_machine_stays_while_a_gang_awaits_others_with_it() -> None:
    awaited = around(is_awaited=True)
    assert not moved(joined(idle_since=NOW), [], awaited, NOW + 9999).closing
    assert wakes_at(joined(idle_since=NOW), awaited) is None
    assert moved(joined(idle_since=NOW), [], around(is_awaited=True, is_broke=True), NOW).closing


def test_a_used_up_budget_releases_what_is_idle_at_once() -> None:
    assert moved(joined(idle_since=NOW), [], around(is_broke=True), NOW).closing


def test_a_drained_machine_is_released_when_it_is_empty() -> None:
    drained = Surroundings(node=node("m1", draining=True), policy=POLICY, may_release=False)
    assert moved(joined(idle_since=NOW), [], drained, NOW).closing


def test_a_machine_whose_node_was_removed_or_lost_ends() -> None:
    assert moved(joined(), [], around(None), NOW).end is MachineEnd.ASKED
    assert moved(joined(), [], around(NodeStatus.LOST), NOW).end is MachineEnd.LOST


def test_only_the_provider_ends_a_machine() -> None:
    lost = InstanceLost(machine_id="m1", message="the provider lists it no longer")
    ending = moved(joined(), [lost], around(), NOW + 1)
    assert ending.status is MachineStatus.TERMINATING
    later = moved(ending, [], around(None), NOW + 86_400)
    assert later.status is MachineStatus.TERMINATING
    assert cost_between(later, NOW, NOW + 7200) == 2.0
    gone = moved(later, [InstanceGone(machine_id="m1")], around(None), NOW + 90_000)
    assert (gone.status, gone.terminated_at) == (MachineStatus.TERMINATED, NOW + 90_000)


def test_a_machine_that_ends_before_it_is_a_node_is_a_failed_boot() -> None:
    lost = InstanceLost(machine_id="m1", message="the provider lists it no longer")
    booting = machine(instance_id="i-1")
    ended = moved(booting, [lost], around(NodeStatus.EXPECTED), NOW + 60)
    assert (ended.status, ended.end) == (MachineStatus.TERMINATING, MachineEnd.BOOT_FAILED)
    assert ended.message == "the provider lists it no longer; it was no node yet"
    assert moved(joined(), [lost], around(), NOW + 60).end is MachineEnd.LOST


@pytest.mark.parametrize(
    ("seconds", "recalled_at", "is_short"),
    [(9.0, None, True), (599.0, None, True), (600.0, None, False), (9.0, NOW + 60, False)],
)
def test_a_machine_that_is_lost_soon_after_it_joined_was_short_lived(
    seconds: float, recalled_at: float | None, is_short: bool
) -> None:
    there = node("m1", status=NodeStatus.LOST, recalled_at=recalled_at)
    case = Surroundings(node=there, policy=POLICY)
    by_node = moved(joined(), [], case, NOW + seconds)
    report = InstanceLost(machine_id="m1", message="the provider lists it no longer")
    by_list = moved(joined(), [report], case, NOW + seconds)
    for after in (by_node, by_list):
        assert (after.end, after.short_lived) == (MachineEnd.LOST, is_short)
    if is_short:
        assert by_list.message == (
            f"the provider lists it no longer, {seconds:.0f} s after it had become a node"
        )


def test_what_came_of_a_broken_order_ends() -> None:
    came = joined(group="g")
    sent = machine("m2", group="g")
    refused = machine("m3", group="g", status=MachineStatus.TERMINATED, end=MachineEnd.NO_CAPACITY)
    other = machine("m4", group="h")
    assert of_broken_orders([came, sent, refused, other]) == [came, sent]


def test_a_whole_order_is_not_broken_by_a_later_loss() -> None:
    lost = joined(group="g", end=MachineEnd.LOST)
    ending = replace(lost, status=MachineStatus.TERMINATING)
    assert of_broken_orders([joined(group="g"), ending]) == []


def test_the_token_names_installation_machine_and_offer() -> None:
    token = token_of("here", "m1", offer())
    assert token == token_of("here", "m1", offer())
    others = [token_of("there", "m1", offer()), token_of("here", "m2", offer())]
    others.append(token_of("here", "m1", offer("large")))
    assert token not in others
    assert token.isascii()
    assert token.isalnum()
    assert len(token) <= 64


@pytest.mark.parametrize(("own", "due"), [(None, 60.0), (30.0, 30.0), (600.0, 60.0)])
def test_the_shorter_idle_duration_of_fleet_and_run_counts(own: float | None, due: float) -> None:
    idle = joined(idle_since=NOW, idle_duration=own)
    assert wakes_at(idle, around()) == NOW + due


def test_a_fleet_that_rents_no_more_keeps_only_what_has_jobs() -> None:
    off = replace(around(NodeStatus.EXPECTED), policy=None)
    after = moved(machine(), [], off, NOW + 1)
    assert (after.status, after.end) == (MachineStatus.TERMINATING, MachineEnd.FLEET_REMOVED)
    off = replace(around(), policy=None)
    idle = moved(joined(idle_since=NOW), [], off, NOW + 1)
    assert idle.closing
    busy = joined()
    assert moved(busy, [], replace(off, is_used=True), NOW + 1) is busy
