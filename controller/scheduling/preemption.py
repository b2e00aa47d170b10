"""Preemption makes room for a job of a higher band; `nominations` keep that room for it.

A single job evicts single jobs. A gang evicts a whole gang or the fewest single jobs, and only if
it fits afterwards (docs/rules.md 6.5, 6.6).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from controller.lifecycle.limits import scheduling_ends_at
from controller.lifecycle.model import Allocation
from controller.lifecycle.statuses import AllocationState
from controller.scheduling.capacity import Need
from controller.scheduling.constraints import Domain
from controller.scheduling.gang_placement import (
    MemberAllocation,
    NewId,
    allocate,
    can_get_less,
    hardest_first,
    place_all,
)
from controller.scheduling.index import TrialCapacity, Where
from controller.scheduling.queue import Unit
from controller.scheduling.victims import (
    CLEANUP_SECONDS,
    Cost,
    Evictions,
    Preemptor,
    Victim,
    Victims,
)

MOST_SEARCHES = 50
"""The number of searches in one pass; the next pass makes the rest."""
_MOST_GANGS = 8
"""The number of gangs that are tried as victims in each domain."""


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
    def cost(self) -> Cost:
        evicted = [one.price for one in self.victims.values() if not one.leaves_anyway]
        return len(evicted), tuple(sorted(evicted, reverse=True))


class Preemption:
    """The search for victims in one scheduling pass."""

    def __init__(self, trial: TrialCapacity, now: float, new_id: NewId) -> None:
        self._trial = trial
        self._index = trial.index
        self._now = now
        self._new_id = new_id
        self._victims = Victims(trial, now)
        self._evictions: dict[tuple[object, ...], Evictions] = {}
        self._in_vain: set[tuple[object, ...]] = set()
        self._searches = 0

    def may_help(self, unit: Unit) -> bool:
        """Return whether some job could be evicted, and in time before the unit gives up."""
        before = _preemptor(unit).before
        in_time = before is None or before >= self._now + CLEANUP_SECONDS
        return in_time and unit.band < self._victims.lowest

    @property
    def is_tired(self) -> bool:
        return self._searches >= MOST_SEARCHES

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
            nodes = self._nodes(member.need, where)
            self._evictions[key] = Evictions(self._victims, member.need, preemptor, nodes)
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
        evictions = [
            eviction
            for domain in domains
            for eviction in (
                self._evict_gang(unit, preemptor, domain),
                *(
                    self._evict_solos(unit, preemptor, domain, least=least)
                    for least in ((False, True) if can_get_less(unit) else (False,))
                ),
            )
            if eviction is not None
        ]
        if not evictions:
            self._in_vain.add(key)
            return None
        best = min(evictions, key=lambda eviction: eviction.cost)
        return self._nominate(best.chosen, best.victims)

    def _evict_gang(self, unit: Unit, preemptor: Preemptor, domain: Domain) -> _GangEviction | None:
        for tried, gang in enumerate(self._victims.gangs_in(domain, preemptor)):
            if tried >= _MOST_GANGS:
                return None
            mark = self._trial.mark
            for node_id in dict.fromkeys(victim.allocation.node_id for victim in gang):
                self._vacate(node_id, {victim.allocation.id for victim in gang})
            chosen = place_all(self._trial, unit, domain, self._now, self._new_id)
            self._trial.undo(mark)
            if chosen is not None:
                return _GangEviction(chosen, {one.allocation.id: one for one in gang})
        return None

    def _evict_solos(
        self, unit: Unit, preemptor: Preemptor, domain: Domain, *, least: bool
    ) -> _GangEviction | None:
        mark = self._trial.mark
        chosen_before = set(self._victims.chosen)
        evictions: dict[Need, Evictions] = {}
        found = _GangEviction([], {})
        for member in hardest_first(unit.members):
            free = self._trial.best(member.need, domain)
            if free is None:
                if member.need not in evictions:
                    nodes = self._nodes(member.need, domain)
                    evictions[member.need] = Evictions(self._victims, member.need, preemptor, nodes)
                plan = evictions[member.need].best()
                if plan is None:
                    break
                found.victims.update({one.allocation.id: one for one in plan.victims})
                self._vacate(plan.node_id, {one.allocation.id for one in plan.victims})
                self._victims.chosen.update(one.allocation.id for one in plan.victims)
                free = plan.freed
            allocation = allocate(unit, member, free, domain, self._now, self._new_id, least=least)
            self._trial.give(allocation)
            found.chosen.append(MemberAllocation(member, allocation))
        self._trial.undo(mark)
        self._victims.chosen = chosen_before
        return found if len(found.chosen) == len(unit.members) and found.victims else None

    def _vacate(self, node_id: str, gone: set[str]) -> None:
        if node_id in self._trial.rooms:
            self._trial.vacate(node_id, gone | self._victims.chosen)

    def _nodes(self, need: Need, where: Where) -> list[str]:
        scope = self._trial.sorted(need.scope, where)
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
        self._victims.chosen.update(victims)
        nominated = []
        for choice in chosen:
            allocation = self._as_nominated(choice.allocation, on_node)
            self._trial.give(allocation)
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


def _preemptor(unit: Unit) -> Preemptor:
    """Return the preemptor of the unit, with the time at which it gives up: after that, an eviction
    would be useless."""
    ends = [scheduling_ends_at(unit.run, member.attempt) for member in unit.members]
    before = min((at for at in ends if at is not None), default=None)
    return Preemptor(unit.band, before)
