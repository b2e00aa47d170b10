"""What machines hold: those on order with what is on them, and those that an offer would give.

A bin is the room on one machine that is not a node yet. A plan says into which bins a gang fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

from msgspec.structs import replace

from controller.lifecycle.inventory import Fleet
from controller.lifecycle.machines.model import Machine, MachineStatus, Offer, node_of
from controller.scheduling.fitting.capacity import Need
from controller.scheduling.fitting.constraints import attributes_of, unmet
from controller.scheduling.fitting.fit import Room, less, room, shortfalls
from controller.scheduling.gang_placement import allocate, hardest_first
from controller.scheduling.queue import Member, Unit


class Bin:
    """A machine that is on its way, or would be ordered, and the room left on it."""

    def __init__(
        self, fleet: Fleet, offer: Offer, free: Room, machine: Machine | None = None
    ) -> None:
        """`machine`: its record, if it is on order already."""
        self.fleet = fleet
        self.machine = machine
        self.offer = offer
        # Starts pace a node that is there; they are no reason to buy another one.
        self.room = self.whole = replace(free, starts=0)
        self.attributes = attributes_of(free.node, fleet)
        self._held: dict[Need, tuple[Room, bool]] = {}
        """Whether a room held a need: each gang of a look asks again."""

    @property
    def is_back(self) -> bool:
        """Whether it was a node before, and is to take work again."""
        return self.machine is not None and self.machine.status is MachineStatus.JOINED

    def holds(self, need: Need) -> bool:
        known = self._held.get(need)
        if known is None or known[0] is not self.room:
            known = self._held[need] = self.room, self._takes(need, self.room)
        return known[1]

    def could_hold(self, need: Need) -> bool:
        """Return whether the machine holds the need once nothing else is on it."""
        return self._takes(need, self.whole)

    def _takes(self, need: Need, free: Room) -> bool:
        fleets, constraints = need.scope
        if fleets and self.fleet.name not in fleets:
            return False
        return unmet(constraints, self.attributes) is None and not shortfalls(need.resources, free)

    def fresh(self) -> Bin:
        """Return another machine like this one, with nothing on it. To look at an offer anew costs
        50 µs."""
        made = copy(self)
        made.room, made._held = self.whole, dict(self._held)
        return made

    def put(self, unit: Unit, member: Member) -> None:
        self.room = room_after(unit, member, self.room)


def room_after(unit: Unit, member: Member, free: Room) -> Room:
    """Return what the job would leave of this room, which holds it."""
    taken = allocate(unit, member, free, None, 0.0, str)
    return replace(less(free, taken.resources, taken.gpus), starts=0)


def empty_bin(fleet: Fleet, offer: Offer, machine: Machine | None = None) -> Bin:
    """Return an empty machine of this offer."""
    return Bin(fleet, offer, room(node_of(offer, fleet, offer.key, offer.key), ()), machine)


class Plan:
    """How a gang fits: the machines to order, and those that are there or on order. `used` and
    `new` hold each bin once or more; `rooms`: what is left of each. `fleet`: whose they are.
    `offered`: what it chose from."""

    def __init__(self, fleet: Fleet, offered: Sequence[Offer]) -> None:
        self.fleet = fleet
        self.offered = offered
        self.new: list[Bin] = []
        self.used: list[Bin] = []
        self.rooms: list[tuple[Bin, Room]] = []

    @property
    def offers(self) -> list[Offer]:
        return [one.offer for one in self.new]

    @property
    def price(self) -> float:
        return sum(one.price for one in self.offers)

    @property
    def is_incomplete(self) -> bool:
        """Whether a machine of it is not there yet; else the next turns place the gang."""
        return bool(self.new) or any(one.machine is not None for one in self.used)


def plan_of(
    unit: Unit,
    fleet: Fleet,
    bins: Sequence[Bin],
    offers: Sequence[Offer],
    to_order: Callable[[Fleet, Sequence[Offer], Need], Bin | None],
) -> Plan | None:
    """Return how the whole gang fits into one place, the hardest jobs first; None: it does not.
    `to_order` returns the first of the machines of these offers that holds a need."""
    plan = Plan(fleet, offers)
    before = [one.room for one in bins]
    try:
        for member in hardest_first(unit.members):
            bin_ = next((one for one in (*bins, *plan.new) if one.holds(member.need)), None)
            if bin_ is None:
                bin_ = to_order(fleet, offers, member.need)
                if bin_ is None:
                    return None
                plan.new.append(bin_)
            else:
                plan.used.append(bin_)
            bin_.put(unit, member)
        plan.rooms = [(one, one.room) for one in bins]
        return plan
    finally:
        for one, room_ in zip(bins, before, strict=True):
            one.room = room_
