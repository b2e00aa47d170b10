"""What a fleet's provider offers for a need, and why an offer may not be tried now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controller.lifecycle.inventory import Fleet, MachinesPolicy
from controller.lifecycle.machines import market
from controller.lifecycle.machines.market import Market, Penalty
from controller.lifecycle.machines.model import MachineEnd, Offer, Reach
from controller.lifecycle.model import Resources
from controller.lifecycle.renting_reasons import (
    MachineReason,
    NoCapacity,
    NoOffer,
    ProviderAway,
    QuotaOfProvider,
    SetupRefused,
)
from controller.scheduling.fitting.capacity import Need
from controller.scheduling.fitting.fit import Room, shortfalls
from controller.scheduling.queue import Member
from controller.scheduling.renting.machine_bins import Bin, empty_bin, why_none
from fairlead.model.reasons import Reason

MAX_TRIES = 25
"""The number of offers that one unit tries in one look at the queue."""


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

    def is_shared_refusal(self, offer: Offer) -> bool:
        """Return whether each order of this kind would be refused."""
        return self._shop.penalties.is_shared(offer, self._now)

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

    def none_now(
        self, fleet: Fleet, offers: Sequence[Offer]
    ) -> NoCapacity | QuotaOfProvider | SetupRefused:
        """Return why those of the offers that are left out may not be tried now."""
        unknown = self.unknown(fleet)
        left_out = [
            (one, why)
            for one in offers
            if (why := self._shop.penalties.of(one)) is not None and why.until > self._now
        ]
        shared = [(one, why) for one, why in left_out if why.reach is not Reach.OFFER]
        alone = [(one, why) for one, why in left_out if why.reach is Reach.OFFER][:MAX_TRIES]
        first = min(why.until for _, why in (*shared, *alone))
        where = tuple(dict.fromkeys(one.within(why.reach) for one, why in shared))
        setup = shared[0][1].message or "it does not say why" if shared else None
        if setup is not None and not alone:
            return SetupRefused(
                fleet=fleet.name, where=where, detail=setup, next_at=first, unknown=unknown
            )
        if setup is None and all(why.end is MachineEnd.QUOTA_REACHED for _, why in alone):
            return QuotaOfProvider(
                fleet=fleet.name,
                detail=alone[0][1].message or "it does not say which",
                next_at=first,
                unknown=unknown,
            )
        detail = _why_besides_capacity(alone)
        if setup is not None:
            detail = f"each order {', '.join(where)} would be refused: {setup}"
        return NoCapacity(
            fleet=fleet.name,
            tried=tuple(one.words() for one, _ in alone),
            next_at=first,
            detail=detail,
            unknown=unknown,
        )


def policy_of(fleet: Fleet) -> MachinesPolicy:
    assert fleet.machines is not None
    return fleet.machines


def lost_a_spot_machine(member: Member) -> bool:
    attempts = member.job.attempts
    return len(attempts) > 1 and attempts[-2].reason is Reason.INTERRUPTED_BY_NO_CAPACITY


def _why_besides_capacity(refused: Sequence[tuple[Offer, Penalty]]) -> str | None:
    """Return why the first of these offers was refused that has another reason than capacity."""
    for at, (offer, why) in enumerate(refused):
        if why.end is not MachineEnd.NO_CAPACITY and why.message is not None:
            # A quota behind three zones that are full is what an admin can change.
            return why.message if at == 0 else f"{offer.words()}: {why.message}"
    return None


def _is_for(need: Need | None, offer: Offer) -> bool:
    """Return whether the offer is open to the need: what is reserved is for runs that name it."""
    if offer.reservation is None:
        return True
    named = () if need is None else need.scope[1]
    return any(one.rented and one.attribute == "reservation" for one in named)


def _has_least(policy: MachinesPolicy, free: Room) -> bool:
    least: Resources | None = policy.resources
    return least is None or not shortfalls(least, free)
