"""Gangs that lose spot machines: the next ones are ordered while the gang still stops."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from controller.lifecycle.attempts.allocations import is_kept
from controller.lifecycle.decide import decide
from controller.lifecycle.draft import DecisionContext
from controller.lifecycle.inventory import Budget
from controller.lifecycle.machines.market import Market
from controller.lifecycle.machines.model import Machine, MachineEnd, MachineStatus, Offer
from controller.lifecycle.model import Group, NodeStatus, RetryPolicy, RunPolicy
from controller.lifecycle.renting_reasons import BuysMachine, ProviderAway
from controller.lifecycle.reports import Report, RunnerExited, StopRequested, TaskRemoved
from controller.scheduling.renting.demand import Demand
from fairlead.model.needs import CreationPolicy, RentLimits
from fairlead.model.reasons import Reason, RetryEvent, SwitchReason
from fairlead.model.statuses import AttemptStatus
from tests.unit.machines.looking import look, types
from tests.unit.machines.parts import NOW, fleet, machine, offer, shop
from tests.unit.scheduling.cluster import Cluster
from tests.unit.scheduling.parts import new_id, node

SPOT, STEADY = offer("spot", spot=True, price=0.5), offer("steady")
MARKET = shop(SPOT, STEADY, offer("cheap", zone="north-2", price=0.1))
"""The cheapest machine is where no rank can be."""
NOTHING_FITS = shop(offer("tiny", cpu=0.5))


class Bed:
    """A gang that runs on spot machines, one rank on each."""

    def __init__(self, ranks: int = 2, spares: int = 0, buys: bool = True) -> None:
        names = [f"m{number}" for number in range(ranks + spares)]
        spot = {"spot": "true"}
        nodes = (node(name, fleet="burst", attributes=spot) for name in names)
        self.cluster = Cluster(*nodes, fleets=(fleet(),))
        rent = RentLimits() if buys else RentLimits(creation_policy=CreationPolicy.REUSE)
        self.run_id = self.cluster.submit(
            "gang",
            Group(name="main", nodes=len(names), gang_size=ranks),
            policy=RunPolicy(retry=RetryPolicy(on_events=frozenset(RetryEvent))),
            whole_node=True,
            own={"main": {"rent": rent}},
        )
        self.cluster.settle()
        self.cluster.start_all()
        self.machines = [
            machine(name, offer=SPOT, status=MachineStatus.JOINED, joined_at=NOW) for name in names
        ]

    def recall(self, *names: str) -> None:
        """The provider announces that it takes these machines back."""
        cluster = self.cluster
        for name in names:
            at = cluster.now + 120.0
            there = replace(cluster.node(name), draining=True, recalled_at=at)
            cluster.set_node(there)
        self.decide()

    def decide(self, *reports: Report) -> None:
        """Decide the run with what its nodes are."""
        cluster = self.cluster
        nodes = cluster.pipeline.index.nodes.values()
        recalled = {one.id: one.recalled_at for one in nodes if one.recalled_at is not None}
        here = frozenset(recalled)
        around = DecisionContext(unusable_nodes=here, draining_nodes=here, recalled=recalled)
        state = cluster.states[self.run_id]
        after = decide(state, reports, cluster.now, new_id, context=around).state
        cluster.states[self.run_id] = after
        cluster.pipeline.run_changed(self.run_id, after)

    def look(self, market: Market = MARKET, *more: Machine) -> Demand:
        return look(self.cluster, market, *self.machines, *more)

    def told(self, market: Market = MARKET, *more: Machine) -> list[str | None]:
        """What becomes of the attempts that a recall ends, once they are told."""
        self.cluster.tell(self.run_id, *self.look(market, *more).answers)
        lasts = (job.attempts[-1] for job in self.cluster.states[self.run_id].jobs)
        recalled = Reason.INTERRUPTED_BY_NO_CAPACITY
        return [one.waits_for for one in lasts if one.reason is recalled]

    def answered(self, market: Market, *more: Machine) -> None:
        """Demand has looked, the run is told, and a pass follows."""
        self.cluster.tell(self.run_id, *self.look(market, *more).answers)
        self.cluster.settle()

    def stopped(self) -> None:
        """All ranks have stopped, and the next incarnation begins."""
        for job in self.cluster.states[self.run_id].jobs:
            attempt = job.attempts[-1]
            gone = not is_kept(self.cluster.states[self.run_id].run, attempt)
            ids = {"run_id": self.run_id, "attempt_id": attempt.id}
            self.decide(TaskRemoved(allocation_released=gone, **ids))
        assert self.cluster.attempt(self.run_id).number == 1

    def fail(self, index: int) -> None:
        """A rank ends by itself, with an error."""
        ids = {"run_id": self.run_id, "attempt_id": self.cluster.attempt(self.run_id, index).id}
        self.decide(RunnerExited(reason=Reason.OUT_OF_MEMORY, exit_code=137, **ids))

    def order(self, name: str, offered: Offer, **more: Any) -> None:
        """A machine is on order; its node has told nothing yet."""
        index = self.cluster.pipeline.index
        index.machine_changed(machine(name, offer=offered))
        nothing = {"cpu": 0.0, "memory": 0, "disk": 0}
        expected = {"status": NodeStatus.EXPECTED, "capacity": nothing, "fleet": "burst"}
        self.cluster.set_node(node(name, **(expected | more)))

    def join(self, name: str) -> None:
        """The machine is a node that takes work."""
        joined = machine(name, status=MachineStatus.JOINED, joined_at=NOW)
        self.cluster.pipeline.index.machine_changed(joined)
        self.cluster.set_node(node(name, fleet="burst"))

    def refuse(self, name: str) -> None:
        """The provider has no such machine."""
        refused = machine(name, status=MachineStatus.TERMINATED, end=MachineEnd.NO_CAPACITY)
        self.cluster.pipeline.index.machine_changed(refused)
        self.cluster.remove_node(name)

    def switches(self) -> list[str]:
        return [one.reason for one in self.cluster.states[self.run_id].run.switches]


def test_one_machine_is_ordered_for_the_rank_that_is_recalled_where_the_others_are() -> None:
    bed = Bed(ranks=3)
    assert bed.look().orders == ()
    bed.recall("m1")
    (order,) = bed.look().orders
    assert (order.offer, order.run_id, order.group) == (STEADY, bed.run_id, None)


def test_what_was_ordered_at_the_notice_is_all_that_the_gang_gets() -> None:
    bed = Bed()
    bed.recall("m1")
    coming = machine("m9", offer=STEADY)
    found = bed.look(MARKET, coming)
    assert (found.orders, found.wanted) == ((), frozenset({"m9"}))
    bed.stopped()
    found = bed.look(MARKET, coming)
    assert (found.orders, found.wanted) == ((), frozenset({"m9"}))
    bed.cluster.set_node(node("m9", fleet="burst"))
    bed.cluster.settle()
    assert set(bed.cluster.places(bed.run_id).values()) == {"m0", "m9"}


def test_a_machine_that_is_there_before_the_gang_has_stopped_is_kept() -> None:
    bed = Bed()
    bed.recall("m1")
    bed.cluster.set_node(node("m9", fleet="burst"))
    there = machine("m9", offer=STEADY, status=MachineStatus.JOINED, joined_at=NOW)
    found = bed.look(MARKET, there)
    assert (found.orders, found.awaiting) == ((), frozenset({"m9"}))


def test_a_spare_job_takes_the_rank_so_nothing_is_ordered() -> None:
    bed = Bed(ranks=2, spares=1)
    bed.recall("m1")
    assert bed.look().orders == ()
    bed.recall("m2")
    assert types(bed.look()) == ["steady"]


def test_a_second_recall_while_the_gang_stops_orders_another_machine() -> None:
    bed = Bed(ranks=3)
    bed.recall("m1")
    coming = machine("m9", offer=STEADY)
    assert bed.look(MARKET, coming).orders == ()
    bed.recall("m2")
    (order,) = bed.look(MARKET, coming).orders
    assert order.offer is STEADY
    bed.stopped()
    (order,) = bed.look(MARKET, coming).orders
    assert order.offer is STEADY


def test_a_gang_that_loses_all_its_machines_orders_them_together_in_one_zone() -> None:
    bed = Bed()
    bed.recall("m0", "m1")
    found = bed.look()
    assert types(found) == ["cheap", "cheap"]
    (group,) = {order.group for order in found.orders}
    assert group is not None


def test_nothing_is_ordered_for_a_rank_that_failed_where_it_has_room_of_its_own() -> None:
    bed = Bed(ranks=3)
    bed.fail(1)
    assert bed.look().orders == ()
    bed.recall("m2")
    # That rank had ended with the switch already, and its spot machine is lost all the same.
    assert types(bed.look()) == ["steady"]
    # Its room is kept for the gang, which then waits for the other machine alone.
    bed.stopped()
    assert [one.node_id for one in bed.cluster.nominated(bed.run_id)] == ["m1"]
    assert types(bed.look()) == ["steady"]
    bed.cluster.set_node(node("m9", fleet="burst"))
    bed.cluster.settle()
    assert set(bed.cluster.places(bed.run_id).values()) == {"m0", "m1", "m9"}


def test_a_gang_orders_nothing_where_its_fleet_has_no_room_for_all_that_it_lacks() -> None:
    bed = Bed()
    bed.cluster.pipeline.fleet_changed("burst", fleet(max=3))
    bed.recall("m0", "m1")
    assert bed.look().orders == ()
    why = (
        "fleet burst may have 3 machines (`machines.nodes.max`); it has 2, and what is needed "
        "would add 2"
    )
    told = f"its provider takes the node back; no replacement is ordered yet: {why}"
    assert bed.told() == [told, told]


def test_the_budget_of_an_hour_counts_the_machine_until_it_is_gone() -> None:
    bed = Bed()
    bed.cluster.pipeline.fleet_changed("burst", fleet(budget=Budget(per_hour=1.9)))
    bed.recall("m1")
    assert bed.look().orders == ()
    bed.machines.pop()
    assert types(bed.look()) == ["steady"]


def test_a_gang_that_was_refused_an_offer_waits_for_its_turn_to_order_it() -> None:
    bed = Bed()
    refused = machine(
        "old",
        offer=STEADY,
        status=MachineStatus.TERMINATED,
        end=MachineEnd.NO_CAPACITY,
        group="g",
        run_id=bed.run_id,
        ordered_at=NOW - 600.0,
    )
    bed.recall("m1")
    assert bed.look(shop(STEADY), refused).orders == ()


def test_a_gang_that_only_reuses_orders_nothing() -> None:
    bed = Bed(buys=False)
    bed.recall("m1")
    assert bed.look().orders == ()


def test_a_gang_that_is_stopped_meanwhile_orders_nothing_and_says_nothing_of_it() -> None:
    bed = Bed()
    bed.recall("m1")
    assert bed.look().orders != ()
    (before,) = bed.told(MARKET, machine("m9", offer=STEADY))
    assert before is not None
    assert "a replacement is ordered" in before
    bed.cluster.tell(bed.run_id, StopRequested(run_id=bed.run_id, by="ada", abort=False))
    assert bed.look().orders == ()
    assert bed.told() == ["its provider takes the node back"]


@pytest.mark.parametrize("is_known", [False, True])
def test_the_rank_that_is_recalled_says_what_replaces_its_machine(is_known: bool) -> None:
    bed = Bed()
    bed.recall("m1")
    coming = (machine("m9", offer=STEADY, instance_id="i-9"),) if is_known else ()
    (told,) = bed.told(MARKET, *coming)
    what = "m9: steady" if is_known else "steady"
    stage = "booting, ordered" if is_known else "ordered"
    assert told == (
        f"its provider takes the node back; a replacement is ordered (machine {what} in north-1 "
        f"(on demand, 1.00 an hour), {stage} at 22:13:20 UTC)"
    )
    assert bed.look(MARKET, *coming).answers == ()
    # The other rank only stops with it.
    lasts = [job.attempts[-1] for job in bed.cluster.states[bed.run_id].jobs]
    assert [one.status for one in lasts] == [AttemptStatus.TERMINATING] * 2
    assert [one.waits_for is None for one in lasts] == [True, False]


@pytest.mark.parametrize("unfit", [None, "its engine starts"])
def test_the_gang_goes_on_in_what_survived_while_its_next_machine_boots(unfit: str | None) -> None:
    bed = Bed()
    bed.recall("m1")
    bed.order("m9", STEADY, unfit=unfit)
    bed.stopped()
    bed.cluster.settle()
    assert bed.switches() == [SwitchReason.JOB_ABORTED]
    assert set(bed.cluster.places(bed.run_id).values()) == {"m0"}
    bed.join("m9")
    bed.cluster.settle()
    assert set(bed.cluster.places(bed.run_id).values()) == {"m0", "m9"}
    assert bed.switches() == [SwitchReason.JOB_ABORTED]


def test_the_gang_gives_its_room_back_once_its_next_machine_does_not_come() -> None:
    bed = Bed()
    bed.recall("m1")
    bed.order("m9", STEADY)
    bed.stopped()
    bed.cluster.settle()
    bed.answered(MARKET, machine("m9", offer=STEADY))
    bed.refuse("m9")
    bed.cluster.settle()
    # The next offer may be open.
    assert bed.switches() == [SwitchReason.JOB_ABORTED]
    bed.answered(NOTHING_FITS)
    assert bed.switches() == [SwitchReason.JOB_ABORTED, SwitchReason.PLACEMENT_TOO_SMALL]


def test_a_gang_that_demand_has_not_refused_keeps_its_room() -> None:
    bed = Bed()
    bed.recall("m1")
    bed.stopped()
    bed.cluster.settle()
    bed.answered(shop())
    assert isinstance(bed.cluster.attempt(bed.run_id, 1).renting, ProviderAway)
    assert bed.switches() == [SwitchReason.JOB_ABORTED]
    bed.answered(MARKET)
    assert isinstance(bed.cluster.attempt(bed.run_id, 1).renting, BuysMachine)
    assert bed.switches() == [SwitchReason.JOB_ABORTED]


def test_a_gang_whose_fleet_rents_no_more_gives_its_room_back_at_once() -> None:
    bed = Bed()
    bed.recall("m1")
    bed.cluster.pipeline.fleet_changed("burst", replace(fleet(), machines=None))
    bed.stopped()
    bed.cluster.settle()
    assert bed.switches() == [SwitchReason.JOB_ABORTED, SwitchReason.PLACEMENT_TOO_SMALL]


def test_a_gang_that_only_reuses_gives_its_room_back_once_it_is_told() -> None:
    bed = Bed(buys=False)
    bed.recall("m1")
    bed.stopped()
    bed.cluster.settle()
    bed.answered(MARKET)
    assert bed.switches() == [SwitchReason.JOB_ABORTED, SwitchReason.PLACEMENT_TOO_SMALL]


@pytest.mark.parametrize(
    ("ordered", "more"),
    [(offer("tiny", cpu=0.5), {}), (STEADY, {"draining": True}), (STEADY, {"fleet": "own"})],
)
def test_a_machine_on_order_that_never_holds_a_rank_keeps_no_gang(
    ordered: Offer, more: dict[str, Any]
) -> None:
    bed = Bed()
    bed.recall("m1")
    bed.order("m9", ordered, **more)
    bed.stopped()
    bed.cluster.settle()
    bed.answered(NOTHING_FITS, machine("m9", offer=ordered, fleet=more.get("fleet", "burst")))
    assert bed.switches() == [SwitchReason.JOB_ABORTED, SwitchReason.PLACEMENT_TOO_SMALL]
