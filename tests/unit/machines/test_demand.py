"""What the queue needs beyond what is there and on order."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from controller.lifecycle.attempts import limits
from controller.lifecycle.inventory import Budget, Fleet, Spot
from controller.lifecycle.machines.market import Market
from controller.lifecycle.machines.model import Machine, MachineEnd, MachineStatus, Offer
from controller.lifecycle.model import (
    Constraint,
    Group,
    NodeStatus,
    Operator,
    Resources,
    RetryEvent,
    RetryPolicy,
    RunPolicy,
)
from controller.lifecycle.renting_reasons import BuysMachine
from controller.lifecycle.reports import Tick
from controller.scheduling.index import COMES_BACK_SECONDS
from controller.scheduling.renting import fleet_offers
from controller.scheduling.renting.demand import Demand, demand
from controller.scheduling.renting.machine_bins import Bin, empty_bin
from fairlead.model.needs import CreationPolicy, RentLimits, SpotPolicy
from fairlead.model.reasons import Reason
from fairlead.model.statuses import RunStatus
from tests.unit.machines.looking import limited, look, sentences, shown, types, waiting
from tests.unit.machines.parts import GIB, NOW, fleet, gpu_offer, machine, offer, shop
from tests.unit.scheduling.cluster import Cluster
from tests.unit.scheduling.parts import node


def test_nothing_is_ordered_without_a_queue() -> None:
    assert look(Cluster(fleets=(fleet(),)), shop(offer())) == Demand()


def test_small_jobs_share_one_machine() -> None:
    assert types(look(waiting(4, cpu=1.0), shop(offer()))) == ["small"]


def test_the_fifth_core_takes_a_second_machine() -> None:
    assert types(look(waiting(5, cpu=1.0), shop(offer()))) == ["small", "small"]


def test_the_cheapest_offer_that_fits_is_ordered() -> None:
    market = shop(offer("large", cpu=64.0, price=9.0), offer("tiny", cpu=0.5, price=0.1), offer())
    assert types(look(waiting(1, cpu=2.0), market)) == ["small"]


def test_spot_comes_first_and_a_fleet_can_refuse_it() -> None:
    market = shop(offer("steady", price=1.0), offer("spot", price=2.0, spot=True))
    assert types(look(waiting(1), market)) == ["spot"]
    assert types(look(waiting(1, fleet(spot=Spot.NEVER)), market)) == ["steady"]


def test_what_is_on_order_counts() -> None:
    assert look(waiting(4, cpu=1.0), shop(offer()), machine()).orders == ()


def _silent(cluster: Cluster, **more: Any) -> Machine:
    """Return a machine whose node has been one, and is only connected again."""
    cluster.set_node(node("m1", fleet="burst", status=NodeStatus.CONNECTING, **more))
    return machine(status=MachineStatus.JOINED, joined_at=NOW - 60.0)


def test_what_nothing_waits_for_any_more_is_told() -> None:
    expected = [machine("m1"), machine("m2")]
    found = look(waiting(1, cpu=4.0), shop(offer()), *expected)
    assert found.orders == ()
    assert found.wanted == {"m1"}
    assert look(waiting(0), shop(offer()), *expected).wanted == frozenset()


def test_a_gang_waits_for_each_of_its_machines_on_order() -> None:
    cluster = waiting(0)
    cluster.submit("gang", Group(name="main", nodes=2, gang_size=2), cpu=4.0)
    found = look(cluster, shop(offer()), machine("m1"), machine("m2"), machine("m3"))
    assert found.orders == ()
    assert found.wanted == {"m1", "m2"}


def test_what_is_on_order_stays_wanted_by_the_reserved_jobs_of_a_gang() -> None:
    cluster = Cluster(node("a", fleet="burst"), node("b", fleet="burst"), fleets=(fleet(),))
    run_id = cluster.submit("gang", Group(name="main", nodes=3, gang_size=2), cpu=4.0)
    cluster.settle()
    assert len(cluster.places(run_id)) == 2
    found = look(cluster, shop(offer()), machine())
    assert (types(found), found.wanted) == ([], frozenset({"m1"}))


def test_a_restart_of_the_controller_buys_nothing_twice() -> None:
    cluster = waiting(1, cpu=1.0)
    assert look(cluster, shop(offer()), _silent(cluster)) == Demand()


def test_a_machine_that_is_connected_again_in_vain_is_not_waited_for() -> None:
    cluster = waiting(1, cpu=1.0)
    late = _silent(cluster, last_seen_at=NOW - COMES_BACK_SECONDS)
    assert types(look(cluster, shop(offer()), late)) == ["small"]
    soon = _silent(cluster, last_seen_at=NOW - COMES_BACK_SECONDS + 1.0)
    assert look(cluster, shop(offer()), soon) == Demand()


@pytest.mark.parametrize("status", [NodeStatus.CONNECTED, NodeStatus.CONNECTING])
@pytest.mark.parametrize(("seconds", "bought"), [(0.0, 0), (299.0, 0), (300.0, 1), (None, 1)])
def test_a_machine_that_takes_no_work_for_a_while_is_not_bought_twice(
    status: NodeStatus, seconds: float | None, bought: int
) -> None:
    cluster = waiting(1, cpu=1.0)
    since = None if seconds is None else NOW - seconds
    unfit = {"unfit": "its engine does not answer: refused", "unfit_since": since}
    cluster.set_node(node("m1", fleet="burst", status=status, **unfit))
    there = machine(status=MachineStatus.JOINED, joined_at=NOW - 900.0)
    found = look(cluster, shop(offer()), there)
    assert len(found.orders) == bought


def test_what_is_on_a_machine_that_is_connected_again_stays_taken() -> None:
    cluster = Cluster(fleets=(fleet(),))
    cluster.set_node(node("m1", fleet="burst"))
    cluster.submit("busy", cpu=4.0)
    cluster.turn()
    assert cluster.pipeline.index.taken
    back = _silent(cluster)
    cluster.submit("next", cpu=1.0)
    assert types(look(cluster, shop(offer()), back)) == ["small"]


@pytest.mark.parametrize("more", [{"cordoned": True}, {"draining": True}])
def test_a_closed_machine_that_is_connected_again_does_not_count(more: dict[str, bool]) -> None:
    cluster = waiting(1, cpu=1.0)
    assert types(look(cluster, shop(offer()), _silent(cluster, **more))) == ["small"]


def test_a_gang_waits_for_a_machine_that_is_connected_again() -> None:
    cluster, machines = gang_of_three(MachineStatus.JOINED)
    zone = {"zone": "north-1"}
    back = node("last", fleet="burst", attributes=zone, status=NodeStatus.CONNECTING)
    cluster.set_node(back)
    found = look(cluster, shop(offer()), *machines)
    assert (found.orders, found.reasons) == ((), {})
    assert found.awaiting == {"m0", "m1", "last"}


@pytest.mark.parametrize("shut", [{"draining": True}, {"cordoned": True}])
def test_a_machine_on_order_that_takes_no_jobs_does_not_count(shut: dict[str, bool]) -> None:
    """As one whose provider takes it back before its first health check."""
    cluster = waiting(1)
    cluster.set_node(node("m1", fleet="burst", unfit="its engine does not answer"))
    assert look(cluster, shop(offer()), machine()).wanted == {"m1"}
    cluster.set_node(replace(cluster.node("m1"), **shut))
    found = look(cluster, shop(offer()), machine())
    assert (types(found), found.wanted) == (["small"], frozenset())


def test_a_machine_that_closes_does_not_count() -> None:
    closing = machine(status=MachineStatus.TERMINATING)
    assert types(look(waiting(1), shop(offer()), closing)) == ["small"]


def test_a_node_with_room_is_no_reason_to_buy() -> None:
    cluster = waiting(1, cpu=1.0)
    cluster.set_node(node("here"))
    assert look(cluster, shop(offer())) == Demand()


def test_nine_small_jobs_do_not_buy_a_second_machine_for_their_pace() -> None:
    assert types(look(waiting(12, cpu=0.1), shop(offer()))) == ["small"]


def test_machines_on_order_stay_wanted_while_jobs_wait_for_the_pace_of_a_node() -> None:
    cluster = waiting(60, cpu=0.1)
    cluster.set_node(node("own", fleet="burst", capacity={"cpu": 1.0}))
    cluster.turn()
    # Two more go there, and the other fifty onto what is on order.
    assert len(cluster.pipeline.index.units) == 52
    found = look(cluster, shop(offer()), machine("m1"), machine("m2"))
    assert (found.orders, found.wanted) == ((), frozenset({"m1", "m2"}))


def test_an_offer_that_fits_nothing_is_explained() -> None:
    found = look(waiting(1, cpu=99.0), shop(offer()))
    assert found.orders == ()
    assert sentences(found) == {
        "fleet burst rents no machine for it: it needs 99 CPU, and the nearest offer, small, has "
        "4 free of 4"
    }


def test_a_provider_that_tells_nothing_is_explained() -> None:
    found = look(waiting(1), shop(away={"lab": "connection refused"}))
    assert sentences(found) == {"provider lab of fleet burst rents nothing now: connection refused"}


def test_a_zone_that_tells_nothing_keeps_no_other_from_being_rented() -> None:
    market = shop(offer(), unknown={"lab": {"north-2": "403"}})
    assert types(look(waiting(1), market)) == ["small"]


def test_offers_that_are_not_known_are_named_and_refuse_nothing() -> None:
    market = shop(offer(), unknown={"lab": {"north-2": "403", "south-1": "down"}})
    market.penalties.add(offer(), MachineEnd.NO_CAPACITY, NOW)
    for cluster in (waiting(1, cpu=99.0), waiting(1), waiting(1, fleet(zones=("west",)))):
        (sentence,) = sentences(look(cluster, market))
        assert ("those in north-2 (403), those in south-1 (down)" in sentence) is (
            "availability_zones" not in sentence
        )
    found = look(waiting(1, fleet(regions=("north",)), cpu=99.0), market)
    assert "of the offers, those in north-2 (403) are not known" in sentences(found).pop()
    assert [one.why for one in found.answers] == [None]


def test_jobs_of_another_fleet_buy_nothing() -> None:
    cluster = Cluster(fleets=(fleet(), Fleet(name="own", created_at=0.0)))
    cluster.submit("a", fleets=("own",))
    assert look(cluster, shop(offer())) == Demand()


def test_constraints_choose_among_offers() -> None:
    wanted = Constraint(attribute="zone", operator=Operator.EQ, values=("south-1",))
    market = shop(offer("a"), offer("b", zone="south-1", price=9.0))
    assert types(look(waiting(1, constraints=(wanted,)), market)) == ["b"]


def test_a_gang_goes_into_one_zone_as_a_whole() -> None:
    cluster = waiting(0)
    cluster.submit("gang", Group(name="main", nodes=3, gang_size=3), gpus=8)
    market = shop(gpu_offer("a", price=30.0), gpu_offer("b", zone="south-1", price=20.0))
    found = look(cluster, market)
    assert types(found) == ["b", "b", "b"]
    assert {order.group for order in found.orders} == {1}


def test_a_gang_beyond_the_budget_buys_nothing_in_part() -> None:
    cluster = waiting(0, fleet(budget=Budget(per_hour=100.0)))
    cluster.submit("gang", Group(name="main", nodes=8, gang_size=8), gpus=8)
    found = look(cluster, shop(gpu_offer()))
    assert found.orders == ()
    assert any("may cost 100.00 an hour" in one for one in sentences(found))


def test_a_gang_counts_the_machines_of_its_zone_that_are_there() -> None:
    cluster = waiting(0)
    here = [machine(f"m{n}", status=MachineStatus.JOINED) for n in range(2)]
    for one in here:
        cluster.set_node(node(one.id, fleet="burst", attributes={"zone": "north-1"}))
    cluster.submit("gang", Group(name="main", nodes=3, gang_size=3), cpu=4.0)
    assert types(look(cluster, shop(offer()), *here)) == ["small"]


def gang_of_three(status: MachineStatus, *, count: int = 2) -> tuple[Cluster, list[Machine]]:
    """A gang waits; so many machines are there, and one more has this status."""
    cluster = waiting(0)
    machines = [machine(f"m{n}", status=MachineStatus.JOINED) for n in range(count)]
    for one in machines:
        cluster.set_node(node(one.id, fleet="burst", attributes={"zone": "north-1"}))
    cluster.submit("gang", Group(name="main", nodes=3, gang_size=3), cpu=4.0)
    return cluster, [*machines, machine("last", status=status)]


def test_a_gang_awaits_its_machines_that_are_there_until_the_last_one_is() -> None:
    cluster, machines = gang_of_three(MachineStatus.PROVISIONING)
    assert look(cluster, shop(offer()), *machines).awaiting == {"m0", "m1"}
    ordered = look(cluster, shop(offer()), *machines[:2])
    assert (types(ordered), set(ordered.awaiting)) == (["small"], {"m0", "m1"})


def test_a_gang_that_gets_no_more_machines_awaits_none() -> None:
    cluster, machines = gang_of_three(MachineStatus.TERMINATING)
    assert look(cluster, shop(), *machines).awaiting == frozenset()


def test_a_gang_waits_for_what_is_on_order_while_its_offer_is_left_out() -> None:
    cluster, machines = gang_of_three(MachineStatus.PROVISIONING)
    market = shop(offer())
    market.penalties.add(offer(), MachineEnd.NO_CAPACITY, NOW)
    found = look(cluster, market, *machines)
    assert found.awaiting == {"m0", "m1"}
    assert {type(reason) for reason in found.reasons.values()} == {BuysMachine}


def test_machines_of_two_placement_values_are_not_awaited_together() -> None:
    cluster = waiting(0, replace(fleet(), placement="instance-type"))
    here = [
        machine(f"m{n}", status=MachineStatus.JOINED, offer=offer(("small", "other")[n]))
        for n in range(2)
    ]
    for one in here:
        attributes = {"zone": "north-1", "instance-type": one.offer.instance_type}
        cluster.set_node(node(one.id, fleet="burst", attributes=attributes))
    cluster.submit("gang", Group(name="main", nodes=3, gang_size=3), cpu=4.0)
    found = look(cluster, shop(offer()), *here)
    assert (types(found), set(found.awaiting)) == (["small", "small"], {"m0"})


def test_two_gangs_do_not_count_on_the_same_machines() -> None:
    cluster, machines = gang_of_three(MachineStatus.PROVISIONING)
    cluster.submit("second", Group(name="main", nodes=4, gang_size=4), cpu=4.0)
    found = look(cluster, shop(offer()), *machines)
    assert types(found) == ["small"] * 4


def test_the_least_number_of_machines_is_kept() -> None:
    assert types(look(waiting(0, fleet(min=2)), shop(offer()), machine())) == ["small"]


def test_a_connected_machine_is_left_to_the_scheduler() -> None:
    cluster = waiting(1, cpu=4.0)
    cluster.set_node(
        replace(node("m1", capacity={"cpu": 0.0}), status=NodeStatus.CONNECTED, fleet="burst")
    )
    assert types(look(cluster, shop(offer()), machine())) == ["small"]


def test_two_hundred_jobs_are_ordered_at_once() -> None:
    market = shop(offer())
    cluster = waiting(200, fleet(max=500), cpu=4.0)
    assert len(look(cluster, market).orders) == 200


def test_a_machine_must_have_what_the_file_says() -> None:
    needs = fleet(resources=Resources(cpu=32.0, memory=GIB))
    assert types(look(waiting(1, needs), shop(offer(), offer("l", cpu=32.0, price=5.0)))) == ["l"]


@pytest.mark.parametrize(
    ("limits", "bought"),
    [
        ({}, ["spot"]),
        ({"spot_policy": SpotPolicy.ON_DEMAND}, ["cheap"]),
        ({"spot_policy": SpotPolicy.SPOT}, ["spot"]),
        ({"spot_policy": SpotPolicy.ON_DEMAND, "regions": ("south",)}, ["dear"]),
        ({"availability_zones": ("south-1",)}, ["dear"]),
        ({"instance_types": ("dear", "cheap")}, ["cheap"]),
        ({"max_price": 0.9}, ["spot"]),
        ({"max_price": 0.1}, []),
        ({"backends": ("lab",)}, ["spot"]),
        ({"backends": ("other",)}, []),
        ({"reservation": "ours"}, ["reserved"]),
        ({"creation_policy": CreationPolicy.REUSE}, []),
    ],
    ids=str,
)
def test_a_runs_own_limits_choose_among_offers(limits: dict[str, Any], bought: list[str]) -> None:
    market = shop(
        offer("spot", price=0.8, spot=True),
        offer("cheap", price=1.0),
        offer("dear", price=4.0, region="south", zone="south-1"),
        offer("reserved", price=0.01, spot=True, reservation="ours"),
    )
    assert types(look(limited(**limits), market)) == bought


def test_a_limit_that_no_offer_meets_is_named() -> None:
    assert sentences(look(limited(max_price=0.5), shop(offer()))) == {
        "fleet burst rents no machine for it: no offer has the attributes that the job asks for"
        " (price \u2264 0.5 (its max_price))"
    }


def test_each_field_of_the_run_that_leaves_no_offer_is_named() -> None:
    market = shop(
        offer("cheap", price=1.0),
        offer("dear", price=4.0, region="south", zone="south-1"),
    )
    found = look(limited(regions=("south",), max_price=2.0), market)
    (sentence,) = sentences(found)
    assert "its regions" in sentence
    assert "its max_price" in sentence
    (sentence,) = sentences(look(limited(max_price=0.5, spot_policy=SpotPolicy.ON_DEMAND), market))
    assert "its max_price" in sentence
    assert "its spot_policy" not in sentence


def test_a_run_that_only_reuses_takes_what_is_on_order_and_says_so_else() -> None:
    only = limited(creation_policy=CreationPolicy.REUSE)
    assert sentences(look(only, shop(offer()))) == {
        "no machine is rented for it: its creation_policy is reuse"
    }
    assert "rents a machine for it" in sentences(look(only, shop(offer()), machine())).pop()


def test_a_gang_that_only_reuses_buys_nothing() -> None:
    cluster = Cluster(fleets=(fleet(),))
    cluster.submit(
        "a",
        Group(name="main", nodes=2, gang_size=2),
        own={"main": {"rent": RentLimits(creation_policy=CreationPolicy.REUSE)}},
    )
    found = look(cluster, shop(offer()))
    assert found.orders == ()
    assert sentences(found) == {"no machine is rented for it: its creation_policy is reuse"}


def test_the_idle_duration_of_a_run_goes_with_its_machine() -> None:
    (order,) = look(limited(idle_duration=30.0), shop(offer())).orders
    assert order.idle_duration == 30.0


def answers(found: Demand) -> list[str | None]:
    return [one.why for one in found.answers]


def test_a_job_that_nothing_could_hold_is_told_once() -> None:
    cluster = waiting(1, cpu=99.0)
    found = look(cluster, shop(offer()))
    (why,) = answers(found)
    assert why is not None
    assert "it needs 99 CPU" in why
    cluster.tell(found.answers[0].run_id, *found.answers)
    assert look(cluster, shop(offer())).answers == ()


def test_a_job_is_told_that_a_machine_may_come_again() -> None:
    cluster = waiting(1, cpu=2.0)
    (nothing,) = look(cluster, shop(offer(cpu=1.0))).answers
    cluster.tell(nothing.run_id, nothing)
    assert answers(look(cluster, shop(offer(cpu=4.0)))) == [None]


def test_a_provider_that_is_away_refuses_nothing() -> None:
    cluster = waiting(1)
    assert answers(look(cluster, shop(away={"lab": "connection refused"}))) == [None]


def test_a_job_waits_for_what_is_there_or_on_order() -> None:
    full = waiting(12, fleet(max=1), cpu=4.0)
    assert set(answers(look(full, shop(offer()), machine()))) == {None}
    there = waiting(1, cpu=99.0)
    found = demand(there.pipeline.index, (), shop(offer()), NOW, lambda unit: True)
    assert answers(found) == [None]


def test_a_fleet_that_rents_no_more_takes_back_what_it_told() -> None:
    cluster = waiting(1, cpu=99.0)
    (nothing,) = look(cluster, shop(offer())).answers
    cluster.tell(nothing.run_id, nothing)
    cluster.pipeline.fleet_changed("burst", Fleet(name="burst", created_at=0.0))
    assert answers(look(cluster, shop(offer()))) == [None]


def without_machine(
    cluster: Cluster, market: Market, *machines: Machine, now: float
) -> float | None:
    """Look at that time; return when the attempt ends for want of a machine, in seconds from then;
    None: nothing ends it."""
    cluster.now = now
    told(cluster, look(cluster, market, *machines))
    (state,) = cluster.states.values()
    attempt = state.jobs[0].attempts[-1]
    due = limits.deadline(state.run, attempt)
    return None if due is None else due.at - now


def test_an_order_that_is_refused_again_begins_no_new_wait() -> None:
    cluster = waiting(1, cpu=4.0)
    full, free = shop(offer(cpu=1.0)), shop(offer())
    assert without_machine(cluster, full, now=1000.0) == 900.0
    assert without_machine(cluster, free, now=1500.0) is None
    # What was ordered stands in the way of another order, and of the limit.
    assert without_machine(cluster, full, machine(), now=1510.0) is None
    assert without_machine(cluster, full, now=1530.0) == 400.0
    assert without_machine(cluster, free, now=1900.0) is None
    assert without_machine(cluster, full, now=1905.0) == 30.0


def test_a_wait_for_a_machine_begins_anew_once_a_node_could_hold_the_job() -> None:
    cluster = waiting(1, cpu=4.0)
    full = shop(offer(cpu=1.0))
    assert without_machine(cluster, full, now=1000.0) == 900.0
    assert without_machine(cluster, shop(offer()), now=1500.0) is None
    cluster.set_node(node("own"))
    cluster.now = 1600.0
    found = demand(cluster.pipeline.index, (), full, NOW, lambda unit: True)
    told(cluster, found)
    (state,) = cluster.states.values()
    assert state.jobs[0].attempts[-1].unrentable is None


def test_a_clock_that_is_put_back_shortens_no_wait_for_a_machine() -> None:
    cluster = waiting(1, cpu=4.0)
    full = shop(offer(cpu=1.0))
    without_machine(cluster, full, now=1000.0)
    without_machine(cluster, shop(offer()), now=1500.0)
    assert without_machine(cluster, full, now=1200.0) == 700.0


def pending(cluster: Cluster) -> set[str | None]:
    """Return what `ps` says of the jobs that wait."""
    jobs = (job for state in cluster.states.values() for job in state.jobs)
    return {job.attempts[-1].waits_for for job in jobs}


def told(cluster: Cluster, found: Demand) -> Cluster:
    for one in found.answers:
        cluster.tell(one.run_id, one)
    return cluster


def test_a_waiting_job_says_which_machine_is_on_its_way_and_since_when() -> None:
    cluster = waiting(2)
    bought = "fleet burst rents a machine for it: small in north-1 (on demand, 1.00 an hour), {}"
    assert pending(told(cluster, look(cluster, shop(offer())))) == {
        bought.format(f"ordered at {shown(NOW)}")
    }
    asked = machine(trouble="the network is down")
    assert pending(told(cluster, look(cluster, shop(offer()), asked))) == {
        bought.format(f"ordered (the network is down) at {shown(NOW)}")
    }
    boots = machine(instance_id="i-1")
    found = look(cluster, shop(offer()), boots)
    assert pending(told(cluster, found)) == {bought.format(f"booting, ordered at {shown(NOW)}")}
    assert look(cluster, shop(offer()), boots).answers == ()


def test_what_the_nodes_lack_is_said_with_why_no_machine_is_rented() -> None:
    cluster = Cluster(
        node("own", capacity={"cpu": 1.0}), fleets=(fleet(budget=Budget(per_hour=0.5)),)
    )
    cluster.submit("big", cpu=2.0)
    cluster.turn()
    (sentence,) = pending(told(cluster, look(cluster, shop(offer()))))
    assert sentence is not None
    assert sentence.startswith("needs 2 CPU; best node own has 1 free of 1; fleet burst may cost")


def test_a_job_that_is_placed_waits_for_no_machine() -> None:
    cluster = waiting(1)
    told(cluster, look(cluster, shop(offer())))
    cluster.set_node(node("own"))
    cluster.turn()
    (state,) = cluster.states.values()
    assert state.jobs[0].attempts[-1].renting is None
    assert pending(cluster) == {None}


def test_what_a_month_has_cost_changes_no_reason_at_each_look() -> None:
    cluster = waiting(1, fleet(budget=Budget(per_month=10.0)))
    live = machine(status=MachineStatus.JOINED, ordered_at=NOW - 32_100)
    told(cluster, look(cluster, shop(offer()), live))
    later = demand(cluster.pipeline.index, [live], shop(offer()), NOW + 60.0)
    assert later.answers == ()


@pytest.mark.parametrize(
    ("retry", "ends_after"),
    [
        (RetryPolicy(), 900.0),
        (RetryPolicy(on_events=frozenset()), 900.0),
        (RetryPolicy(on_events=frozenset({RetryEvent.NO_CAPACITY})), None),
        (RetryPolicy(on_events=frozenset({RetryEvent.NO_CAPACITY}), duration=3600.0), 3600.0),
        (RetryPolicy(on_events=frozenset({RetryEvent.NO_CAPACITY}), duration=60.0), 60.0),
    ],
    ids=str,
)
def test_a_job_without_a_machine_ends_after_its_limit(
    retry: RetryPolicy, ends_after: float | None
) -> None:
    cluster = waiting(1, cpu=99.0, policy=RunPolicy(retry=retry))
    (nothing,) = look(cluster, shop(offer())).answers
    cluster.tell(nothing.run_id, nothing)
    state = cluster.states[nothing.run_id]
    attempt = state.jobs[0].attempts[-1]
    limit = limits.deadline(state.run, attempt)
    assert (None if limit is None else limit.at - attempt.submitted_at) == ends_after
    if limit is None:
        return
    cluster.now = limit.at
    cluster.tell(nothing.run_id, Tick(run_id=nothing.run_id))
    job = cluster.states[nothing.run_id].jobs[0]
    assert job.attempts[-1].reason is Reason.FAILED_TO_START_DUE_TO_NO_CAPACITY
    assert len(job.attempts) == 1
    assert cluster.states[nothing.run_id].run.status in (RunStatus.TERMINATING, RunStatus.FAILED)


def test_offers_are_looked_at_once_however_many_machines_are_ordered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[str] = []

    def counting(burst: Fleet, one: Offer) -> Bin:
        looked.append(one.key)
        return empty_bin(burst, one)

    monkeypatch.setattr(fleet_offers, "empty_bin", counting)
    market = shop(*(offer(f"t{number}", price=1.0 + number) for number in range(100)))
    found = look(waiting(40, fleet(max=40), cpu=4.0), market)
    assert types(found) == ["t0"] * 40
    # 40 orders among 100 offers: else each machine of a large order held up the turn for longer.
    assert len(looked) == 100
