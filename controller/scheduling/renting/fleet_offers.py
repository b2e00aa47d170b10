"""What a fleet's provider offers for a need, and why an offer may not be tried now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

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
from controller.scheduling.renting.left_out import MAX_TRIES, LeftOut, why_left_out
from controller.scheduling.renting.machine_bins import Bin, empty_bin, why_none
from fairlead.model.reasons import Reason


class InTurn(msgspec.Struct, frozen=True, kw_only=True):
    """Offers in the order in which they are tried. `open`: those that may be bought now."""

    ordered: list[Offer]
    open: list[Offer]


class FleetOffers:
    """The market as fleets may use it at one time.

    It is asked for each job and each machine to order, of hundreds, and a provider can have
    thousands of offers: so each answer is kept.
    """

    def __init__(self, shop: Market, now: float) -> None:
        self._shop = shop
        self._now = now
        self._fitting: dict[tuple[str, Need | None], list[Offer] | MachineReason] = {}
        self._machines: dict[tuple[str, bool], list[Bin] | MachineReason] = {}
        self._in_turn: dict[tuple[str, Need, bool], InTurn | MachineReason] = {}

    def in_turn(self, fleet: Fleet, need: Need, *, on_demand_first: bool) -> InTurn | MachineReason:
        """Return the fitting offers in the order in which they are tried."""
        key = fleet.name, need, on_demand_first
        if key not in self._in_turn:
            fitting = self.fitting(fleet, need)
            if isinstance(fitting, list):
                ordered = market.in_order(fitting, on_demand_first=on_demand_first)
                open_ = self.open(self.tried(ordered)[:MAX_TRIES])
                self._in_turn[key] = InTurn(ordered=ordered, open=open_)
            else:
                self._in_turn[key] = fitting
        return self._in_turn[key]

    def fitting(self, fleet: Fleet, need: Need | None) -> list[Offer] | MachineReason:
        """Return the offers that the fleet allows and that could hold the need."""
        key = fleet.name, need
        if key not in self._fitting:
            self._fitting[key] = self._that_hold(fleet, need)
        return self._fitting[key]

    def _that_hold(self, fleet: Fleet, need: Need | None) -> list[Offer] | MachineReason:
        enough = self._allowed(fleet, need)
        if not isinstance(enough, list):
            return enough
        if need is None:
            return [one.offer for one in enough]
        if holding := [one.offer for one in enough if one.holds(need)]:
            return holding
        lacks = why_none(need, enough) + self._had_less(enough)
        return NoOffer(fleet=fleet.name, lacks=lacks, unknown=self.unknown(fleet))

    def _allowed(self, fleet: Fleet, need: Need | None) -> list[Bin] | MachineReason:
        """Return the machines of the offers that the fleet's file allows and are open to the
        need."""
        key = fleet.name, _names_reservation(need)
        if key not in self._machines:
            self._machines[key] = self._allowed_by(fleet, has_reservation=key[1])
        return self._machines[key]

    def _allowed_by(self, fleet: Fleet, *, has_reservation: bool) -> list[Bin] | MachineReason:
        policy = policy_of(fleet)
        if (lacks := market.not_named(policy.provider, self._shop.providers)) is not None:
            return NoOffer(fleet=fleet.name, lacks=lacks)
        if policy.provider not in self._shop.offers:
            detail = self._shop.away.get(policy.provider, "its offers are not known yet")
            return ProviderAway(fleet=fleet.name, provider=policy.provider, detail=detail)
        unknown = self.unknown(fleet)
        # What is reserved is for runs that name it.
        every = [
            one
            for one in self._shop.offers[policy.provider]
            if has_reservation or one.reservation is None
        ]
        known = market.allowed(policy, every)
        if not known:
            lacks = market.why_none_allowed(policy, every)
            return NoOffer(fleet=fleet.name, lacks=lacks, unknown=unknown)
        bins = [empty_bin(fleet, offer) for offer in known]
        enough = [one for one in bins if _has_least(policy, one.room)]
        if not enough:
            lacks = "no offer has the `machines.resources` of its file" + self._had_less(bins)
            return NoOffer(fleet=fleet.name, lacks=lacks, unknown=unknown)
        return enough

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


def _names_reservation(need: Need | None) -> bool:
    named = () if need is None else need.scope[1]
    return any(one.rented and one.attribute == "reservation" for one in named)


def _has_least(policy: MachinesPolicy, free: Room) -> bool:
    least: Resources | None = policy.resources
    return least is None or not shortfalls(least, free)
