"""The present prices of spot machines, by type and zone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from controller.clouds.aws.calls import Calls

EVERY_SECONDS = 1800.0


class SpotPrices:
    """The present prices of spot machines, by type and zone."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._known: dict[str, tuple[float, dict[tuple[str, str], float]]] = {}

    async def of(self, region: str, types: Sequence[str]) -> Mapping[tuple[str, str], float]:
        """Raises CloudError: so an account that may do nothing has no offers, and nothing is
        ordered from it."""
        now = asyncio.get_running_loop().time()
        known = self._known.get(region)
        if known is not None and now < known[0]:
            return known[1]
        pages = await self._calls.pages(
            region,
            "describe_spot_price_history",
            InstanceTypes=list(types),
            ProductDescriptions=["Linux/UNIX"],
            # With the present time, EC2 tells the latest price of each zone, and no history.
            StartTime=datetime.now(UTC),
        )
        prices = {
            (one["InstanceType"], one["AvailabilityZone"]): float(one["SpotPrice"])
            for page in pages
            for one in page.get("SpotPriceHistory", ())
        }
        self._known[region] = (now + EVERY_SECONDS, prices)
        return prices
