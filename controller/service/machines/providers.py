"""An admin's requests about providers of machines: which there are, and whether they work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from common.refusals import Conflict, Invalid, NotFound, Unavailable
from controller.clock import Chance, Clock
from controller.clouds.base import (
    Cloud,
    CloudError,
    Examined,
    Examines,
    KnownOffers,
    Refreshes,
    answer_of,
)
from controller.lifecycle.machines.model import Offer
from controller.machines.manager import MachineManager
from controller.machines.supplies import Supplies, as_written
from controller.machines.trial import Trial
from controller.service.accounts.rights import require_admin
from controller.store.accounts import User
from fairlead.documents.providers import CatalogSource

_OLD_SECONDS = 30 * 86400.0
_DAY = 86400.0


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider rents. `source`: where its prices come from; `read_at`: when they were read
    from its API, None: never, or each time. `notes`: what is to be known of them, as sentences."""

    source: CatalogSource
    read_at: float | None = None
    notes: tuple[str, ...] = ()
    offers: tuple[Offer, ...]


class ProviderService:
    """`manager` None: this controller has no providers."""

    def __init__(self, chance: Chance, clock: Clock, manager: MachineManager | None) -> None:
        self._chance = chance
        self._clock = clock
        self._manager = manager

    async def offered(self, name: str, user: User) -> Offered:
        """Return what the provider rents, and where its prices come from.

        Raises Forbidden, NotFound, Unavailable.
        """
        require_admin(user, "read the offers of a provider")
        _, cloud = self._cloud(name)
        try:
            known = await answer_of(name, cloud.offers())
        except CloudError as error:
            raise Unavailable(str(error)) from None
        return self._offered(cloud, known)

    @staticmethod
    def _offered(cloud: Cloud, known: KnownOffers) -> Offered:
        offers = tuple(map(as_written, known.offers))
        notes = tuple(f"{place}: not known: {why}" for place, why in known.unknown.items())
        if not isinstance(cloud, Refreshes):
            return Offered(source=CatalogSource.PROVIDER, notes=notes, offers=offers)
        reading = cloud.catalog.reading
        if reading is None:
            return Offered(source=CatalogSource.RELEASE, notes=notes, offers=offers)
        return Offered(
            source=CatalogSource.API,
            read_at=reading.read_at,
            notes=(*reading.notes, *notes),
            offers=offers,
        )

    async def refresh(self, name: str, user: User) -> Offered:
        """Read the provider's types and prices from its API, and rent by them from now on.

        Raises Forbidden, NotFound, Unavailable.
        """
        require_admin(user, "read the prices of a provider again")
        manager, cloud = self._cloud(name)
        try:
            if isinstance(cloud, Refreshes):
                await answer_of(name, cloud.refresh())
            known = await answer_of(name, cloud.offers())
            await manager.offered(name, known)
        except CloudError as error:
            raise Unavailable(str(error)) from None
        return self._offered(cloud, known)

    async def check(self, name: str, user: User) -> list[Examined]:
        """Try what orders at this provider need; no machine is made. Without a fault, requests that
        the provider refused as such are tried again.

        Raises Forbidden, NotFound, Unavailable.
        """
        require_admin(user, "check a provider")
        manager, cloud = self._cloud(name)
        found = await self._examined(name, manager, cloud)
        if all(one.fault is None for one in found):
            manager.found_faultless(name)
        return found

    async def _examined(self, name: str, manager: MachineManager, cloud: Cloud) -> list[Examined]:
        try:
            known = await answer_of(name, cloud.offers())
        except CloudError as error:
            return [Examined(what="credentials and offers", fault=str(error))]
        if not known.offers and not known.unknown:
            fault = "it has none: see its regions and prices in the controller's file"
            # It may know the field that is wrong, such as a location that does not exist.
            named = await _needs(name, cloud)
            return [Examined(what="credentials"), Examined(what="offers", fault=fault), *named]
        found = [Examined(what=f"credentials and {len(known.offers)} offers")]
        found += (
            Examined(what=f"offers in {one}", fault=why) for one, why in known.unknown.items()
        )
        found += await self._account(manager.supplies[name], known)
        found.append(await _listed(name, cloud, manager.installation))
        if isinstance(cloud, Refreshes):
            found.append(self._aged(name, cloud))
            found += _unpriced(cloud)
        return [*found, *await _needs(name, cloud)]

    @staticmethod
    async def _account(supplies: Supplies, known: KnownOffers) -> list[Examined]:
        try:
            supply = await supplies.of(known)
        except CloudError as error:
            return [Examined(what="the account of its machines", fault=str(error))]
        if supply.barred is not None:
            return [Examined(what="the account of its machines", fault=supply.barred)]
        return [] if supply.account is None else [Examined(what=f"account {supply.account}")]

    def _aged(self, name: str, cloud: Refreshes) -> Examined:
        reading = cloud.catalog.reading
        if reading is None:
            note = f"of the release, never read: run `fairlead offers refresh {name}`"
            return Examined(what="prices", note=note)
        read_at = min((reading.read_at, *reading.older.values()))
        days = int((self._clock.now() - read_at) // _DAY)
        what = f"prices, read from the API {days} days ago"
        if days * _DAY < _OLD_SECONDS:
            return Examined(what=what)
        return Examined(what=what, note=f"run `fairlead offers refresh {name}`")

    async def try_one(self, name: str, instance_type: str | None, user: User) -> Trial:
        """Begin to make one machine and end it: the cheapest on demand, or one of this type.

        Raises Forbidden, NotFound, Unavailable, Conflict, Invalid.
        """
        require_admin(user, "make a machine to check a provider")
        manager, cloud = self._cloud(name)
        try:
            known = await answer_of(name, cloud.offers())
            offer = _cheapest(known.offers, instance_type)
        except CloudError as error:
            raise Unavailable(str(error)) from None
        if offer is None:
            wanted = "" if instance_type is None else f" of the type {instance_type}"
            raise Invalid(f"provider {name} has no offer{wanted} on demand", field="instance_type")
        # Nothing waits from here on, so of two requests the second one is refused.
        before = manager.trials.get(name)
        if before is not None and not before.is_over:
            raise Conflict(
                f"a check of provider {name} makes a machine right now", field="provider"
            )
        return manager.try_one(name, offer, self._chance.new_id())

    def trial(self, name: str, user: User) -> Trial:
        """Return the latest such check. Raises Forbidden, NotFound, Unavailable."""
        require_admin(user, "read the check of a provider")
        manager, _ = self._cloud(name)
        if (found := manager.trials.get(name)) is None:
            raise NotFound(f"no check of provider {name} made a machine since the controller began")
        return found

    def _cloud(self, name: str) -> tuple[MachineManager, Cloud]:
        if self._manager is None:
            raise Unavailable("this controller has no providers of machines")
        if (cloud := self._manager.cloud(name)) is None:
            known = ", ".join(sorted(self._manager.calls))
            raise NotFound(
                f"there is no provider {name!r}; this controller has {known}", field="provider"
            )
        return self._manager, cloud


def _unpriced(cloud: Refreshes) -> Iterator[Examined]:
    """Yield the regions whose prices are the release's although others were read."""
    reading = cloud.catalog.reading
    for region, why in () if reading is None else reading.unpriced.items():
        yield Examined(what=f"prices in {region}", note=f"of the release: {why}")


def _cheapest(offers: Sequence[Offer], instance_type: str | None) -> Offer | None:
    allowed = (
        one
        for one in offers
        if not one.spot and one.reservation is None and instance_type in (None, one.instance_type)
    )
    return min(allowed, key=lambda one: (one.price, one.key), default=None)


async def _needs(name: str, cloud: Cloud) -> list[Examined]:
    """Return what the provider itself finds of what orders need."""
    if not isinstance(cloud, Examines):
        return []
    try:
        return list(await answer_of(name, cloud.examine()))
    except CloudError as error:
        return [Examined(what="what orders need", fault=str(error))]


async def _listed(name: str, cloud: Cloud, installation: str) -> Examined:
    try:
        machines = await answer_of(name, cloud.list_tagged(installation))
    except CloudError as error:
        return Examined(what="the list of its machines", fault=str(error))
    return Examined(what=f"the list of its machines: {len(machines)} of this installation")
