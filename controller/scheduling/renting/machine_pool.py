"""The machines of one look at demand: those that are there, on order, or just chosen.

A gang fits into them, and into those that offers would give, only within one place: a zone, and one
value of its fleet's `placement`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from controller.lifecycle.inventory import Fleet
from controller.lifecycle.machines.model import Machine, MachineStatus, Offer
from controller.scheduling.fitting.capacity import Need
from controller.scheduling.fitting.constraints import Domain, domain_of
from controller.scheduling.fitting.fit import room
from controller.scheduling.gang_placement import domains_for, hardest_first
from controller.scheduling.index import CapacityIndex, comes_back, is_usable
from controller.scheduling.queue import Unit
from controller.scheduling.renting.machine_bins import Bin, Plan, empty_bin, plan_of

_Zone = tuple[str, str, str | None]
"""Provider, region and zone."""
_Where = tuple[_Zone, Domain]


class MachinePool:
    """`fleets`: those that rent machines, by name."""

    def __init__(
        self,
        index: CapacityIndex,
        fleets: Mapping[str, Fleet],
        machines: Iterable[Machine],
        now: float,
    ) -> None:
        self.wanted: set[str] = set()
        """Machines on order that something waits for."""
        self._index = index
        self._now = now
        known = list(machines)
        self._offers = {one.id: one.offer for one in known if one.is_live}
        self._bins = [
            bin_
            for one in known
            if (fleet := fleets.get(one.fleet)) is not None
            and (bin_ := self._coming(fleet, one)) is not None
        ]
        """Those that are no nodes yet."""
        self._first: dict[Need, int] = {}
        """The first bin that may hold a need: bins only fill up during a look."""
        self._joined: dict[str, list[Bin]] = {}
        self._empty_bins: dict[tuple[str, str], Bin] = {}
        """By fleet and offer."""
        # What is kept by the identity of a list holds the list, so that no other one gets its id.
        self._zones: dict[int, tuple[Sequence[Offer], list[tuple[_Zone, Sequence[Offer]]]]] = {}
        self._in_places: dict[
            tuple[str, int], tuple[Sequence[Offer], list[tuple[_Where | None, Sequence[Offer]]]]
        ] = {}
        self._first_of: dict[tuple[str, int, Need], tuple[Sequence[Offer], Bin | None]] = {}
        self._planned: dict[tuple[int, tuple[Need, ...]], tuple[Sequence[Offer], Plan | None]] = {}
        """How gangs with these needs fit into new machines of these offers alone."""
        self._kept_for: set[Need] = set()
        """Needs for which all is kept that is on order."""

    def has(self, node_id: str) -> bool:
        """Return whether the node is rented."""
        return node_id in self._offers

    def rented(self, bins: Iterable[Bin]) -> set[str]:
        """Return the ids of those that are there or on order."""
        return {one.room.node.id for one in bins} & self._offers.keys()

    def add(self, bins: Iterable[Bin]) -> None:
        """Add machines that are to be ordered."""
        self._bins += bins

    def first_that_holds(self, need: Need) -> Bin | None:
        for at in range(self._first.get(need, 0), len(self._bins)):
            if self._bins[at].holds(need):
                self._first[need] = at
                return self._bins[at]
        self._first[need] = len(self._bins)
        return None

    def could_hold(self, unit: Unit) -> bool:
        """Return whether each job could go onto a machine that is on order, once it is free."""
        needs = {member.need for member in unit.members}
        return all(any(one.could_hold(need) for one in self._bins) for need in needs)

    def keep_orders(self, need: Need) -> None:
        """Count all that is on order and could hold the need as wanted, as by jobs that wait for a
        node's pace: that one may have no room for all of them."""
        if need not in self._kept_for:
            self._kept_for.add(need)
            for one in self._bins:
                if one.could_hold(need):
                    self.want(one)

    def want(self, bin_: Bin) -> None:
        """Keep the machine if it is on order."""
        if bin_.machine is not None and not bin_.is_back:
            self.wanted.add(bin_.machine.id)

    def plans(self, unit: Unit, fleet: Fleet, offers: Sequence[Offer]) -> Iterator[Plan]:
        """Yield how the gang fits, with machines of these offers, into each place that may have
        all of it. Where nothing is there yet, the plan may be another fleet's (`as_of`)."""
        places: dict[_Where | None, tuple[list[Bin], Sequence[Offer]]] = {
            where: ([], bought) for where, bought in self._offered(fleet, offers)
        }
        for one in (*(one for one in self._bins if one.fleet is fleet), *self.joined_in(fleet)):
            places.setdefault(self._where(one), ([], ()))[0].append(one)
        for where, (there, bought) in places.items():
            if where is None or not self._is_with_anchors(unit, where):
                continue
            found = self._plan_in(unit, fleet, there, bought)
            if found is not None:
                yield found

    def as_of(self, plan: Plan, unit: Unit, fleet: Fleet) -> Plan:
        """Return the plan with machines of this fleet."""
        if plan.fleet is fleet:
            return plan
        own = plan_of(unit, fleet, (), plan.offered, self._to_order)
        assert own is not None, "the other fleet's machines hold the same"
        return own

    def _plan_in(
        self, unit: Unit, fleet: Fleet, there: Sequence[Bin], bought: Sequence[Offer]
    ) -> Plan | None:
        if there:
            return plan_of(unit, fleet, there, bought, self._to_order)
        # Many gangs are alike, and many fleets: what they would order is looked for once.
        needs = tuple(member.need for member in hardest_first(unit.members))
        key = id(bought), needs
        if key not in self._planned:
            self._planned[key] = bought, plan_of(unit, fleet, (), bought, self._to_order)
        return self._planned[key][1]

    def _to_order(self, fleet: Fleet, offers: Sequence[Offer], need: Need) -> Bin | None:
        """Return the first of these machines that holds the need, with nothing on it."""
        key = fleet.name, id(offers), need
        if key not in self._first_of:
            each = (self._empty(fleet, one) for one in offers)
            first = next((one for one in each if one.holds(need)), None)
            self._first_of[key] = offers, first
        first = self._first_of[key][1]
        return None if first is None else first.fresh()

    def _empty(self, fleet: Fleet, offer: Offer) -> Bin:
        key = fleet.name, offer.key
        if key not in self._empty_bins:
            self._empty_bins[key] = empty_bin(fleet, offer)
        return self._empty_bins[key]

    def _where(self, bin_: Bin) -> _Where | None:
        """Return where the machine is: its zone, and its value of the fleet's `placement`; None: it
        has none."""
        domain = domain_of(bin_.room.node, self._index.fleets)
        return None if domain is None else (bin_.offer.place, domain)

    def _offered(
        self, fleet: Fleet, offers: Sequence[Offer]
    ) -> Sequence[tuple[_Where | None, Sequence[Offer]]]:
        """Return the offers by where their machines would be. The lists are the same at each call,
        and for all fleets without a `placement`."""
        if not offers:
            return ()
        if fleet.placement is None:
            domain = Domain((fleet.name, None))
            return [((zone, domain), bought) for zone, bought in self._in_zones(offers)]
        key = fleet.name, id(offers)
        if key not in self._in_places:
            found: dict[_Where | None, list[Offer]] = {}
            for one in offers:
                found.setdefault(self._where(self._empty(fleet, one)), []).append(one)
            self._in_places[key] = offers, list(found.items())
        return self._in_places[key][1]

    def _in_zones(self, offers: Sequence[Offer]) -> Sequence[tuple[_Zone, Sequence[Offer]]]:
        if id(offers) not in self._zones:
            found: dict[_Zone, list[Offer]] = {}
            for one in offers:
                found.setdefault(one.place, []).append(one)
            self._zones[id(offers)] = offers, list(found.items())
        return self._zones[id(offers)][1]

    def joined_in(self, fleet: Fleet) -> list[Bin]:
        """Return the fleet's machines that are nodes, with what they have free."""
        if fleet.name not in self._joined:
            self._joined[fleet.name] = [
                Bin(fleet, offer, free)
                for node_id, free in self._index.rooms.items()
                if (offer := self._offers.get(node_id)) is not None
                and free.node.fleet == fleet.name
            ]
        return self._joined[fleet.name]

    def _is_with_anchors(self, unit: Unit, where: _Where) -> bool:
        """Return whether a machine there would be where the gang's other jobs are."""
        if not unit.anchors:
            return True
        zone, domain = where
        known = self._offers.get(unit.anchors[0].node_id)
        if known is not None and known.place != zone:
            return False
        return domain in domains_for(self._index, unit)

    def _coming(self, fleet: Fleet, machine: Machine) -> Bin | None:
        """Return the machine if it will be a node that the scheduler does not see yet."""
        if machine.closing:
            return None
        node = self._index.nodes.get(machine.id)
        if machine.status is MachineStatus.PROVISIONING:
            # Nothing goes onto one that is drained, as one that its provider already takes back.
            is_shut = node is not None and (node.draining or node.cordoned)
            is_seen = node is not None and is_usable(node)
            return None if is_seen or is_shut else empty_bin(fleet, machine.offer, machine)
        # After a restart, or a short cut, no node is connected: it comes back with what is on it.
        # So does one whose engine is restarted.
        if machine.status is not MachineStatus.JOINED or node is None:
            return None
        if not comes_back(node, self._now):
            return None
        taken = self._index.taken.get(machine.id, {})
        bin_ = Bin(fleet, machine.offer, room(node, ()), machine)
        bin_.room = replace(room(node, taken.values()), starts=0)
        return bin_
