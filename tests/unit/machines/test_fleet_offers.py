"""What fleets may rent, told once for all fleets of the same terms."""

from __future__ import annotations

from typing import Any

import pytest

from controller.lifecycle.inventory import Budget, Fleet
from controller.lifecycle.machines.model import Offer
from controller.lifecycle.model import Constraint, Group, Resources
from controller.lifecycle.renting_reasons import NoOffer
from controller.scheduling.fitting.capacity import Need
from controller.scheduling.renting import fleet_offers
from controller.scheduling.renting.demand import Demand
from controller.scheduling.renting.fleet_offers import FleetOffers
from controller.scheduling.renting.machine_bins import Bin, empty_bin
from fairlead.model.needs import Operator
from tests.unit.machines.looking import look, sentences
from tests.unit.machines.parts import GIB, fleet, gpu_offer, offer, shop
from tests.unit.scheduling.cluster import Cluster

OFFERS = tuple(
    offer(f"t{number}", zone=f"north-{zone}", price=1.0 + number, cpu=4.0 + number, spot=spot)
    for number in range(10)
    for zone in (1, 2)
    for spot in (False, True)
)


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The offers of which an empty machine was made to compare jobs with."""
    found: list[str] = []

    def counting(burst: Fleet, one: Offer) -> Bin:
        found.append(one.key)
        return empty_bin(burst, one)

    monkeypatch.setattr(fleet_offers, "empty_bin", counting)
    return found


def test_fleets_of_the_same_terms_look_at_each_offer_once(looked: list[str]) -> None:
    # Budgets, sizes and times are no terms: they leave no offer out.
    fleets = tuple(
        fleet(f"f{at}", max=at + 1, boot_limit=60.0 * (at + 1), budget=Budget(per_hour=at + 9.0))
        for at in range(30)
    )
    cluster = Cluster(fleets=fleets)
    for at in range(10):
        cluster.submit(f"r{at}", cpu=100.0 + at)
    found = look(cluster, shop(*OFFERS))
    assert len(looked) == len(OFFERS)
    assert len(sentences(found)) == 10


def test_limits_of_offers_are_terms_and_machines_are_made_once_all_the_same(
    looked: list[str],
) -> None:
    fleets = (fleet("a", max_price=3.0), fleet("b", zones=("north-2",)), fleet("c"))
    cluster = Cluster(fleets=fleets)
    for one in fleets:
        cluster.submit(one.name, fleets=(one.name,), cpu=8.0)
    found = look(cluster, shop(*OFFERS))
    assert [(one.fleet, one.offer.instance_type, one.offer.zone) for one in found.orders] == [
        ("b", "t4", "north-2"),
        ("c", "t4", "north-1"),
    ]
    (lacks,) = sentences(found) - {one for one in sentences(found) if "rents a machine" in one}
    assert lacks.startswith("fleet a rents no machine for it: it needs 8 CPU, and the nearest ")
    assert lacks.endswith("offer, t2, has 6 free of 6")
    assert len(looked) == len(OFFERS)


def told(fleets: tuple[Fleet, ...], *submitted: dict[str, Any]) -> Demand:
    cluster = Cluster(fleets=fleets)
    for at, one in enumerate(submitted):
        one = dict(one)
        groups = (Group(name="main", nodes=3, gang_size=3),) if one.pop("gang", False) else ()
        cluster.submit(f"r{at}", *groups, **one)
    return look(cluster, shop(*OFFERS, gpu_offer(price=30.0)))


def by_attribute(name: str, *values: str) -> dict[str, Any]:
    return {
        "constraints": (Constraint(attribute=name, operator=Operator.IN, values=values),),
        "cpu": 1.0,
    }


@pytest.mark.parametrize(
    "submitted",
    [
        ({"cpu": 1.0},) * 3,
        ({"cpu": 99.0}, {"cpu": 100.0}),
        ({"cpu": 12.0, "fleets": ("f1",)}, {"cpu": 12.0, "fleets": ("f2", "f0")}),
        (by_attribute("fleet", "f1"), by_attribute("fleet", "f2"), by_attribute("fleet", "none")),
        (by_attribute("zone", "north-2"), by_attribute("site", "berlin")),
        ({"cpu": 5.0, "gang": True}, {"cpu": 99.0, "gang": True}),
        ({"cpu": 5.0, "gang": True, "fleets": ("f2",)}, by_attribute("fleet", "f2")),
    ],
    ids=str,
)
def test_the_same_terms_tell_what_each_fleets_own_terms_do(
    submitted: tuple[dict[str, Any], ...],
) -> None:
    shared = tuple(fleet(f"f{at}", max=4) for at in range(3))
    # A price that leaves no offer out is a term of its own.
    apart = tuple(fleet(f"f{at}", max=4, max_price=1000.0 + at) for at in range(3))
    one, other = told(shared, *submitted), told(apart, *submitted)
    assert [(each.fleet, each.offer) for each in one.orders] == [
        (each.fleet, each.offer) for each in other.orders
    ]
    assert sentences(one) == sentences(other)


def test_what_a_fleet_keeps_is_of_its_own_terms() -> None:
    least = Resources(cpu=12.0, memory=GIB, disk=0)
    fleets = (fleet("small", min=1), fleet("large", min=1, resources=least))
    found = look(Cluster(fleets=fleets), shop(*OFFERS))
    assert [(one.fleet, one.offer.instance_type) for one in found.orders] == [
        ("small", "t0"),
        ("large", "t8"),
    ]


def test_a_fleet_is_not_told_that_its_own_name_is_in_the_way() -> None:
    both = (
        Constraint(attribute="fleet", operator=Operator.IN, values=("f1",)),
        Constraint(attribute="site", operator=Operator.IN, values=("berlin",)),
    )
    need = Need(Resources(cpu=1.0, memory=GIB, disk=0), ((), both))
    offers = FleetOffers(shop(*OFFERS), 0.0)
    told = [offers.fitting(fleet(name), need) for name in ("f0", "f1")]
    words = [one.lacks.partition("asks for ")[2] for one in told if isinstance(one, NoOffer)]
    assert words == ["(fleet in f1, site in berlin)", "(site in berlin)"]
