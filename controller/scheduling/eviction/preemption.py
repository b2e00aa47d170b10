"""Preemption makes room for a job of a higher band; `nominations` keep that room for it.

A single job evicts single jobs. A gang evicts a whole gang or the fewest single jobs, and only if
it fits afterwards (docs/rules.md 6.5, 6.6).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import islice

import msgspec
from msgspec.structs import replace

from controller.lifecycle.attempts.limits import scheduling_ends_at
from controller.lifecycle.model import Allocation
from controller.scheduling.eviction.victims import (
    CLEANUP_SECONDS,
    MAX_SETS,
    Cost,
    Evictions,
    Preemptor,
    Victim,
    Victims,
    cheapest_first,
    evicted_of,
    number_of,
)
from controller.scheduling.fitting.capacity import Need
from controller.scheduling.fitting.constraints import Domain
from controller.scheduling.gang_placement import (
    MemberAllocation,
    NewId,
    allocate,
    can_get_less,
    hardest_first,
    place_all,
)
from controller.scheduling.index import Where
from controller.scheduling.packing import by_kind, by_need, how_many_fit_of, most_in
from controller.scheduling.queue import Member, Unit
from controller.scheduling.trial_capacity import TrialCapacity
from fairlead.model.statuses import AllocationState

MAX_SEARCHES = 50
"""The number of searches in one pass; the next pass makes the rest."""
_MAX_GANGS = 8
"""The number of gangs that are tried as victims in each domain."""


MAX_TOGETHER = 4
"""The number of victims up to which sets are tried where no greedy choice lets a gang in."""
MAX_DOMAINS = 4
"""The number of domains in which a smaller set is looked for, those with the smallest first."""
MAX_CANDIDATES = 100
"""The number of possible victims in a domain from which smaller sets are made, the cheapest."""
MAX_PLACED, MIN_TRIES = 1_000, 10
"""How many jobs are placed to try sets of victims for one gang in one domain, some 100 ms; a large
gang has MIN_TRIES sets."""


class Nomination(msgspec.Struct, frozen=True):
    """`chosen` are NOMINATED; `victims` are the jobs to evict."""

    chosen: tuple[MemberAllocation, ...]
    victims: tuple[Victim, ...]
    waits_for: int


class _GangEviction(msgspec.Struct, frozen=True):
    """A whole unit fits these allocations when these victims have left theirs."""

    chosen: list[MemberAllocation]
    victims: dict[str, Victim]

    @property
    def evicted(self) -> int:
        return evicted_of(self.victims.values())

    @property
    def cost(self) -> Cost:
        evicted = [one.price for one in self.victims.values() if not one.leaves_anyway]
        return len(evicted), tuple(sorted(evicted, reverse=True))


def _cost_of(eviction: _GangEviction) -> Cost:
    return eviction.cost


class Preemption:
    """The search for victims in one scheduling pass."""

    def __init__(self, trial: TrialCapacity, now: float, new_id: NewId) -> None:
        self.trial = trial
        self._index = trial.index
        self._now = now
        self._new_id = new_id
        self.victims = Victims(trial, now)
        self._evictions: dict[tuple[object, ...], Evictions] = {}
        self._in_vain: set[tuple[object, ...]] = set()
        self._searches = 0

    def may_help(self, unit: Unit) -> bool:
        """Return whether some job could be evicted, and in time before the unit gives up."""
        before = _preemptor(unit).before
        in_time = before is None or before >= self._now + CLEANUP_SECONDS
        return in_time and unit.band < self.victims.lowest

    @property
    def is_tired(self) -> bool:
        return self._searches >= MAX_SEARCHES

    def for_one(self, unit: Unit, where: Where) -> Nomination | None:
        """Return a nomination for a single job; `where` is the domain that it is bound to, if
        any."""
        (member,) = unit.members
        preemptor = _preemptor(unit)
        key = (member.need, preemptor, where, unit.view)
        if key in self._in_vain:
            return None
        if key not in self._evictions:
            self._searches += 1
            nodes = self.nodes(member.need, where)
            self._evictions[key] = Evictions(self.victims, member.need, preemptor, nodes)
        eviction = self._evictions[key].best()
        if eviction is None:
            self._in_vain.add(key)
            return None
        domain = self._index.domain(eviction.node_id)
        allocation = allocate(unit, member, eviction.freed, domain, self._now, self._new_id)
        return self._nominate(
            [MemberAllocation(member, allocation)],
            {one.allocation.id: one for one in eviction.victims},
        )

    def for_all(self, unit: Unit, domains: Sequence[Domain]) -> Nomination | None:
        wanted = tuple(sorted(id(one.need) for one in unit.members))
        preemptor = _preemptor(unit)
        key = (wanted, preemptor, tuple(domains), unit.view)
        if key in self._in_vain:
            return None
        self._searches += 1
        gangs = (self._evict_gang(unit, preemptor, domain) for domain in domains)
        solos = self._evict_solos(unit, preemptor, domains)
        best = min((one for one in (*gangs, solos) if one is not None), key=_cost_of, default=None)
        if best is None:
            self._in_vain.add(key)
            return None
        return self._nominate(best.chosen, best.victims)

    def _evict_gang(self, unit: Unit, preemptor: Preemptor, domain: Domain) -> _GangEviction | None:
        for tried, gang in enumerate(self.victims.gangs_in(domain, preemptor)):
            if tried >= _MAX_GANGS:
                return None
            mark = self.trial.mark
            self.vacate(gang)
            chosen = self.place(unit, domain)
            self.trial.undo(mark)
            if chosen is not None:
                return _GangEviction(chosen, {one.allocation.id: one for one in gang})
        return None

    def _evict_solos(
        self, unit: Unit, preemptor: Preemptor, domains: Sequence[Domain]
    ) -> _GangEviction | None:
        """Return the fewest single jobs to evict, as far as a bounded search finds them."""
        both = (False, True) if can_get_less(unit) else (False,)
        found: list[tuple[Domain, _GangEviction | None]] = []
        for domain in domains:
            ways = (self._evict_one_by_one(unit, preemptor, domain, least=one) for one in both)
            best = min((one for one in ways if one is not None), key=_cost_of, default=None)
            found.append((domain, best))
        evictions = [one for _, one in found if one is not None]
        kinds = by_kind(by_need(unit.members))
        if evictions or len(kinds) > 1:
            found.sort(key=lambda pair: pair[1].evicted if pair[1] is not None else math.inf)
            for domain, known in found[:MAX_DOMAINS]:
                search = _FewestVictims(self, unit, preemptor, domain, kinds)
                fewer = search.fewer_than(known)
                if fewer is not None:
                    evictions.append(fewer)
        return min(evictions, key=_cost_of, default=None)

    def place(self, unit: Unit, domain: Domain) -> list[MemberAllocation] | None:
        """Return allocations for the whole unit, and leave the trial capacity as it is."""
        mark = self.trial.mark
        chosen = place_all(self.trial, unit, domain, self._now, self._new_id)
        self.trial.undo(mark)
        return chosen

    def _evict_one_by_one(
        self, unit: Unit, preemptor: Preemptor, domain: Domain, *, least: bool
    ) -> _GangEviction | None:
        """Give each job the best room, or the room of the victims that are the best for it."""
        mark = self.trial.mark
        chosen_before = set(self.victims.chosen)
        evictions: dict[Need, Evictions] = {}
        found = _GangEviction([], {})
        for member in self._most_bound_first(unit, domain):
            free = self.trial.best(member.need, domain)
            if free is None:
                if member.need not in evictions:
                    nodes = self.nodes(member.need, domain)
                    evictions[member.need] = Evictions(self.victims, member.need, preemptor, nodes)
                plan = evictions[member.need].best()
                if plan is None:
                    break
                found.victims.update({one.allocation.id: one for one in plan.victims})
                self.vacate(plan.victims)
                self.victims.chosen.update(one.allocation.id for one in plan.victims)
                free = plan.freed
            allocation = allocate(unit, member, free, domain, self._now, self._new_id, least=least)
            self.trial.give(allocation)
            found.chosen.append(MemberAllocation(member, allocation))
        self.trial.undo(mark)
        self.victims.chosen = chosen_before
        return found if len(found.chosen) == len(unit.members) and found.victims else None

    def _most_bound_first(self, unit: Unit, domain: Domain) -> list[Member]:
        """Return the jobs that may go to the fewest nodes first, and of these the hardest."""
        members = hardest_first(unit.members)
        return sorted(members, key=lambda one: len(self.trial.sorted(one.need.scope, domain)))

    def vacate(self, gone: Iterable[Victim]) -> None:
        """Show the capacity without these victims."""
        on_node: dict[str, set[str]] = {}
        for victim in gone:
            on_node.setdefault(victim.allocation.node_id, set()).add(victim.allocation.id)
        for node_id, ids in on_node.items():
            if node_id in self.trial.rooms:
                self.trial.vacate(node_id, ids | self.victims.chosen)

    def nodes(self, need: Need, where: Where) -> list[str]:
        scope = self.trial.sorted(need.scope, where)
        nodes = self._index.rooms if where is None else self._index.domains.get(where, {})
        return [one for one in nodes if one in scope and one in self._index.taken]

    def _nominate(
        self, chosen: Sequence[MemberAllocation], victims: dict[str, Victim]
    ) -> Nomination:
        """Nominate the allocations. In the trial capacity they are taken at once, beside their
        present holders."""
        on_node: dict[str, tuple[str, ...]] = {}
        for victim in victims.values():
            there = victim.allocation.node_id
            on_node[there] = (*on_node.get(there, ()), victim.allocation.id)
        self.victims.chosen.update(victims)
        nominated = []
        for choice in chosen:
            allocation = self._as_nominated(choice.allocation, on_node)
            self.trial.give(allocation)
            nominated.append(MemberAllocation(choice.member, allocation))
        taken = {choice.allocation.node_id for choice in nominated}
        waits_for = [one for one in victims.values() if one.allocation.node_id in taken]
        evicted = tuple(one for one in victims.values() if not one.leaves_anyway)
        return Nomination(tuple(nominated), evicted, len(waits_for))

    def _as_nominated(
        self, allocation: Allocation, on_node: dict[str, tuple[str, ...]]
    ) -> Allocation:
        return replace(
            allocation,
            state=AllocationState.NOMINATED,
            victims=on_node.get(allocation.node_id, ()),
        )


class _FewestVictims:
    """The search for a smaller set of single jobs that lets the whole unit in.

    To give each job the victims that are the best for it evicts two small jobs where one large one
    leaves room for two, and finds none where jobs of several kinds must change their nodes.
    """

    def __init__(
        self,
        preemption: Preemption,
        unit: Unit,
        preemptor: Preemptor,
        domain: Domain,
        kinds: Mapping[Need, int],
    ) -> None:
        self._preemption = preemption
        self._trial = preemption.trial
        self._unit = unit
        self._domain = domain
        self._kinds = kinds
        self._tries = max(MIN_TRIES, MAX_PLACED // len(unit.members))
        nodes = dict.fromkeys(node for need in kinds for node in preemption.nodes(need, domain))
        possible = [
            victim for node in nodes for victim in preemption.victims.solos_on(node, preemptor)
        ]
        self._leaving = [one for one in possible if one.leaves_anyway]
        evictable = (one for one in possible if not one.leaves_anyway)
        self._evictable = heapq.nsmallest(MAX_CANDIDATES, evictable, key=lambda one: one.price)

    def fewer_than(self, known: _GangEviction | None) -> _GangEviction | None:
        """Return a smaller eviction, or any where none is known; None: none was found."""
        if known is None:
            return None if len(self._kinds) == 1 else self._of_sizes(1, MAX_TOGETHER)
        if len(self._kinds) == 1 and next(iter(self._kinds)).resources.whole_node:
            # Each holds a node of its own, so they do not share what a victim leaves.
            return self._of_sizes(0, 0)
        fewer = self._of_sizes(0, min(known.evicted - 1, MAX_TOGETHER))
        if fewer is None and known.evicted > MAX_TOGETHER:
            fewer = self._by_gain()
        return fewer

    def _of_sizes(self, least: int, most: int) -> _GangEviction | None:
        """Return the cheapest eviction of so many jobs; None: none was found.

        None are evicted if those that leave anyway leave enough.
        """
        if not self._leaving:
            least = max(least, 1)
        if least > most:
            return None
        mark = self._trial.mark
        self._preemption.vacate(self._leaving)
        try:
            for size in range(max(least, self._at_least()), most + 1):
                found = self._of_size(size)
                if found is not None or self._tries <= 0:
                    return found
        finally:
            self._trial.undo(mark)
        return None

    def _of_size(self, size: int) -> _GangEviction | None:
        tried: set[Hashable] = set()
        for victims in islice(cheapest_first(self._evictable, size), MAX_SETS):
            nodes = {one.allocation.node_id for one in victims}
            here = [one for one in self._leaving if one.allocation.node_id in nodes]
            before = [(node, self._trial.shape(node)) for node in sorted(nodes)]
            mark = self._trial.mark
            self._preemption.vacate([*victims, *here])
            alike = sorted(
                (shape, self._trial.shape(node), self._tiers(node)) for node, shape in before
            )
            key = tuple(alike)
            chosen = None
            if key not in tried:
                self._tries -= 1
                chosen = self._preemption.place(self._unit, self._domain)
            tried.add(key)
            self._trial.undo(mark)
            if chosen is not None:
                return self._eviction(chosen, victims)
            if self._tries <= 0:
                return None
        return None

    def _eviction(self, chosen: list[MemberAllocation], evicted: Iterable[Victim]) -> _GangEviction:
        """Return the eviction; a victim whose room no job of the unit got is spared."""
        nodes = {one.allocation.node_id for one in chosen}
        needed = (one for one in (*self._leaving, *evicted) if one.allocation.node_id in nodes)
        return _GangEviction(chosen, {one.allocation.id: one for one in needed})

    def _tiers(self, node_id: str) -> tuple[int, ...]:
        """Return how many preferences of each kind the node misses; -1: it may not go there."""
        tiers = (self._trial.sorted(need.scope, self._domain).tier(node_id) for need in self._kinds)
        return tuple(-1 if tier is None else tier for tier in tiers)

    def _by_gain(self) -> _GangEviction | None:
        """Return the eviction of those that let in the most jobs each, one after the other."""
        mark = self._trial.mark
        self._preemption.vacate(self._leaving)
        missing = self._missing()
        gone: list[Victim] = []
        queue = [(-self._gain([one]), one.price, one) for one in self._evictable]
        heapq.heapify(queue)
        while missing > 0 and queue:
            gain, price, victim = heapq.heappop(queue)
            beside = [one for one in gone if one.allocation.node_id == victim.allocation.node_id]
            now = -self._gain([*beside, victim])
            if now > gain:
                heapq.heappush(queue, (now, price, victim))
            elif not gain:
                break
            else:
                gone.append(victim)
                self._vacate([*beside, victim])
                missing += now
        chosen = None if missing > 0 else self._preemption.place(self._unit, self._domain)
        self._trial.undo(mark)
        return None if chosen is None else self._eviction(chosen, gone)

    def _at_least(self) -> int:
        """Return a number of victims below which no set is enough.

        A victim lets in no more jobs than its node holds without any, and leaves no more than it
        has, beside what is free there already.
        """
        missing = self._missing()
        if missing <= 0:
            return 0
        on_node: dict[str, list[Victim]] = {}
        for victim in self._evictable:
            on_node.setdefault(victim.allocation.node_id, []).append(victim)
        gains = [self._gain(victims) for victims in on_node.values()]
        free = {node_id: self._trial.rooms[node_id] for node_id in on_node}
        needs = [member.need.resources for member in self._unit.members]
        if any(need.whole_node for need in needs):
            return number_of(gains, missing)
        gpus = sum(sorted(need.gpu.count for need in needs)[:missing])
        cpu = sum(sorted(need.cpu for need in needs)[:missing])
        memory = sum(sorted(need.memory for need in needs)[:missing])
        left = [(free[one.allocation.node_id], one.allocation) for one in self._evictable]
        return max(
            number_of(gains, missing),
            number_of([len(room.gpus) + len(one.gpus) for room, one in left], gpus),
            number_of([room.cpu + one.resources.cpu for room, one in left], cpu),
            number_of([room.memory + one.resources.memory for room, one in left], memory),
        )

    def _missing(self) -> int:
        """Return how many jobs of the unit do not fit now, or less."""
        fit = how_many_fit_of(self._trial, self._kinds, self._domain)
        return len(self._unit.members) - fit

    def _vacate(self, victims: Sequence[Victim]) -> None:
        """Show a node without these victims, which are all on it."""
        node_id = victims[0].allocation.node_id
        here = (one for one in self._leaving if one.allocation.node_id == node_id)
        self._preemption.vacate([*victims, *here])

    def _gain(self, victims: Sequence[Victim]) -> int:
        """Return how many more jobs of the unit fit on the victims' node without them."""
        node_id = victims[0].allocation.node_id
        mark = self._trial.mark
        gain = -self._fit_on(node_id)
        self._vacate(victims)
        gain += self._fit_on(node_id)
        self._trial.undo(mark)
        return gain

    def _fit_on(self, node_id: str) -> int:
        shape, free = self._trial.shape(node_id), self._trial.rooms[node_id]
        return sum(
            most_in(shape, free, need, count)
            for need, count in self._kinds.items()
            if node_id in self._trial.sorted(need.scope, self._domain)
        )


def _preemptor(unit: Unit) -> Preemptor:
    """Return the preemptor of the unit, with the time at which it gives up: after that, an eviction
    would be useless."""
    ends = [scheduling_ends_at(unit.run, member.attempt) for member in unit.members]
    before = min((at for at in ends if at is not None), default=None)
    return Preemptor(unit.band, before)
