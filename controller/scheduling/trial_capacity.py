"""Trial capacity: the index plus the placements of one pass that are not committed yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from controller.lifecycle.model import Allocation
from controller.scheduling.fitting.capacity import Need, Scope, Shape, Tiers
from controller.scheduling.fitting.fit import Room, less, room
from controller.scheduling.index import CapacityIndex, Where, note_networks
from controller.scheduling.queue import Kind, Unit

PASS_EFFORT = 30_000
"""The steps that all exact searches of one pass may take together (`packing.MAX_EFFORT`)."""


class TrialCapacity:
    """The index as one scheduling pass sees it, with what the pass has given out."""

    def __init__(self, index: CapacityIndex) -> None:
        self.index = index
        self.rooms = dict(index.rooms)
        self.effort = PASS_EFFORT
        """The steps that exact searches may still take."""
        self._shapes = dict(index.shapes)
        self._sorted: dict[Where, dict[Scope, Tiers]] = {}
        self._journal: list[tuple[str, Room, Shape]] = []
        self._given: list[Allocation] = []
        self._given_on: dict[str, list[Allocation]] = {}
        self._seen_by: Unit | None = None
        self._run_id: str | None = None
        """The run of the unit that sees the capacity now."""
        self._hidden: frozenset[str] = frozenset()
        self._used_up: set[str] = set()
        self._full = dict(index.full)

    def best(self, need: Need, where: Where = None) -> Room | None:
        return self.sorted(need.scope, where).best(need, self.rooms)

    def sorted(self, scope: Scope, where: Where = None) -> Tiers:
        known = self._sorted.setdefault(where, {})
        if scope not in known:
            made = self.index.sorted(scope, where).copy()
            for node_id in {changed for changed, _, _ in self._journal}:
                if node_id in made:
                    made.put(self.rooms[node_id], self._shapes[node_id])
            known[scope] = made
        return known[scope]

    def shape(self, node_id: str) -> Shape:
        return self._shapes[node_id]

    def give(self, allocation: Allocation) -> None:
        node_id = allocation.node_id
        self._given.append(allocation)
        self._given_on.setdefault(node_id, []).append(allocation)
        free = less(self.rooms[node_id], allocation.resources, allocation.gpus)
        if self._seen_by is not None and allocation.run_id == self._seen_by.run.id:
            free = replace(free, own_starts=free.own_starts + 1)
        self._change(node_id, self._with_network_of(free, allocation.run_id))

    @contextmanager
    def seen_by(self, unit: Unit) -> Iterator[None]:
        """Show the capacity as the unit sees it, for the length of the block.

        Allocations kept for its run are free, its run needs no second network on a node, and jobs
        of its own run that are starting do not delay it. What is given or used up meanwhile stays
        so.
        """
        own = dict(unit.starting)
        self._seen_by = unit if unit.kind is Kind.TOGETHER else None
        self._run_id = unit.run.id
        self._hidden = frozenset(allocation.id for allocation in unit.freed)
        full = [one for one in self._full if unit.run.id in self.rooms[one].networked]
        touched = dict.fromkeys((*own, *(allocation.node_id for allocation in unit.freed), *full))
        for node_id in touched:
            self._refresh(node_id, own.get(node_id, 0))
        given = len(self._given)
        try:
            yield
        finally:
            self._seen_by, self._run_id, self._hidden = None, None, frozenset()
            given_now = dict.fromkeys(one.node_id for one in self._given[given:])
            if unit.kind is Kind.TOGETHER or unit.freed:
                touched.update(given_now)
                full = [*touched]
            for node_id in dict.fromkeys((*full, *self._with_own_network(given_now))):
                self._refresh(node_id, 0)

    def _with_own_network(self, node_ids: Iterable[str]) -> list[str]:
        return [one for one in node_ids if one in self.rooms and self.rooms[one].own_network]

    def _with_network_of(self, free: Room, run_id: str) -> Room:
        """Return the room with one network less, unless the run has one there already."""
        if free.networks is None:
            return free
        if run_id not in free.networked:
            networked, connected = free.networked | {run_id}, free.connected | {run_id}
            networks = free.networks - 1
            free = replace(free, networks=networks, networked=networked, connected=connected)
        return self._with_own(free, free.own_starts)

    def _with_own(self, free: Room, own_starts: int) -> Room:
        """Return the room as the unit sees it, whose run may have the last network there."""
        own_network = free.has_all_networks and self._run_id in free.connected
        return replace(free, own_starts=own_starts, own_network=own_network)

    def use_up(self, freed_ids: Iterable[str]) -> None:
        """Remove these freed allocations: their run has others instead."""
        self._used_up.update(freed_ids)

    def _refresh(self, node_id: str, own_starts: int) -> None:
        before = self.rooms.get(node_id)
        if before is not None:
            free = room(before.node, self.taken_on(node_id), before.starts)
            self._change(node_id, self._with_own(free, own_starts))

    def taken_on(self, node_id: str) -> list[Allocation]:
        """Return what occupies the node, including what this pass has given out."""
        taken = [
            *self.index.taken.get(node_id, {}).values(),
            *self._given_on.get(node_id, ()),
        ]
        if not (self._hidden or self._used_up):
            return taken
        return [one for one in taken if one.id not in self._hidden and one.id not in self._used_up]

    def vacate(self, node_id: str, gone: Iterable[str]) -> None:
        """Show the node as if these allocations were gone."""
        left = set(gone)
        taken = [a for a in self.taken_on(node_id) if a.id not in left]
        before = self.rooms[node_id]
        free = room(before.node, taken, before.starts)
        self._change(node_id, self._with_own(free, before.own_starts))

    def settle(self, node_id: str) -> None:
        """Show the node as if all jobs that are starting there had started."""
        self._change(node_id, replace(self.rooms[node_id], starts=0))

    @property
    def mark(self) -> tuple[int, int]:
        """The point to which `undo` can return."""
        return len(self._journal), len(self._given)

    def undo(self, mark: tuple[int, int]) -> None:
        """Take back everything since `mark`."""
        changes, given = mark
        while len(self._journal) > changes:
            node_id, before, shape = self._journal.pop()
            self._put(node_id, before, shape)
        while len(self._given) > given:
            self._given_on[self._given.pop().node_id].pop()

    def _change(self, node_id: str, after: Room) -> None:
        self._journal.append((node_id, self.rooms[node_id], self._shapes[node_id]))
        self._put(node_id, after, self.index.shape_of(after))

    def _put(self, node_id: str, fresh: Room, shape: Shape) -> None:
        self.rooms[node_id], self._shapes[node_id] = fresh, shape
        note_networks(self._full, node_id, fresh)
        domain = self.index.domain(node_id)
        for where in (None,) if domain is None else (None, domain):
            for tiers in self._sorted.get(where, {}).values():
                if node_id in tiers:
                    tiers.put(fresh, shape)
