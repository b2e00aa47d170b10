"""What is said of a fleet that can rent nothing of what its provider has."""

from __future__ import annotations

from typing import Any

import pytest

from controller.lifecycle.inventory import Budget, Spot
from controller.lifecycle.model import Resources
from controller.scheduling.renting.never_rented import why_never
from fairlead.configuration.convert import ConfigurationError, convert
from fairlead.configuration.values.machines import MachinesFields
from fairlead.model.needs import GpuNeed
from tests.unit.machines.parts import fleet, offer

OFFERS = (offer(price=1.0), offer("dear", price=3.0))


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ({}, None),
        ({"regions": ("nowhere",)}, "`machines.regions` of its file allows no offer"),
        ({"instance_types": ("smal",)}, "which has dear, small"),
        (
            {"spot": Spot.ONLY},
            "`machines.spot` of its file allows no offer of its provider, which has none as spot",
        ),
        ({"max_price": 0.5}, "`machines.max_price` of its file allows no offer"),
        (
            {"resources": Resources(gpu=GpuNeed(count=8))},
            "`machines.resources` of its file: it asks for 8 GPU, and the nearest offer, dear, ",
        ),
        (
            {"resources": Resources(cpu=64.0)},
            "it asks for 64 CPU, and the nearest offer, dear, has 4 free of 4",
        ),
        ({"zones": ("north-9",)}, "allows no offer of its provider, which has north-1"),
        ({"budget": Budget(per_hour=0.5)}, "costs 1.00 an hour, and `budget.per_hour` is 0.50"),
        ({"budget": Budget(per_month=0.5)}, "costs 1.00 an hour, and `budget.per_month` is 0.50"),
        ({"budget": Budget(per_hour=2.0), "min": 2}, None),
        ({"budget": Budget(per_hour=2.0), "min": 3}, "lower `machines.nodes.min`"),
    ],
)
def test_a_fleet_that_can_rent_nothing_says_why(file: dict[str, Any], why: str | None) -> None:
    found = why_never(fleet(**file), OFFERS, {})
    assert found is None if why is None else why in str(found)


def test_nothing_is_said_while_an_offer_may_be_unknown() -> None:
    elsewhere = fleet(regions=("south",))
    assert why_never(elsewhere, OFFERS, {}) is not None
    assert why_never(elsewhere, OFFERS, {"south-1": "it is away"}) is None


def test_what_is_reserved_is_rented_for_runs_that_name_it_and_never_for_the_least() -> None:
    reserved = offer(reservation="cr-1", price=0.0)
    assert why_never(fleet(), (reserved,), {}) is None
    assert "allows only reserved ones" in str(why_never(fleet(min=1), (reserved,), {}))
    poor = fleet(budget=Budget(per_hour=0.5), min=1)
    assert "lower `machines.nodes.min`" in str(why_never(poor, (reserved, *OFFERS), {}))


@pytest.mark.parametrize("value", [True, False, 1], ids=str)
def test_a_file_that_wants_spot_in_no_known_word_is_told_which_there_are(value: object) -> None:
    """YAML reads `on`, `off`, `yes` and `no` as true or false."""
    written = {"provider": "lab", "nodes": 1, "spot": value}
    with pytest.raises(ConfigurationError, match=r"machines\.spot: .*: write never, only or auto"):
        convert(written, MachinesFields, within="machines")
