"""Which offers of a provider are bought at all."""

from __future__ import annotations

import math

from controller.clouds.base import KnownOffers
from controller.machines.supplies import Supplies
from tests.doubles.clock import ManualClock
from tests.doubles.clouds import MemoryCloud
from tests.unit.machines.parts import NOW, offer


async def test_a_price_that_is_no_number_would_pass_each_budget_and_is_never_bought() -> None:
    supplies = Supplies("lab", MemoryCloud(), lambda: (), ManualClock(NOW))
    wrong = [offer(f"wrong {price}", price=price) for price in (math.nan, math.inf, -1.0)]
    told = await supplies.of(KnownOffers(offers=(*wrong, offer())))
    assert told.offers == (offer(),)
