"""What a fleet's provider offers for a need, and why an offer may not be tried now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controller.lifecycle.inventory import Fleet, MachinesPolicy
from controller.lifecycle.machines import market
from controller.lifecycle.machines.market import Market
from controller.lifecycle.machines.model import Offer
from controller.lifecycle.model import Resources
from controller.lifecycle.renting_reasons import MachineReason, NoOffer, ProviderAway
from controller.scheduling.fitting.capacity import Need
from controller.scheduling.fitting.fit import Room, shortfalls
from controller.scheduling.index import CapacityIndex
from controller.scheduling.queue import Member, Unit
from controller.scheduling.renting.coming_back import lost_where_it_was
from controller.scheduling.renting.left_out import LeftOut, why_left_out
from controller.scheduling.renting.machine_bins import Bin, empty_bin, why_none
from fairlead.model.reasons import Reason


class FleetOffers:
    """The market as fleets may use it at one time."""

    def __init__(self, shop: Market, now: float) -> None:
        self._shop = shop
        self._now = now

    def fitting(self, fleet: Fleet, need: Need | None) -> list[Offer] | MachineReason:
        """Return the offers that the fleet allows and that could hold the need."""
        policy = policy_of(fleet)
        if (lacks := market.not_named(policy.provider, self._shop.providers)) is not None:
            return NoOffer(fleet=fleet.name, lacks=lacks)
        if policy.provider not in self._shop.offers:
            detail = self._shop.away.get(policy.provider, "its offers are not known yet")
            return ProviderAway(fleet=fleet.name, provider=policy.provider, detail=detail)
        unknown = self.unknown(fleet)
        offers = market.allowed(policy, self._shop.offers[policy.provider])
        known = [one for one in offers if _is_for(need, one)]
        if not known:
            every = [one for one in self._shop.offers[policy.provider] if _is_for(need, one)]
            lacks = market.why_none_allowed(policy, every)
            return NoOffer(fleet=fleet.name, lacks=lacks, unknown=unknown)
        bins = [empty_bin(fleet, offer) for offer in known]
        enough = [one for one in bins if _has_least(policy, one.room)]
        if not enough:
            lacks = "no offer has the `machines.resources` of its file" + self._had_less(bins)
            return NoOffer(fleet=fleet.name, lacks=lacks, unknown=unknown)
        if need is None:
            return [one.offer for one in enough]
        if holding := [one.offer for one in enough if one.holds(need)]:
            return holding
        lacks = why_none(need, enough) + self._had_less(enough)
        return NoOffer(fleet=fleet.name, lacks=lacks, unknown=unknown)

    def open(self, offers: Iterable[Offer]) -> list[Offer]:
        """Return those of the offers that may be tried now."""
        return [one for one in offers if self._shop.penalties.until(one, self._now) is None]

    def tried(self, offers: Iterable[Offer]) -> list[Offer]:
        """Return those of the offers that take up a try: not where each order would be refused. Of
        those that share a quota, one was asked for."""
        return self._shop.penalties.tried(offers, self._now)

    def unknown(self, fleet: Fleet) -> str | None:
        """Return what the provider could not tell and the fleet may need."""
        policy = policy_of(fleet)
        return market.unknown_for(policy, self._shop.unknown.get(policy.provider, {}))

    def _had_less(self, bins: Sequence[Bin]) -> str:
        """Return which of the offers' machines had less than promised, as the end of a sentence."""
        known = self._shop.had_less
        for one in bins:
            if (name := known.get(one.offer.key)) is not None:
                return f" (machine {name} had less than the offer {one.offer.instance_type} says)"
        return ""

    def none_now(self, fleet: Fleet, offers: Sequence[Offer]) -> LeftOut:
        """Return why those of the offers that are left out may not be tried now."""
        unknown = self.unknown(fleet)
        return why_left_out(fleet.name, offers, self._shop.penalties, self._now, unknown)


def policy_of(fleet: Fleet) -> MachinesPolicy:
    assert fleet.machines is not None
    return fleet.machines


def lost_a_spot_machine(member: Member) -> bool:
    lasts = member.job.attempts[-2:]
    return any(one.reason is Reason.INTERRUPTED_BY_NO_CAPACITY for one in lasts)


def lost_spot_machines(index: CapacityIndex, gang: Unit) -> bool:
    """Return whether jobs of the gang lost spot machines, also while they stopped with it."""
    return any(lost_a_spot_machine(one) or lost_where_it_was(index, one) for one in gang.members)


def _is_for(need: Need | None, offer: Offer) -> bool:
    """Return whether the offer is open to the need: what is reserved is for runs that name it."""
    if offer.reservation is None:
        return True
    named = () if need is None else need.scope[1]
    return any(one.rented and one.attribute == "reservation" for one in named)


def _has_least(policy: MachinesPolicy, free: Room) -> bool:
    least: Resources | None = policy.resources
    return least is None or not shortfalls(least, free)
