"""What the queue needs beyond what is there and on order."""

from __future__ import annotations

import time
from typing import Any

import pytest
from msgspec.structs import replace

from controller.lifecycle.attempts import limits
from controller.lifecycle.decide import decide
from controller.lifecycle.draft import DecisionContext
from controller.lifecycle.inventory import Budget, Fleet, Spending, Spot
from controller.lifecycle.machines.market import Market, Penalties, Supply
from controller.lifecycle.machines.model import Machine, MachineEnd, MachineStatus, Reach
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
from controller.lifecycle.renting_reasons import BuysMachine, NoOffer
from controller.lifecycle.reports import Tick
from controller.scheduling.demand import Demand, demand, offering
from controller.scheduling.index import COMES_BACK_SECONDS
from fairlead.model.answers import PlannedRent
from fairlead.model.needs import CreationPolicy, RentLimits, SpotPolicy
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AttemptStatus, RunStatus
from tests.unit.machines.parts import GIB, NOW, fleet, gpu_offer, machine, offer, rentals_of, shop
from tests.unit.scheduling.cluster import Cluster
from tests.unit.scheduling.parts import new_id, node


def look(cluster: Cluster, market: Market, *machines: Machine) -> Demand:
    return demand(cluster.pipeline.index, machines, market, NOW)


def types(found: Demand) -> list[str]:
    return [order.offer.instance_type for order in found.orders]


def sentences(found: Demand) -> set[str]:
    return {reason.sentence() for reason in found.reasons.values()}


def waiting(count: int, *fleets: Fleet, **more: Any) -> Cluster:
    cluster = Cluster(fleets=fleets or (fleet(),))
    for number in range(count):
        cluster.submit(f"r{number}", **more)
    return cluster


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


def _recalled(
    groups: tuple[Group, ...] = (), cpu: float = 4.0, **retry: Any
) -> tuple[Cluster, str]:
    """Return a run on a spot machine that its provider has just begun to take back."""
    cluster = Cluster(node("m1", fleet="burst", attributes={"spot": "true"}), fleets=(fleet(),))
    policy = RunPolicy(retry=RetryPolicy(**retry))
    run_id = cluster.submit("trained", *groups, policy=policy, cpu=cpu)
    cluster.settle()
    cluster.start_all()
    here = frozenset({"m1"})
    cluster.set_node(replace(cluster.node("m1"), draining=True, cordoned=True))
    recalled = {"m1": cluster.now + 120.0}
    around = DecisionContext(unusable_nodes=here, draining_nodes=here, recalled=recalled)
    state = decide(cluster.states[run_id], [], cluster.now, new_id, context=around).state
    cluster.states[run_id] = state
    cluster.pipeline.run_changed(run_id, state)
    assert cluster.attempt(run_id).status is AttemptStatus.TERMINATING
    return cluster, run_id


def _wait_for_retry(cluster: Cluster, run_id: str) -> None:
    """Let the attempt be over, and its job wait, as it does after lives that were short."""
    state = cluster.states[run_id]
    (job,) = state.jobs
    over = replace(job.attempts[-1], status=AttemptStatus.FAILED)
    ended = replace(state, jobs=(replace(job, attempts=(*job.attempts[:-1], over)),))
    cluster.states[run_id] = ended
    cluster.pipeline.run_changed(run_id, ended)


def test_the_machine_of_a_job_that_is_recalled_is_ordered_while_it_still_stops() -> None:
    cluster, run_id = _recalled()
    market = shop(offer("spot", spot=True, price=0.5), offer("steady"))
    found = look(cluster, market)
    # On demand first, since it has lost a spot machine.
    assert [(one.offer.instance_type, one.run_id) for one in found.orders] == [("steady", run_id)]
    again = look(cluster, market, machine("m2", offer=offer("steady")))
    assert again.orders == ()
    assert again.wanted == {"m2"}
    cluster.leave(run_id)
    assert cluster.attempt(run_id).status is AttemptStatus.SUBMITTED
    after = look(cluster, market, machine("m2", offer=offer("steady")))
    assert after.orders == ()
    assert after.wanted == {"m2"}


def test_a_job_that_comes_back_buys_nothing_where_a_node_has_room() -> None:
    cluster, _ = _recalled()
    cluster.set_node(node("own", fleet="burst"))
    assert look(cluster, shop(offer())).orders == ()


def test_a_machine_that_is_there_is_kept_for_a_job_that_comes_back() -> None:
    cluster, run_id = _recalled()
    cluster.set_node(node("m2", fleet="burst"))
    there = machine("m2", status=MachineStatus.JOINED, joined_at=NOW)
    assert look(cluster, shop(offer()), there).awaiting == {"m2"}
    _wait_for_retry(cluster, run_id)
    found = look(cluster, shop(offer()), there)
    assert found.orders == ()
    assert found.awaiting == {"m2"}


def test_nothing_is_ordered_for_a_job_that_waits_for_its_retry() -> None:
    cluster, run_id = _recalled()
    _wait_for_retry(cluster, run_id)
    assert look(cluster, shop(offer())).orders == ()
    assert look(cluster, shop(offer()), machine("m2")).wanted == {"m2"}


def test_two_jobs_that_come_back_do_not_count_on_the_same_room() -> None:
    cluster, _ = _recalled((Group(name="main", nodes=2),), cpu=2.0)
    cluster.set_node(node("m2", fleet="burst", capacity={"cpu": 2.0}))
    there = machine("m2", status=MachineStatus.JOINED, joined_at=NOW, offer=offer(cpu=2.0))
    found = look(cluster, shop(offer()), there)
    assert len(found.orders) == 1
    assert found.awaiting == {"m2"}


def test_a_job_that_is_recalled_and_not_tried_again_buys_nothing() -> None:
    cluster, _ = _recalled(on_events=())
    assert look(cluster, shop(offer())).orders == ()


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


def test_a_machine_that_closes_does_not_count() -> None:
    closing = machine(status=MachineStatus.TERMINATING)
    assert types(look(waiting(1), shop(offer()), closing)) == ["small"]


def test_a_node_with_room_is_no_reason_to_buy() -> None:
    cluster = waiting(1, cpu=1.0)
    cluster.set_node(node("here"))
    assert look(cluster, shop(offer())) == Demand()


def test_nine_small_jobs_do_not_buy_a_second_machine_for_their_pace() -> None:
    assert types(look(waiting(12, cpu=0.1), shop(offer()))) == ["small"]


def test_a_fleet_has_at_most_its_maximum() -> None:
    found = look(waiting(12, fleet(max=2), cpu=4.0), shop(offer()))
    assert len(found.orders) == 2
    assert "fleet burst has its most machines (2)" in sentences(found)


def test_the_budget_of_an_hour_holds_for_what_is_live_and_ordered() -> None:
    cluster = waiting(5, fleet(budget=Budget(per_hour=2.5)), cpu=4.0)
    found = look(cluster, shop(offer()), machine(status=MachineStatus.TERMINATING))
    assert len(found.orders) == 1
    assert any("may cost 2.50 an hour" in one for one in sentences(found))


@pytest.mark.parametrize("limit", ["per_hour", "per_month"])
def test_a_budget_is_used_to_its_last_hundredth(limit: str) -> None:
    thrifty = fleet(budget=Budget(**{limit: 0.3}))
    found = look(waiting(4, thrifty, cpu=4.0), shop(offer(price=0.1)))
    assert types(found) == ["small"] * 3


def test_the_budget_of_a_month_counts_what_has_ended() -> None:
    ended = machine(status=MachineStatus.TERMINATED, ordered_at=NOW - 36_000, terminated_at=NOW - 1)
    cluster = waiting(1, fleet(budget=Budget(per_month=10.0)))
    found = look(cluster, shop(offer()), ended)
    assert found.orders == ()
    assert "fleet burst may cost 10.00 a month; its machines cost 10.00" in sentences(found).pop()


def test_a_dearer_offer_is_left_where_a_cheaper_one_fits_the_budget() -> None:
    market = shop(offer("spot", price=5.0, spot=True), offer("steady", price=1.0))
    found = look(waiting(1, fleet(budget=Budget(per_hour=2.0))), market)
    assert types(found) == ["steady"]


def shown(at: float) -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime(at))


def test_a_refused_offer_is_tried_again_after_its_penalty() -> None:
    market = shop(offer("first", price=1.0), offer("second", price=2.0))
    first, second = market.offers["lab"]
    market.penalties.add(first, MachineEnd.NO_CAPACITY, NOW)
    assert types(look(waiting(1), market)) == ["second"]
    market.penalties.add(second, MachineEnd.NO_CAPACITY, NOW)
    found = look(waiting(1), market)
    assert found.orders == ()
    assert f"the next try is at {shown(NOW + 180)}" in sentences(found).pop()


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


def limited(**limits: Any) -> Cluster:
    cluster = Cluster(fleets=(fleet(),))
    cluster.submit("a", own={"main": {"rent": RentLimits(**limits)}})
    return cluster


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


def test_a_refusal_is_told_with_the_providers_words() -> None:
    market = shop(offer())
    (only,) = market.offers["lab"]
    market.penalties.add(only, MachineEnd.REFUSED, NOW, message="there is no such image")
    assert sentences(look(waiting(1), market)) == {
        "the provider of fleet burst has refused small in north-1 (on demand, 1.00 an hour): "
        "there is no such image (an admin's `fairlead provider check` tries what orders need); "
        f"the next try is at {shown(NOW + 600)}"
    }


def test_a_machine_that_did_not_boot_was_not_refused() -> None:
    full, silent = offer(), offer("silent", price=2.0)
    market = shop(full, silent)
    market.penalties.add(silent, MachineEnd.BOOT_FAILED, NOW, message="it was no node")
    (sentence,) = sentences(look(waiting(1, fleet(instance_types=("silent",))), market))
    assert sentence == (
        "the last machine of silent in north-1 (on demand, 2.00 an hour) failed: it was no node "
        "(an admin's `fairlead provider check --boot` tries one); the next try is at "
        f"{shown(NOW + 600)}"
    )
    market.penalties.add(full, MachineEnd.NO_CAPACITY, NOW)
    (sentence,) = sentences(look(waiting(1), market))
    assert sentence.startswith(
        "the provider of fleet burst has refused small in north-1 (on demand, 1.00 an hour), and "
        "the last machine of silent in north-1 (on demand, 2.00 an hour) failed: silent in "
    )


def test_a_quota_is_reached_in_all_zones_of_its_region() -> None:
    zones = [offer(zone=f"north-{number}") for number in range(3)]
    spot, south = offer(spot=True, price=3.0), offer(region="south", zone="south-1", price=4.0)
    market = shop(*zones, spot, south)
    market.penalties.add(zones[0], MachineEnd.QUOTA_REACHED, NOW, message="8 vCPUs in north")
    open_ = [one for one in market.offers["lab"] if market.penalties.until(one, NOW) is None]
    assert open_ == [spot, south]
    only = waiting(1, fleet(regions=("north",), spot=Spot.NEVER))
    assert sentences(look(only, market)) == {
        "the account of fleet burst at its provider has reached a quota: 8 vCPUs in north; the "
        f"next try is at {shown(NOW + 600)}"
    }
    # It was asked for in one zone.
    market.penalties.add(south, MachineEnd.NO_CAPACITY, NOW)
    (sentence,) = sentences(look(waiting(1, fleet(spot=Spot.NEVER)), market))
    assert sentence.count(" in north-") == 1
    market.penalties.forget(zones[1])
    assert market.penalties.until(zones[0], NOW) is None


def test_a_quota_behind_offers_without_capacity_is_named() -> None:
    spot, dear = offer("small", spot=True), offer("dear", price=2.0)
    market = shop(spot, dear)
    market.penalties.add(spot, MachineEnd.NO_CAPACITY, NOW, message="none left")
    market.penalties.add(dear, MachineEnd.QUOTA_REACHED, NOW, message="8 vCPUs in north")
    (sentence,) = sentences(look(waiting(1), market))
    assert ": dear in north-1 (on demand, 2.00 an hour): 8 vCPUs in north (an admin's" in sentence


WRONG: dict[str, Any] = {"message": "regions.north.image: gone", "reach": Reach.REGION}


def test_what_the_file_names_wrong_for_a_region_is_refused_once() -> None:
    south = offer("dear", region="south", zone="south-1", price=9.0)
    cheap = [offer(f"small{number}", price=1.0 + number / 100) for number in range(30)]
    market = shop(*cheap, south)
    market.penalties.add(cheap[0], MachineEnd.REFUSED, NOW, **WRONG)
    # Thirty offers that nobody tries leave the tries to the other region.
    assert types(look(waiting(1), market)) == ["dear"]
    only = waiting(1, fleet(regions=("north",)))
    found = look(only, market)
    assert found.orders == ()
    assert sentences(found) == {
        "fleet burst rents nothing in region north of provider lab, since each order there would "
        "be refused: regions.north.image: gone; once an admin has corrected that, `fairlead "
        "provider check` has it tried at once, else the next try is at "
        f"{shown(NOW + 600)}"
    }
    assert len(found.answers) == 1
    market.penalties.forget_refused("lab")
    assert types(look(only, market)) == ["small0"]


def test_a_region_that_is_left_out_is_named_with_what_else_was_refused() -> None:
    south = offer("dear", region="south", zone="south-1", price=9.0)
    market = shop(offer(), south)
    market.penalties.add(offer(), MachineEnd.REFUSED, NOW, **WRONG)
    market.penalties.add(south, MachineEnd.NO_CAPACITY, NOW)
    (sentence,) = sentences(look(waiting(1), market))
    assert sentence.startswith(
        "the provider of fleet burst has refused dear in south-1 (on demand, 9.00 an hour): each "
        "order in region north of provider lab would be refused: regions.north.image: gone ("
    )


@pytest.mark.parametrize(
    ("reach", "out"),
    [
        (Reach.OFFER, {"a"}),
        (Reach.ZONE, {"a", "same zone"}),
        (Reach.REGION, {"a", "same zone", "same region"}),
        (Reach.PROVIDER, {"a", "same zone", "same region", "same provider"}),
    ],
)
def test_a_refusal_holds_as_far_as_its_cause_reaches(reach: Reach, out: set[str]) -> None:
    every = (
        offer("a"),
        offer("same zone"),
        offer("same region", zone="north-2"),
        offer("same provider", region="south", zone="south-1"),
        offer("other", provider="far"),
    )
    penalties = Penalties()
    penalties.add(every[0], MachineEnd.REFUSED, NOW, reach=reach)
    assert {one.instance_type for one in every if penalties.until(one, NOW) is not None} == out
    penalties.forget(every[0])
    assert all(penalties.until(one, NOW) is None for one in every)


def test_a_file_that_says_something_else_of_a_provider_ends_its_refusals() -> None:
    gone = {"status": MachineStatus.TERMINATED, "terminated_at": NOW, "setup": "first"}
    refused = machine("m1", end=MachineEnd.REFUSED, reach=Reach.REGION, **gone)
    scarce = machine("m2", end=MachineEnd.NO_CAPACITY, offer=offer("scarce"), **gone)
    for setups, is_out in (({}, True), ({"lab": "first"}, True), ({"lab": "second"}, False)):
        penalties = Penalties([refused, scarce], setups)
        assert (penalties.until(offer("other"), NOW) is not None) is is_out
        assert penalties.until(offer("scarce"), NOW) is not None


def test_a_quota_is_named_with_the_providers_words() -> None:
    market = shop(offer())
    (only,) = market.offers["lab"]
    market.penalties.add(only, MachineEnd.QUOTA_REACHED, NOW, message="vCPU limit in north")
    assert sentences(look(waiting(1), market)) == {
        "the account of fleet burst at its provider has reached a quota: vCPU limit in north; "
        f"the next try is at {shown(NOW + 600)}"
    }


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


def offered(cluster: Cluster, market: Market, *machines: Machine) -> list[tuple[str, object]]:
    (run_id,) = cluster.states
    found = offering(cluster.pipeline.index, machines, market, run_id, NOW)
    return [(one.node or one.instance_type or "", one.price) for one in found]


def test_free_nodes_come_before_offers_and_offers_by_how_they_are_tried() -> None:
    cluster = waiting(1, cpu=2.0)
    cluster.set_node(node("own"))
    market = shop(offer("b", price=2.0), offer("a", price=1.0), offer("c", price=3.0, spot=True))
    assert offered(cluster, market) == [("own", None), ("c", 3.0), ("a", 1.0), ("b", 2.0)]


def test_offers_say_why_they_are_not_rented_now() -> None:
    cluster = waiting(1, fleet(budget=Budget(per_hour=1.5)), cpu=2.0)
    market = shop(offer("a", price=1.0), offer("b", price=2.0))
    market.penalties.add(market.offers["lab"][0], MachineEnd.NO_CAPACITY, NOW)
    (run_id,) = cluster.states
    first, second = offering(cluster.pipeline.index, (), market, run_id, NOW)
    assert "has refused a in" in (first.why or "")
    assert "may cost 1.50 an hour" in (second.why or "")


@pytest.mark.parametrize(
    ("limits", "lacks"),
    [
        (
            {"regions": ("mars",)},
            "`machines.regions` of its file allows no offer of its provider, which has north, "
            "south",
        ),
        ({"instance_types": ("huge",)}, "`machines.instance_types` of its file"),
        ({"zones": ("north-9",)}, "`machines.availability_zones` of its file"),
        (
            {"max_price": 0.5},
            "`machines.max_price` of its file allows no offer of its provider, whose cheapest "
            "costs 1.00 an hour",
        ),
        ({"spot": Spot.ONLY}, "`machines.spot` of its file"),
        (
            {"regions": ("south",), "zones": ("north-1",)},
            "`machines.availability_zones` of its file allows no offer of its provider that its "
            "other fields allow",
        ),
    ],
)
def test_the_field_of_a_fleet_that_leaves_no_offer_is_named(
    limits: dict[str, Any], lacks: str
) -> None:
    market = shop(offer(), offer(region="south", zone="south-1"))
    cluster = waiting(1, fleet(**limits))
    (sentence,) = sentences(look(cluster, market))
    assert lacks in sentence
    (run_id,) = cluster.states
    (none,) = offering(cluster.pipeline.index, (), market, run_id, NOW)
    assert (none.instance_type, none.why) == (None, sentence)


def test_a_plan_says_why_nothing_is_rented() -> None:
    cluster = waiting(1, fleet(max_price=0.5))
    state = cluster.states.popitem()[1]
    cluster.pipeline.index.run_changed(state.run.id, None)
    rentals = rentals_of(cluster.pipeline.index)
    rentals.set_offers("lab", Supply(offers=(offer(price=1.5),)))
    found = rentals.rent_of(state, NOW)
    assert found.machines == ()
    assert "`machines.max_price`" in found.why[0]


def test_a_run_that_only_reuses_is_offered_nodes_and_told_why_nothing_else() -> None:
    cluster = limited(creation_policy=CreationPolicy.REUSE)
    cluster.set_node(node("own"))
    (run_id,) = cluster.states
    free, none = offering(cluster.pipeline.index, (), shop(offer()), run_id, NOW)
    assert (free.node, free.why) == ("own", None)
    why = "no machine is rented for it: its creation_policy is reuse"
    assert (none.node, none.fleet, none.instance_type, none.why) == (None, "burst", None, why)


def test_a_plan_costs_what_it_would_add_to_what_is_bought() -> None:
    cluster = waiting(3, cpu=4.0)
    state = cluster.states.popitem()[1]
    cluster.pipeline.index.run_changed(state.run.id, None)
    rentals = rentals_of(cluster.pipeline.index)
    rentals.set_offers("lab", Supply(offers=(offer(price=1.5),)))
    assert rentals.rent_of(state, NOW) == PlannedRent(
        per_hour=1.5, machines=("small in north-1 (on demand, 1.50 an hour)",)
    )
    assert [one.price for one in rentals.offering(state, NOW)] == [1.5]
    assert state.run.id not in cluster.pipeline.index.units


@pytest.mark.parametrize(
    ("spending", "bought", "why"),
    [
        (Spending(), 3, None),
        (Spending(together=Budget(per_hour=2.0)), 2, "this installation may cost 2.00 an hour"),
        (Spending(each_user=Budget(per_hour=1.0)), 1, "user ada may cost 1.00 an hour"),
        (Spending(each_user=Budget(per_hour=1.0), users={"ada": Budget()}), 3, None),
        (Spending(users={"ada": Budget(per_month=1.0)}), 1, "user ada may cost 1.00 a month"),
    ],
    ids=str,
)
def test_users_and_the_installation_have_budgets(
    spending: Spending, bought: int, why: str | None
) -> None:
    found = look(waiting(3, cpu=4.0), shop(offer(), spending=spending))
    assert len(found.orders) == bought
    assert {(one.user, one.run_id is not None) for one in found.orders} == {("ada", True)}
    told = [one for one in sentences(found) if "may cost" in one]
    assert (why is None) is (told == [])
    assert why is None or told[0].startswith(why)


def test_two_fleets_bring_a_user_not_above_his_budget() -> None:
    cluster = Cluster(fleets=(fleet("one"), fleet("two")))
    for name in ("one", "two"):
        cluster.submit(name, fleets=(name,), cpu=4.0)
    found = look(cluster, shop(offer(), spending=Spending(each_user=Budget(per_hour=1.5))))
    assert [(one.fleet, one.user) for one in found.orders] == [("one", "ada")]
    assert len(look(cluster, shop(offer())).orders) == 2


def test_a_user_without_budget_keeps_no_other_from_renting_the_same() -> None:
    cluster = Cluster(fleets=(fleet(),))
    for user in ("ada", "bob"):
        cluster.submit(user, user=user, cpu=4.0)
    spending = Spending(users={"ada": Budget(per_hour=0.5)})
    found = look(cluster, shop(offer(), spending=spending))
    assert [one.user for one in found.orders] == ["bob"]
    assert len([one for one in sentences(found) if one.startswith("user ada may cost")]) == 1


def test_what_was_bought_for_a_user_counts_from_its_order() -> None:
    spending = Spending(each_user=Budget(per_hour=1.5))
    found = look(
        waiting(1, cpu=4.0),
        shop(offer(), spending=spending),
        machine("m1", user="ada", status=MachineStatus.TERMINATING),
        machine("m2", user="bob"),
    )
    assert found.orders == ()


def test_what_a_fleet_keeps_is_no_users() -> None:
    found = look(Cluster(fleets=(fleet(min=1),)), shop(offer()))
    assert [(one.user, one.run_id) for one in found.orders] == [(None, None)]


def test_a_restarted_controller_remembers_what_was_refused() -> None:
    gone = {"status": MachineStatus.TERMINATED, "terminated_at": NOW}
    refused = machine("m1", end=MachineEnd.NO_CAPACITY, message="none left", **gone)
    again = machine("m2", end=MachineEnd.NO_CAPACITY, **{**gone, "ordered_at": NOW + 181.0})
    assert Penalties([refused]).until(offer(), NOW + 179.0) == NOW + 180.0
    assert Penalties([again, refused]).until(offer(), NOW + 182.0) == NOW + 181.0 + 360.0
    came = machine("m3", status=MachineStatus.JOINED, joined_at=NOW + 190.0)
    assert Penalties([again, refused, came]).until(offer(), NOW + 182.0) is None
    idle = machine("m4", end=MachineEnd.IDLE, joined_at=NOW - 9.0, **gone)
    assert Penalties([idle]).until(offer(), NOW) is None
    silent = machine("m5", end=MachineEnd.BOOT_FAILED, terminating_at=NOW + 400.0, **gone)
    assert Penalties([silent]).until(offer(), NOW + 401.0) == NOW + 1000.0


def test_a_failed_boot_in_a_row_is_counted_from_its_order() -> None:
    # Each fails 1200 s after its order, when its offer may be tried again.
    ends = [NOW + 1200.0, NOW + 1200.0 + 600.0 + 1200.0]
    silent = [
        machine(f"m{at}", end=MachineEnd.BOOT_FAILED, ordered_at=at - 1200.0, terminating_at=at)
        for at in ends
    ]
    assert Penalties(silent).until(offer(), ends[-1]) == ends[-1] + 1200.0


def test_machines_that_are_lost_soon_are_left_out_for_longer_and_longer() -> None:
    until, lost = NOW, []
    for wait in (180.0, 360.0, 720.0, 1440.0, 2880.0, 3600.0):
        at = until + 300.0
        times = {"ordered_at": until + 9.0, "joined_at": until + 99.0, "terminating_at": at}
        lost.append(machine(f"m{at}", end=MachineEnd.LOST, short_lived=True, **times))
        until = at + wait
        assert Penalties(lost).until(offer(), at) == until
    # Another machine that joins tells nothing of how long it lives.
    came = machine("m9", status=MachineStatus.JOINED, ordered_at=NOW, joined_at=until - 9.0)
    assert Penalties([*lost, came]).until(offer(), until - 8.0) == until
    long_lived = machine("m8", end=MachineEnd.LOST, joined_at=NOW, terminating_at=NOW + 9000.0)
    assert Penalties([long_lived]).until(offer(), NOW + 9001.0) is None


def test_a_provider_that_the_file_no_longer_names_is_no_offer() -> None:
    found = look(waiting(1), shop(providers=frozenset({"here", "there"})))
    assert found.orders == ()
    (reason,) = found.reasons.values()
    assert isinstance(reason, NoOffer)
    named = fleet().machines
    assert named is not None
    assert reason.lacks == (
        f"the controller's file names no provider {named.provider} (it has here, there): put it "
        "back there, or apply the fleet with another one or with `machines: off`"
    )
    assert look(waiting(1), shop(offer(), providers=frozenset({named.provider}))).orders != ()
