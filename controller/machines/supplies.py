"""Supplies say what may be bought at one provider: its offers, in the account that it uses now."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable

import msgspec

from controller.clock import Clock
from controller.clouds.base import (
    Cloud,
    CloudAway,
    CloudError,
    KnownOffers,
    account_or_none,
    answer_of,
)
from controller.lifecycle.machines.market import Supply
from controller.lifecycle.machines.model import Machine, Offer
from controller.lifecycle.machines.reconcile import elsewhere
from fairlead.model.costs import in_millionths

OFFERS_EVERY_SECONDS = 600.0
_OFFERS_SOON_SECONDS = 30.0
"""While some are not known, or none may be bought."""
MAX_OFFERS_AGE_SECONDS = 3600.0
"""Limits of price and budgets count with the prices of offers."""


class Supplies:
    """Asks one provider for its offers. `records`: the committed ones, newest."""

    def __init__(
        self,
        provider: str,
        cloud: Cloud,
        records: Callable[[], Iterable[Machine]],
        clock: Clock,
    ) -> None:
        self._provider = provider
        self._cloud = cloud
        self._records = records
        self._clock = clock

    async def keep(self, tell: Callable[[str, Supply | str], None]) -> None:
        """Tell what the provider rents, or why it tells nothing, until cancelled."""
        known_at = self._clock.now()
        while True:
            supply: Supply | str
            try:
                before = await account_or_none(self._provider, self._cloud)
                supply = await self.of(await answer_of(self._provider, self._cloud.offers()))
                if supply.account != before:
                    raise CloudAway("its account changed while it told its offers")
                is_whole = supply.barred is None and not supply.unknown
                known_at = self._clock.now()
            except CloudError as error:
                supply, is_whole = str(error), False
                # The clock may have been put back since.
                known_at = min(known_at, self._clock.now())
                if self._clock.now() - known_at >= MAX_OFFERS_AGE_SECONDS:
                    supply = Supply(barred=f"its offers have not been told for an hour: {error}")
            tell(self._provider, supply)
            await asyncio.sleep(OFFERS_EVERY_SECONDS if is_whole else _OFFERS_SOON_SECONDS)

    async def of(self, known: KnownOffers) -> Supply:
        """Return what is bought of these offers: nothing while the provider uses another account
        than that of machines which have not ended. Raises CloudError: the account is not known."""
        try:
            account = await answer_of(self._provider, self._cloud.account())
        except CloudError as error:
            raise CloudAway(f"its account is not known: {error}") from None
        own = (one for one in self._records() if one.offer.provider == self._provider)
        away = [one for one in own if one.is_live and one.account not in (None, account)]
        if away:
            barred = f"machine {away[0].name}: {elsewhere(away[0], account)}"
            return Supply(account=account, barred=barred)
        # No comparison with a price that is no number refuses it, so no budget would.
        offers = tuple(as_written(one) for one in known.offers if 0 <= one.price < math.inf)
        return Supply(offers=offers, account=account, unknown=known.unknown)


def as_written(offer: Offer) -> Offer:
    """Return the offer with a price that users can write as a limit: one that was multiplied by a
    rate has more digits."""
    price = in_millionths(offer.price)
    return offer if price == offer.price else msgspec.structs.replace(offer, price=price)
