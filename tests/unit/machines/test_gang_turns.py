"""Gangs that were refused machines order one at a time."""

from __future__ import annotations

from typing import Any

import pytest

from controller.lifecycle.machines.model import Machine, MachineEnd, MachineStatus
from controller.lifecycle.model import Band, Group, RunPolicy
from controller.lifecycle.renting_reasons import BuysMachine, MachineReason
from controller.scheduling.renting.demand import Demand, demand
from controller.scheduling.renting.gang_turns import TURNS_SECONDS
from tests.unit.machines.parts import NOW, fleet, machine, offer, shop
from tests.unit.scheduling.cluster import Cluster

OFFER = offer()


def gangs(*names: str, **more: Any) -> Cluster:
    """Gangs wait that need two machines each; of one user, the first one comes first."""
    cluster = Cluster(fleets=(fleet(),))
    for name in names:
        cluster.submit(name, Group(name="main", nodes=2, gang_size=2), cpu=4.0, **more)
    return cluster


def look(cluster: Cluster, *machines: Machine, now: float = NOW) -> Demand:
    return demand(cluster.pipeline.index, machines, shop(OFFER), now)


def ordering(cluster: Cluster, found: Demand) -> list[str]:
    """The names of the runs that get machines, in the order in which they order."""
    names = {state.run.id: state.run.name for state in cluster.states.values()}
    return list(dict.fromkeys(names[order.run_id or ""] for order in found.orders))


def run_id(cluster: Cluster, name: str) -> str:
    return next(one.run.id for one in cluster.states.values() if one.run.name == name)


def refused(run: str, seconds: float = 600.0, **more: Any) -> Machine:
    """A machine of a gang's order that was refused so long ago."""
    fields: dict[str, Any] = {
        "end": MachineEnd.NO_CAPACITY,
        "status": MachineStatus.TERMINATED,
        "group": f"of {run}",
        "run_id": run,
        "ordered_at": NOW - seconds,
    }
    return machine(f"{run} {seconds}", **(fields | more))


def asked(run: str, name: str = "asked", **more: Any) -> Machine:
    """A machine of another gang's order, too small for a rank of these."""
    small = offer("tiny", cpu=2.0)
    return machine(name, group=f"of {run}", run_id=run, offer=small, **more)


def test_gangs_order_together_where_none_was_refused() -> None:
    cluster = gangs("a", "b")
    assert ordering(cluster, look(cluster)) == ["a", "b"]


def test_after_a_refusal_one_gang_orders_and_the_other_says_that_it_waits() -> None:
    cluster = gangs("a", "b")
    found = look(cluster, refused("gone"))
    assert ordering(cluster, found) == ["a"]
    sentences = {reason.sentence() for reason in found.reasons.values()}
    assert any("gangs order one at a time in region north" in one for one in sentences)


def test_the_next_gang_orders_once_each_request_is_answered() -> None:
    cluster = gangs("b")
    answered = asked("a", instance_id="i-1")
    assert look(cluster, refused("gone"), answered, asked("a", "late")).orders == ()
    assert ordering(cluster, look(cluster, refused("gone"), answered)) == ["b"]


def test_the_gang_that_was_refused_last_comes_last() -> None:
    cluster = gangs("a", "b", "c")
    first, second = run_id(cluster, "a"), run_id(cluster, "b")
    assert ordering(cluster, look(cluster, refused(first))) == ["b"]
    assert ordering(cluster, look(cluster, refused(first), refused(second))) == ["c"]
    every = [refused(run_id(cluster, name), 600.0 + at) for at, name in enumerate("cba")]
    assert ordering(cluster, look(cluster, *every)) == ["a"]


RANK_AHEAD: list[dict[str, Any]] = [
    {"policy": RunPolicy(priority=100)},
    {"band": Band.PRODUCTION},
]


@pytest.mark.parametrize("more", RANK_AHEAD)
def test_a_refused_gang_of_a_higher_rank_gives_way_to_those_that_waited_then(
    more: dict[str, Any],
) -> None:
    cluster = gangs("large", **more)
    cluster.submit("a", Group(name="main", nodes=2, gang_size=2), cpu=4.0)
    found = look(cluster, refused(run_id(cluster, "large")))
    assert ordering(cluster, found) == ["a"]
    (waits,) = {one.sentence() for one in found.reasons.values() if not _buys(one)}
    assert "another one has its turn" in waits


def _buys(reason: MachineReason) -> bool:
    return isinstance(reason, BuysMachine)


@pytest.mark.parametrize("more", RANK_AHEAD)
def test_a_gang_that_came_after_the_refusal_does_not_pass_one_of_a_higher_rank(
    more: dict[str, Any],
) -> None:
    cluster = gangs("large", **more)
    cluster.now = NOW
    cluster.submit("late", Group(name="main", nodes=2, gang_size=2), cpu=4.0)
    assert ordering(cluster, look(cluster, refused(run_id(cluster, "large")))) == ["large"]


def test_of_refused_gangs_the_one_that_waits_longest_for_its_turn_is_first() -> None:
    cluster = gangs("large", policy=RunPolicy(priority=100))
    cluster.submit("a", Group(name="main", nodes=2, gang_size=2), cpu=4.0)
    large, other = run_id(cluster, "large"), run_id(cluster, "a")
    assert ordering(cluster, look(cluster, refused(large, 60.0), refused(other, 90.0))) == ["a"]
    found = look(cluster, refused(large, 90.0), refused(other, 60.0))
    assert ordering(cluster, found) == ["large"]


def test_a_gang_keeps_its_place_while_an_offer_is_left_that_it_was_not_refused() -> None:
    cluster = gangs("large", policy=RunPolicy(priority=100))
    cluster.submit("a", Group(name="main", nodes=2, gang_size=2), cpu=4.0)
    elsewhere = offer(zone="north-2")
    machine_ = refused(run_id(cluster, "large"), offer=elsewhere)
    assert ordering(cluster, look(cluster, machine_)) == ["large"]


def test_a_refused_gang_orders_at_once_when_no_other_can() -> None:
    cluster = gangs("large", policy=RunPolicy(priority=100))
    cluster.submit("huge", Group(name="main", nodes=2, gang_size=2), cpu=400.0)
    assert ordering(cluster, look(cluster, refused(run_id(cluster, "large")))) == ["large"]


@pytest.mark.parametrize(
    ("more", "bought"),
    [
        ({"ordered_at": NOW - TURNS_SECONDS}, ["a", "b"]),
        ({"offer": offer(region="south", zone="south-1")}, ["a", "b"]),
        ({"end": MachineEnd.BOOT_FAILED}, ["a", "b"]),
        ({"joined_at": NOW - 1.0}, ["a", "b"]),
        ({"group": None}, ["a", "b"]),
        (
            {"end": MachineEnd.QUOTA_REACHED, "offer": offer(region="south", zone="south-1")},
            ["a"],
        ),
    ],
)
def test_only_a_gangs_recent_refusal_there_makes_turns(
    more: dict[str, Any], bought: list[str]
) -> None:
    cluster = gangs("a", "b")
    assert ordering(cluster, look(cluster, refused("gone", **more))) == bought


def test_single_machines_need_no_turn() -> None:
    cluster = gangs("a")
    cluster.submit("single", cpu=3.0)
    found = look(cluster, refused("gone"))
    assert sorted(ordering(cluster, found)) == ["a", "single"]


def test_a_turn_that_is_awaited_is_no_answer_about_capacity() -> None:
    cluster = gangs("a", "b")
    found = look(cluster, refused("gone"))
    assert [one.why for one in found.answers] == [None] * 4
