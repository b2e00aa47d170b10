"""Capacity groups jobs by their needs and nodes by their free capacity.

Jobs with equal needs share one `Need`, and nodes with equal free capacity share one shape. So one
comparison answers for thousands of them.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from controller.lifecycle.model import Constraint, JobSpec, NodeCapacity, NodeGpu, Resources
from controller.scheduling.fitting.fit import Room, is_busy, shortfalls, takes_less
from fairlead.wire.amounts import amounts_in

Scope: TypeAlias = tuple[tuple[str, ...], tuple[Constraint, ...]]
"""Fleets and constraints: they select the nodes that a job may use."""
_Kinds: TypeAlias = tuple[tuple[int, int], ...]
Shape: TypeAlias = tuple[
    int, int, float, *tuple[float, ...], bool, _Kinds, int, bool, bool, tuple[int, ...]
]
"""Everything of a node's free capacity that decides whether a job fits.

The smallest shape is the best node: fewest GPUs unused, then fewest jobs starting, then most CPU.
"""
_MAX_SHAPES = 20_000


class Need:
    """A job's needs: resources and scope. It is compared by identity, because `Needs` makes equal
    needs one object."""

    def __init__(self, resources: Resources, scope: Scope) -> None:
        self.resources = resources
        self.scope = scope
        self.min_gpus = resources.gpu.count
        fleets, constraints = scope
        self.kind = (resources, fleets, tuple(one for one in constraints if one.required))
        """All that decides where the job may go; preferences do not."""
        self._fits: dict[Shape, bool] = {}

    def fits(self, shape: Shape, room: Room) -> bool:
        """Return whether the job fits a node of this shape; `room` is any node of that shape."""
        known = self._fits.get(shape)
        if known is None:
            if len(self._fits) > _MAX_SHAPES:
                self._fits.clear()
            known = self._fits[shape] = not shortfalls(self.resources, room)
        return known


class Needs:
    """Makes equal needs one object."""

    def __init__(self) -> None:
        self._known: dict[tuple[Resources, Scope], Need] = {}

    def of(
        self,
        spec: JobSpec,
        besides: tuple[Constraint, ...] = (),
        *,
        host_network: bool = False,
        gateway: bool = False,
        port: int | None = None,
    ) -> Need:
        """Return the need of a job; `besides` are constraints that its user has not written."""
        resources = spec.resources
        if host_network or gateway or port is not None:
            resources = replace(resources, host_network=host_network, gateway=gateway, port=port)
        return self._one(resources, (spec.fleets, spec.constraints + besides))

    def like(self, need: Need) -> Need:
        """Return the equal need of these; what a need knows of shapes is of one index alone."""
        return self._one(need.resources, need.scope)

    def _one(self, resources: Resources, scope: Scope) -> Need:
        key = (resources, scope)
        found = self._known.get(key)
        if found is None:
            if len(self._known) > _MAX_SHAPES:
                self._known.clear()
            found = self._known[key] = Need(*key)
        return found


class _Numbered(NamedTuple):
    """A node's capacity as a whole, and the kinds of all its GPUs, by number."""

    capacity: NodeCapacity
    """It is kept, so that no other one gets its address."""
    whole: int
    kinds: _Kinds


class Shapes:
    """Gives each room its shape; values that are slow to compare get a number once.

    `most` bounds what it remembers. What was forgotten gets another number, never that of
    something else: then equal rooms have two shapes, which costs a comparison more.
    """

    def __init__(self, most: int = _MAX_SHAPES) -> None:
        self._most = most
        self._next = itertools.count()
        self._numbers: dict[object, int] = {}
        self._kinds: dict[int, _Kinds] = {}
        """By the number of the kinds in the order of their GPUs."""
        self._numbered: dict[int, _Numbered] = {}
        """By the address of the capacity: a node's stays the same object until it changes."""

    def of(self, room: Room) -> Shape:
        capacity = room.node.capacity
        numbered = self._numbered.get(id(capacity)) or self._number_all(capacity)
        kinds = numbered.kinds
        if len(room.gpus) < len(capacity.gpus):
            kinds = self._kinds_of(tuple(map(kind_of, room.gpus))) if room.gpus else ()
        return (
            len(room.gpus),
            room.starts,
            -room.cpu,
            *amounts_in(room),
            room.empty,
            kinds,
            numbered.whole,
            is_busy(room),
            room.lacks_network,
            room.ports,
        )

    def _number_all(self, capacity: NodeCapacity) -> _Numbered:
        every = tuple(map(kind_of, capacity.gpus))
        whole = (
            *amounts_in(capacity),
            capacity.blocks,
            *(capacity.host_network, capacity.gateways, capacity.infiniband, capacity.engine_lacks),
            capacity.allows,
            self._number(every),
        )
        if len(self._numbered) >= self._most:
            self._numbered.clear()
        made = _Numbered(capacity, self._number(whole), self._kinds_of(every))
        self._numbered[id(capacity)] = made
        return made

    def _kinds_of(self, every: tuple[object, ...]) -> _Kinds:
        number = self._number(every)
        known = self._kinds.get(number)
        if known is None:
            if len(self._kinds) >= self._most:
                self._kinds.clear()
            counted = Counter(map(self._number, every))
            known = self._kinds[number] = tuple(sorted(counted.items()))
        return known

    def _number(self, what: object) -> int:
        known = self._numbers.get(what)
        if known is None:
            if len(self._numbers) >= self._most:
                self._numbers.clear()
            known = self._numbers[what] = next(self._next)
        return known


def kind_of(gpu: NodeGpu) -> tuple[object, ...]:
    """Return the properties of a GPU that decide which job may have it."""
    return gpu.vendor, gpu.name, gpu.memory, gpu.compute_capability, gpu.parent is not None


_Key = tuple[str, str]
"""A node's name and id: the order within a bin."""


class Shelf:
    """Nodes in bins of equal shape, the best shape first."""

    def __init__(self) -> None:
        self._bins: dict[Shape, list[_Key]] = {}
        self._order: list[Shape] = []
        self._where: dict[str, Shape] = {}

    def __contains__(self, node_id: str) -> bool:
        return node_id in self._where

    def __len__(self) -> int:
        return len(self._where)

    def copy(self) -> Shelf:
        made = Shelf()
        made._bins = {shape: list(keys) for shape, keys in self._bins.items()}
        made._order = list(self._order)
        made._where = dict(self._where)
        return made

    def put(self, room: Room, shape: Shape) -> None:
        """Put the node into the bin of its shape."""
        node = room.node
        if self._where.get(node.id) == shape:
            return
        self.remove(node.id, node.name)
        keys = self._bins.get(shape)
        if keys is None:
            self._bins[shape] = [(node.name, node.id)]
            insort(self._order, shape)
        else:
            insort(keys, (node.name, node.id))
        self._where[node.id] = shape

    def remove(self, node_id: str, name: str) -> None:
        shape = self._where.pop(node_id, None)
        if shape is None:
            return
        keys = self._bins[shape]
        del keys[bisect_left(keys, (name, node_id))]
        if not keys:
            del self._bins[shape]
            del self._order[bisect_left(self._order, shape)]

    def best(self, need: Need, rooms: Mapping[str, Room]) -> Room | None:
        """Return the best room that fits: fewest GPUs unused, then fewest jobs starting, then most
        free CPU. A node that has less than what every job gets comes last."""
        smaller = None
        for at in range(bisect_left(self._order, (need.min_gpus,)), len(self._order)):
            shape = self._order[at]
            room = rooms[self._bins[shape][0][1]]
            if need.fits(shape, room):
                if not takes_less(need.resources, room.node.capacity):
                    return room
                smaller = smaller or room
        return smaller

    def fitting(self, need: Need, rooms: Mapping[str, Room]) -> Iterator[Room]:
        """Yield the rooms that fit, the best first, as `best` finds them one after the other."""
        smaller: list[Room] = []
        for shape in self._order:
            found = [rooms[node_id] for _, node_id in self._bins[shape]]
            if not need.fits(shape, found[0]):
                continue
            if takes_less(need.resources, found[0].node.capacity):
                smaller += found
            else:
                yield from found
        yield from smaller

    def bins(self, rooms: Mapping[str, Room]) -> Iterator[tuple[Shape, Room, int]]:
        """Yield each shape, one of its rooms, and how many there are."""
        for shape in self._order:
            keys = self._bins[shape]
            yield shape, rooms[keys[0][1]], len(keys)


class Tiers:
    """The nodes of one scope, grouped by preference: a preferred node that fits comes before any
    other."""

    def __init__(self) -> None:
        self._shelves: dict[int, Shelf] = {}
        self._tier: dict[str, int] = {}

    def copy(self) -> Tiers:
        made = Tiers()
        made._shelves = {tier: shelf.copy() for tier, shelf in self._shelves.items()}
        made._tier = dict(self._tier)
        return made

    def __contains__(self, node_id: str) -> bool:
        return node_id in self._tier

    def __len__(self) -> int:
        return len(self._tier)

    def put(self, room: Room, shape: Shape, tier: int | None = None) -> None:
        """Put the node into its tier. Give `tier` for a node that is new here or whose preference
        may have changed."""
        if tier is None:
            tier = self._tier[room.node.id]
        elif self._tier.get(room.node.id, tier) != tier:
            self.remove(room.node.id, room.node.name)
        self._tier[room.node.id] = tier
        self._shelves.setdefault(tier, Shelf()).put(room, shape)

    def remove(self, node_id: str, name: str) -> None:
        tier = self._tier.pop(node_id, None)
        if tier is not None:
            self._shelves[tier].remove(node_id, name)

    def tier(self, node_id: str) -> int | None:
        """Return how many preferences the node misses; None: it is not in the scope."""
        return self._tier.get(node_id)

    def best(self, need: Need, rooms: Mapping[str, Room]) -> Room | None:
        for tier in sorted(self._shelves):
            found = self._shelves[tier].best(need, rooms)
            if found is not None:
                return found
        return None

    def fitting(self, need: Need, rooms: Mapping[str, Room]) -> Iterator[Room]:
        """Yield the rooms that fit, in the order in which they are tried."""
        for tier in sorted(self._shelves):
            yield from self._shelves[tier].fitting(need, rooms)

    def bins(self, rooms: Mapping[str, Room]) -> Iterator[tuple[Shape, Room, int]]:
        for tier in sorted(self._shelves):
            yield from self._shelves[tier].bins(rooms)
