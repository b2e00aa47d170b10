"""Which offers of a provider are bought at all."""

from __future__ import annotations

import math

import pytest

from controller.clouds.base import KnownOffers
from controller.lifecycle.inventory import MachinesPolicy
from controller.lifecycle.machines.market import allowed
from controller.lifecycle.machines.model import attributes_of_offer
from controller.machines.supplies import Supplies
from fairlead.model.costs import price_words
from fairlead.model.needs import RentLimits
from tests.doubles.clock import ManualClock
from tests.doubles.clouds import MemoryCloud
from tests.unit.machines.parts import NOW, offer


async def test_a_price_that_is_no_number_would_pass_each_budget_and_is_never_bought() -> None:
    supplies = Supplies("lab", MemoryCloud(), lambda: (), ManualClock(NOW))
    wrong = [offer(f"wrong {price}", price=price) for price in (math.nan, math.inf, -1.0)]
    told = await supplies.of(KnownOffers(offers=(*wrong, offer())))
    assert told.offers == (offer(),)


@pytest.mark.parametrize(
    ("price", "rate", "limit"), [(0.1, 1.1, 0.11), (1.2302, 1.1, 1.35322), (1 / 24, 1.0, 0.041667)]
)
async def test_a_limit_that_is_copied_from_a_price_allows_it(
    price: float, rate: float, limit: float
) -> None:
    supplies = Supplies("lab", MemoryCloud(), lambda: (), ManualClock(NOW))
    told = await supplies.of(KnownOffers(offers=(offer(price=price),)).at(rate))
    (one,) = told.offers
    assert one.price == limit == float(price_words(one.price))
    rents = MachinesPolicy(provider="lab", max=1, max_price=limit)
    assert allowed(rents, [one]) == [one]
    assert RentLimits(max_price=limit).constraints()[0].values == (
        attributes_of_offer(one)["price"],
    )
