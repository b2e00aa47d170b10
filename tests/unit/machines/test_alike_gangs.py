"""Gangs that are alike: what they would order is looked for once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from controller.lifecycle.inventory import Budget, Fleet
from controller.lifecycle.machines.model import Machine, Offer
from controller.lifecycle.model import Resources
from controller.scheduling.renting import machine_pool
from controller.scheduling.renting.demand import Demand, demand
from controller.scheduling.renting.machine_bins import Bin, Plan, empty_bin, plan_of
from controller.scheduling.renting.machine_pool import MachinePool
from tests.unit.machines.looking import look, sentences
from tests.unit.machines.parts import NOW, fleet, machine, offer, shop
from tests.unit.scheduling.cluster import Cluster
from tests.unit.scheduling.parts import gang

ZONES = ("north-1", "north-2", "north-3")
OFFERS = tuple(
    offer(f"t{at}", zone=zone, price=1.0 + at, cpu=4.0 + at) for at in range(20) for zone in ZONES
)


class Work:
    """What a look did: the plans that it made, and the offers whose machines it compared."""

    def __init__(self) -> None:
        self.plans = 0
        self.offers: list[str] = []


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    done = Work()

    def plan(*arguments: Any) -> Plan | None:
        done.plans += 1
        return plan_of(*arguments)

    def compared(burst: Fleet, one: Offer, record: Machine | None = None) -> Bin:
        done.offers.append(one.key)
        return empty_bin(burst, one, record)

    monkeypatch.setattr(machine_pool, "plan_of", plan)
    monkeypatch.setattr(machine_pool, "empty_bin", compared)
    return done


def gangs(count: int, fleets: Sequence[Fleet], *, cpu: float = 1.0) -> Cluster:
    cluster = Cluster(fleets=tuple(fleets))
    for at in range(count):
        cluster.submit(f"g{at}", gang(4), user=f"u{at}", cpu=cpu)
    return cluster


def test_what_no_budget_allows_is_planned_once_for_each_zone(work: Work) -> None:
    fleets = [fleet(f"f{at}", budget=Budget(per_hour=0.1)) for at in range(30)]
    found = look(gangs(20, fleets), shop(*OFFERS))
    assert found.orders == ()
    assert len(sentences(found)) == 1
    # Neither users, nor fleets, nor gangs count.
    assert work.plans == len(ZONES)
    assert len(work.offers) == len(ZONES)


def test_fleets_with_machines_plan_there_by_themselves(work: Work) -> None:
    fleets = [fleet(f"f{at}", budget=Budget(per_hour=0.1)) for at in range(3)]
    full = machine("m1", fleet="f0", offer=offer("tiny", cpu=0.5, zone=ZONES[0]))
    assert look(gangs(20, fleets), shop(*OFFERS), full).orders == ()
    # For each gang: what is there alone, and its zone.
    assert work.plans == 20 * 2 + len(ZONES)


@pytest.mark.parametrize("count", [1, 3])
def test_what_is_planned_once_is_ordered_as_without_it(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleets = [fleet(f"f{at}", max=4 + at, budget=Budget(per_hour=9.0 + at)) for at in range(3)]
    cluster = gangs(count, fleets, cpu=3.0)
    # The first job needs a larger machine, which is behind the one for the others.
    own = {"big": {"resources": Resources(cpu=9.0)}, "small": {"resources": Resources(cpu=2.0)}}
    for at in range(count):
        cluster.submit(f"mixed{at}", gang(1, name="big"), gang(2, name="small"), own=own)
    market = shop(*OFFERS)
    shared = look(cluster, market)

    def alone(self: MachinePool, unit: Any, burst: Fleet, there: Any, bought: Any) -> Plan | None:
        return plan_of(unit, burst, there, bought, self._to_order)

    monkeypatch.setattr(MachinePool, "_plan_in", alone)
    assert _told(shared) == _told(demand(cluster.pipeline.index, (), market, NOW))


def test_a_fleet_orders_what_another_one_was_refused() -> None:
    fleets = [fleet("poor", budget=Budget(per_hour=0.1)), fleet("rich")]
    cluster = Cluster(fleets=tuple(fleets))
    own = {"big": {"resources": Resources(cpu=9.0)}, "small": {"resources": Resources(cpu=2.0)}}
    cluster.submit("mixed", gang(1, name="big"), gang(2, name="small"), own=own)
    found = look(cluster, shop(*OFFERS))
    assert [(one.fleet, one.offer.instance_type) for one in found.orders] == [
        ("rich", "t5"),
        ("rich", "t0"),
    ]


def _told(found: Demand) -> tuple[Any, ...]:
    return found.orders, found.reasons, found.answers
