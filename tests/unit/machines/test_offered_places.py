"""Where the jobs of a run could go, and why not."""

from __future__ import annotations

from typing import Any

import pytest

from controller.lifecycle.inventory import Budget, Spot
from controller.lifecycle.machines.market import Market, Supply
from controller.lifecycle.machines.model import Machine, MachineEnd
from controller.scheduling.renting.offered_places import offering
from fairlead.model.answers import PlannedRent
from fairlead.model.needs import CreationPolicy
from tests.unit.machines.looking import limited, look, sentences, waiting
from tests.unit.machines.parts import NOW, fleet, offer, rentals_of, shop
from tests.unit.scheduling.cluster import Cluster
from tests.unit.scheduling.parts import node


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
