"""The rooms as one round of the scheduler sees them: what it has given out already is taken, and
the index stays as it is. A trial can be taken back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from controller.lifecycle.model import Allocation
from controller.scheduling.fit import Room, room
from controller.scheduling.index import Index, Where
from controller.scheduling.needs import Need, Scope, Shape
from controller.scheduling.shelves import Tiers
from controller.scheduling.units import Kind, Unit


class Board:
    def __init__(self, index: Index) -> None:
        self.index = index
        self.rooms = dict(index.rooms)
        self._shapes = dict(index.shapes)
        self._sorted: dict[Where, dict[Scope, Tiers]] = {}
        self._journal: list[tuple[str, Room, Shape]] = []
        self._given: list[Allocation] = []
        self._given_on: dict[str, list[Allocation]] = {}
        self._seen_by: Unit | None = None
        self._hidden: frozenset[str] = frozenset()
        self._used_up: set[str] = set()

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

    def give(self, allocation: Allocation) -> None:
        node_id = allocation.node_id
        self._given.append(allocation)
        self._given_on.setdefault(node_id, []).append(allocation)
        free = _less(self.rooms[node_id], allocation)
        if self._seen_by is not None and allocation.run_id == self._seen_by.run.id:
            free = replace(free, own_starts=free.own_starts + 1)
        self._change(node_id, free)

    @contextmanager
    def seen_by(self, unit: Unit) -> Iterator[None]:
        """As the unit sees it: what is kept for its run is free, and what is placed together is not
        delayed by what its own run starts. What is given or used up meanwhile stays so."""
        own = dict(unit.starting)
        self._seen_by = unit if unit.kind is Kind.TOGETHER else None
        self._hidden = frozenset(place.id for place in unit.freed)
        touched = dict.fromkeys((*own, *(place.node_id for place in unit.freed)))
        for node_id in touched:
            self._refresh(node_id, own.get(node_id, 0))
        given = len(self._given)
        try:
            yield
        finally:
            self._seen_by, self._hidden = None, frozenset()
            touched.update(dict.fromkeys(one.node_id for one in self._given[given:]))
            for node_id in touched if unit.kind is Kind.TOGETHER or unit.freed else ():
                self._refresh(node_id, 0)

    def use_up(self, freed_ids: Iterable[str]) -> None:
        """These kept places are no more: their run has others instead."""
        self._used_up.update(freed_ids)

    def _refresh(self, node_id: str, own_starts: int) -> None:
        before = self.rooms.get(node_id)
        if before is not None:
            free = room(before.node, self.taken_on(node_id), before.starts)
            self._change(node_id, replace(free, own_starts=own_starts))

    def taken_on(self, node_id: str) -> list[Allocation]:
        """What occupies the node, what this round has given out included."""
        taken = [
            *self.index.taken.get(node_id, {}).values(),
            *self._given_on.get(node_id, ()),
        ]
        if not (self._hidden or self._used_up):
            return taken
        return [one for one in taken if one.id not in self._hidden and one.id not in self._used_up]

    def vacate(self, node_id: str, gone: Iterable[str]) -> None:
        """As if these allocations were no longer there."""
        left = set(gone)
        taken = [a for a in self.taken_on(node_id) if a.id not in left]
        before = self.rooms[node_id]
        free = room(before.node, taken, before.starts)
        self._change(node_id, replace(free, own_starts=before.own_starts))

    def settle(self, node_id: str) -> None:
        """As if all that starts there had started."""
        self._change(node_id, replace(self.rooms[node_id], starts=0))

    @property
    def mark(self) -> tuple[int, int]:
        """Where `undo` may come back to."""
        return len(self._journal), len(self._given)

    def undo(self, mark: tuple[int, int]) -> None:
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
        domain = self.index.domain(node_id)
        for where in (None,) if domain is None else (None, domain):
            for tiers in self._sorted.get(where, {}).values():
                if node_id in tiers:
                    tiers.put(fresh, shape)


def _less(free: Room, allocation: Allocation) -> Room:
    taken = allocation.resources
    if taken.whole_node:
        return replace(
            free, cpu=0.0, memory=0, disk=0, gpus=(), starts=free.starts + 1, empty=False
        )
    gpus = free.gpus
    if allocation.gpus:
        gpus = tuple(gpu for gpu in gpus if gpu.uuid not in allocation.gpus)
    return replace(
        free,
        cpu=free.cpu - taken.cpu,
        memory=free.memory - taken.memory,
        disk=free.disk - taken.disk,
        gpus=gpus,
        starts=free.starts + 1,
        empty=False,
    )
