"""Rooms of nodes, sorted so that the best one that fits is found without looking at each.

Rooms of the same shape lie in one bin: whether a job fits is asked once for each shape.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping

from controller.scheduling.fit import Room
from controller.scheduling.needs import Need, Shape

_Key = tuple[str, str]
"""A node's name and id: the order within a bin."""


class Shelf:
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
        """Put the node where it belongs now."""
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
        """Where the fewest GPUs stay unused, then the least is starting, then most CPU is free."""
        for at in range(bisect_left(self._order, (need.least_gpus,)), len(self._order)):
            shape = self._order[at]
            room = rooms[self._bins[shape][0][1]]
            if need.fits(shape, room):
                return room
        return None

    def bins(self, rooms: Mapping[str, Room]) -> Iterator[tuple[Shape, Room, int]]:
        """Each shape with one of its rooms and how many there are."""
        for shape in self._order:
            keys = self._bins[shape]
            yield shape, rooms[keys[0][1]], len(keys)


class Tiers:
    """The nodes of one scope, the preferred ones apart: a better-liked node that fits goes before
    any other."""

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
        """`tier`: for a node that is not there yet, or that may be liked otherwise now."""
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

    def best(self, need: Need, rooms: Mapping[str, Room]) -> Room | None:
        for tier in sorted(self._shelves):
            found = self._shelves[tier].best(need, rooms)
            if found is not None:
                return found
        return None

    def bins(self, rooms: Mapping[str, Room]) -> Iterator[tuple[Shape, Room, int]]:
        for tier in sorted(self._shelves):
            yield from self._shelves[tier].bins(rooms)
