"""What jobs ask of a node, with equal asks made one object, so that what was found out about one
job need not be found out again for the next."""

from __future__ import annotations

from typing import TypeAlias

from msgspec.structs import replace

from controller.lifecycle.model import Constraint, JobSpec, NodeGpu, Resources
from controller.scheduling.fit import Room, is_busy, shortfalls

Scope: TypeAlias = tuple[tuple[str, ...], tuple[Constraint, ...]]
"""Fleets and constraints: which nodes are asked at all."""

Shape: TypeAlias = tuple[int, int, float, int, int, bool, tuple[tuple[int, int], ...], int, bool]
"""All of a node's room that decides whether a job fits; the smallest is the best place: the fewest
GPUs unused, then the least that is starting, then the most CPU."""

_MOST_SHAPES = 20_000


class Need:
    """Compared by identity: `Needs` gives equal asks the same object."""

    def __init__(self, resources: Resources, scope: Scope) -> None:
        self.resources = resources
        self.scope = scope
        self.least_gpus = resources.gpu.count
        self._fits: dict[Shape, bool] = {}

    def fits(self, shape: Shape, room: Room) -> bool:
        """`room`: any one of this shape."""
        known = self._fits.get(shape)
        if known is None:
            if len(self._fits) > _MOST_SHAPES:
                self._fits.clear()
            known = self._fits[shape] = not shortfalls(self.resources, room)
        return known


class Needs:
    def __init__(self) -> None:
        self._known: dict[tuple[Resources, Scope], Need] = {}

    def of(
        self, spec: JobSpec, besides: tuple[Constraint, ...] = (), *, host_network: bool = False
    ) -> Need:
        """`besides`: constraints that its user has not written."""
        resources = spec.resources
        if host_network:
            resources = replace(resources, host_network=True)
        key = (resources, (spec.fleets, spec.constraints + besides))
        found = self._known.get(key)
        if found is None:
            if len(self._known) > _MOST_SHAPES:
                self._known.clear()
            found = self._known[key] = Need(*key)
        return found


class Shapes:
    """Gives rooms their shapes; what is long to compare is given a number once."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}

    def of(self, room: Room) -> Shape:
        capacity = room.node.capacity
        kinds: dict[int, int] = {}
        for gpu in room.gpus:
            kind = self._number(_kind(gpu))
            kinds[kind] = kinds.get(kind, 0) + 1
        every = tuple(map(_kind, capacity.gpus))
        whole = (
            *(capacity.cpu, capacity.memory, capacity.disk, capacity.blocks),
            capacity.host_network,
            every,
        )
        return (
            len(room.gpus),
            room.starts,
            -room.cpu,
            room.memory,
            room.disk,
            room.empty,
            tuple(sorted(kinds.items())),
            self._number(whole),
            is_busy(room),
        )

    def _number(self, what: object) -> int:
        return self._numbers.setdefault(what, len(self._numbers))


def _kind(gpu: NodeGpu) -> tuple[object, ...]:
    """What decides for whom it is."""
    return gpu.name, gpu.memory, gpu.compute_capability, gpu.mig_parent is not None
