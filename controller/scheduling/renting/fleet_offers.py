"""What a fleet's provider offers for a need, and why an offer may not be tried now."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from controller.lifecycle.inventory import Fleet, MachinesPolicy
from controller.lifecycle.machines import market
from controller.lifecycle.machines.market import Market
from controller.lifecycle.machines.model import Offer
from controller.lifecycle.model import Constraint, Resources
from controller.lifecycle.pending_reasons import constraint_words
from controller.lifecycle.renting_reasons import MachineReason, NoOffer, ProviderAway
from controller.scheduling.fitting.capacity import Need
from controller.scheduling.fitting.constraints import all_unmet, unmet
from controller.scheduling.fitting.fit import Room, Shortfall, distance, shortfalls
from controller.scheduling.index import CapacityIndex
from controller.scheduling.queue import Member, Unit
from controller.scheduling.renting.coming_back import lost_where_it_was
from controller.scheduling.renting.left_out import MAX_TRIES, LeftOut, why_left_out
from controller.scheduling.renting.machine_bins import empty_bin
from controller.scheduling.renting.never_rented import no_least
from fairlead.model.reasons import Reason

_FLEET: Final = "fleet"
"""The attribute that names a node's fleet."""


class InTurn(msgspec.Struct, frozen=True, kw_only=True):
    """Offers in the order in which they are tried. `open`: those that may be bought now."""

    ordered: list[Offer]
    open: list[Offer]


class _Ware(msgspec.Struct, frozen=True):
    """An offer with what its machine has while it is empty. `size`: equal for machines of which
    each holds what the other one does."""

    offer: Offer
    free: Room
    attributes: Mapping[str, str]
    size: int


_Attributes = tuple[tuple[str, str], ...]
_Terms = tuple[MachinesPolicy, _Attributes]
"""What decides which offers a fleet may use: its file, without what is not about offers, and its
attributes."""
_Asked = tuple[_Terms, str | None, Need]


class FleetOffers:
    """The market as fleets may use it at one time.

    It is asked for each job and each machine to order, of hundreds, and a provider can have
    thousands of offers: so each answer is kept, for all fleets of the same terms. 30 fleets with
    300 offers took 0.3 s for each kind of job (`python -m bench.demand`).
    """

    def __init__(self, shop: Market, now: float) -> None:
        self._shop = shop
        self._now = now
        self._terms: dict[str, _Terms] = {}
        """By fleet."""
        self._fitting: dict[_Asked, list[Offer] | NoOffer | ProviderAway] = {}
        self._wares: dict[tuple[_Terms, bool], list[_Ware] | NoOffer | ProviderAway] = {}
        self._each: dict[tuple[_Attributes, str], _Ware] = {}
        """By the attributes of fleets, and the offer."""
        self._in_turn: dict[tuple[_Asked, bool], InTurn] = {}
        self._open: dict[int, tuple[Offer, bool]] = {}
        """By the identity of an offer, which it holds."""
        self._for_gangs: dict[tuple[frozenset[_Asked], bool], InTurn] = {}
        self._sizes: dict[tuple[object, ...], int] = {}
        self._short: dict[tuple[Need, int], list[Shortfall]] = {}
        """What a machine of a size lacks, empty where it holds the need."""

    def in_turn(self, fleet: Fleet, need: Need, *, on_demand_first: bool) -> InTurn | MachineReason:
        """Return the fitting offers in the order in which they are tried."""
        fitting = self.fitting(fleet, need)
        if not isinstance(fitting, list):
            return fitting
        key = self._asked(fleet, need), on_demand_first
        if key not in self._in_turn:
            ordered = market.in_order(fitting, on_demand_first=on_demand_first)
            open_ = self.open(self.tried(ordered)[:MAX_TRIES])
            self._in_turn[key] = InTurn(ordered=ordered, open=open_)
        return self._in_turn[key]

    def for_gang(
        self, fleet: Fleet, needs: Collection[Need], *, on_demand_first: bool
    ) -> InTurn | MachineReason:
        """Return the offers that could hold one of these needs, in the order in which they are
        tried; with an offer for each."""
        key = frozenset(self._asked(fleet, need) for need in needs), on_demand_first
        if (known := self._for_gangs.get(key)) is not None:
            return known
        offers: dict[str, Offer] = {}
        for need in needs:
            fitting = self.fitting(fleet, need)
            if not isinstance(fitting, list):
                return fitting
            offers |= {one.key: one for one in fitting}
        ordered = market.in_order(offers.values(), on_demand_first=on_demand_first)
        self._for_gangs[key] = InTurn(ordered=ordered, open=self.open(ordered))
        return self._for_gangs[key]

    def fitting(self, fleet: Fleet, need: Need) -> list[Offer] | MachineReason:
        """Return the offers that the fleet allows and that could hold the need."""
        key = self._asked(fleet, need)
        if key not in self._fitting:
            self._fitting[key] = self._that_hold(fleet, need)
        return _for(fleet, self._fitting[key])

    def that_are_allowed(self, fleet: Fleet) -> list[Offer] | MachineReason:
        """Return the offers that the fleet allows for no job, as for what it keeps."""
        found = _for(fleet, self._allowed(fleet, has_reservation=False))
        return [one.offer for one in found] if isinstance(found, list) else found

    def _asked(self, fleet: Fleet, need: Need) -> _Asked:
        """Return what an answer is kept by: the fleet's name only where the need may know it."""
        fleets, constraints = need.scope
        is_closed = bool(fleets) and fleet.name not in fleets
        is_named = is_closed or any(one.attribute == _FLEET for one in constraints)
        return self._terms_of(fleet), fleet.name if is_named else None, need

    def _terms_of(self, fleet: Fleet) -> _Terms:
        if fleet.name not in self._terms:
            policy = msgspec.structs.replace(
                policy_of(fleet), min=0, max=0, idle_duration=0.0, boot_limit=0.0, leash=None
            )
            self._terms[fleet.name] = policy, tuple(sorted(fleet.attributes.items()))
        return self._terms[fleet.name]

    def _that_hold(self, fleet: Fleet, need: Need) -> list[Offer] | NoOffer | ProviderAway:
        enough = self._allowed(fleet, has_reservation=_names_reservation(need))
        if not isinstance(enough, list):
            return enough
        fleets, constraints = need.scope
        if fleets and fleet.name not in fleets:
            return NoOffer(fleet=fleet.name, lacks="the job names other fleets")
        named = any(one.attribute == _FLEET for one in constraints)
        # The wares are those of the first fleet of these terms.
        own = {_FLEET: fleet.attributes.get(_FLEET, fleet.name)} if named else {}
        open_ = [one for one in enough if unmet(constraints, {**one.attributes, **own}) is None]
        if holding := [one.offer for one in open_ if not self._lacking(need, one)]:
            return holding
        lacks = self._why_none(need, open_, enough, own) + self._had_less(enough)
        return NoOffer(fleet=fleet.name, lacks=lacks, unknown=self.unknown(fleet))

    def _lacking(self, need: Need, ware: _Ware) -> list[Shortfall]:
        key = need, ware.size
        if key not in self._short:
            self._short[key] = shortfalls(need.resources, ware.free)
        return self._short[key]

    def _why_none(
        self,
        need: Need,
        open_: Sequence[_Ware],
        enough: Sequence[_Ware],
        own: Mapping[str, str],
    ) -> str:
        """Return what the nearest offer lacks, as a sentence's end. `open_`: those of the wares
        with the attributes that the job asks for. `own`: attributes that only this fleet has."""
        if not open_:
            attributes = [{**one.attributes, **own} for one in enough]
            words = ", ".join(map(constraint_words, _in_the_way(need.scope[1], attributes)))
            return f"no offer has the attributes that the job asks for ({words})"
        # Those of one size lack the same; of them, the first name is told.
        first: dict[int, _Ware] = {}
        for one in sorted(open_, key=lambda one: one.offer.key):
            first.setdefault(one.size, one)
        nearest = min(
            first.values(), key=lambda one: distance(self._lacking(need, one), one.offer.key)
        )
        needed, has = self._lacking(need, nearest)[0].lack.words()
        kind = nearest.offer.instance_type
        return f"it needs {needed}, and the nearest offer, {kind}, has {has}"

    def _allowed(
        self, fleet: Fleet, *, has_reservation: bool
    ) -> list[_Ware] | NoOffer | ProviderAway:
        """Return the offers that the fleet's file allows, also reserved ones for a need that names
        a reservation."""
        key = self._terms_of(fleet), has_reservation
        if key not in self._wares:
            self._wares[key] = self._allowed_by(fleet, has_reservation=has_reservation)
        return self._wares[key]

    def _allowed_by(
        self, fleet: Fleet, *, has_reservation: bool
    ) -> list[_Ware] | NoOffer | ProviderAway:
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
        wares = [self._ware(fleet, offer) for offer in known]
        enough = [one for one in wares if not _lacking_least(policy, one.free)]
        if not enough:
            lacking = {one.offer.instance_type: _lacking_least(policy, one.free) for one in wares}
            lacks = no_least(lacking) + self._had_less(wares)
            return NoOffer(fleet=fleet.name, lacks=lacks, unknown=unknown)
        return enough

    def _ware(self, fleet: Fleet, offer: Offer) -> _Ware:
        key = self._terms_of(fleet)[1], offer.key
        if key not in self._each:
            bin_ = empty_bin(fleet, offer)
            size = self._sizes.setdefault(
                (offer.cpu, offer.memory, offer.disk, offer.gpus), len(self._sizes)
            )
            self._each[key] = _Ware(offer, bin_.whole, bin_.attributes, size)
        return self._each[key]

    def open(self, offers: Iterable[Offer]) -> list[Offer]:
        """Return those of the offers that may be tried now."""
        return [one for one in offers if self._is_open(one)]

    def _is_open(self, offer: Offer) -> bool:
        # Gangs of different sizes ask for the same offers again: that was a third of a look.
        known = self._open.get(id(offer))
        if known is None:
            is_open = self._shop.penalties.until(offer, self._now) is None
            known = self._open[id(offer)] = offer, is_open
        return known[1]

    def tried(self, offers: Iterable[Offer]) -> list[Offer]:
        """Return those of the offers that take up a try: not where each order would be refused. Of
        those that share a quota, one was asked for."""
        return self._shop.penalties.tried(offers, self._now)

    def unknown(self, fleet: Fleet) -> str | None:
        """Return what the provider could not tell and the fleet may need."""
        policy = policy_of(fleet)
        return market.unknown_for(policy, self._shop.unknown.get(policy.provider, {}))

    def _had_less(self, wares: Sequence[_Ware]) -> str:
        """Return which of the offers' machines had less than promised, as the end of a sentence."""
        known = self._shop.had_less
        for one in wares:
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


T = TypeVar("T")


def _for(fleet: Fleet, answer: list[T] | NoOffer | ProviderAway) -> list[T] | MachineReason:
    """Return the answer, of fleets with the same terms, in the words of this one."""
    if isinstance(answer, list) or answer.fleet == fleet.name:
        return answer
    return msgspec.structs.replace(answer, fleet=fleet.name)


def _in_the_way(
    constraints: Sequence[Constraint], offered: Sequence[Mapping[str, str]]
) -> list[Constraint]:
    """Return the constraints that leave no offer: each of which alone does, for some offer, or else
    those of the offer that meets the most. `offered`: the attributes of each."""
    missing = [all_unmet(constraints, one) for one in offered]
    fewest = min(map(len, missing))
    nearest = [one for one in missing if len(one) == fewest]
    return list(
        dict.fromkeys(one for each in (nearest if fewest == 1 else nearest[:1]) for one in each)
    )


def _names_reservation(need: Need) -> bool:
    return any(one.rented and one.attribute == "reservation" for one in need.scope[1])


def _lacking_least(policy: MachinesPolicy, free: Room) -> list[Shortfall]:
    least: Resources | None = policy.resources
    return [] if least is None else shortfalls(least, free)
