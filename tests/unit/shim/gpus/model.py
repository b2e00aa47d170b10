"""A node's ledger under random orders, beside a model that knows what must be true of it.

Each order is a tuple of small numbers, so that whoever finds a violation can shrink it. After each,
no GPU has two owners, all sums are exact, what was granted is what was asked, and what was refused
could not have been granted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import combinations

import msgspec
from hypothesis import strategies as st

from fairlead.wire.errors import Refused
from fairlead.wire.gpu_names import is_called
from fairlead.wire.node import AllocationInfo, GpuInfo, GpuLink
from fairlead.wire.shim import GpuRequest, TaskRequest, TaskResources
from shim.gpus.selection import tightness
from shim.node.ledger import Capacity, Ledger
from tests.unit.shim.gpus.parts import in_pairs, linked, mig

Order = tuple[int, int, int, int, int]
"""Kind, allocation, count, filter, an index or share: below 10, 12, 10, 6 and 64."""
GIB = 1 << 30
CAPACITY = Capacity(cpu=64.0, memory=512 * GIB, disk=1000 * GIB)


def _mixed(count: int) -> tuple[GpuInfo, ...]:
    small = {"name": "NVIDIA L40S", "memory": 48 << 30, "compute_capability": "8.9"}
    return tuple(
        msgspec.structs.replace(gpu, **small) if gpu.index % 3 == 0 else gpu
        for gpu in linked(count, in_pairs)
    )


MACHINES: dict[str, Callable[[], tuple[GpuInfo, ...]]] = {
    "8 in pairs": lambda: linked(8, in_pairs),
    "8 on switches": lambda: linked(8, lambda one, other: GpuLink.DIRECT),
    "6 of two kinds": lambda: _mixed(6),
    "4 beside 2 split": lambda: (*linked(4, in_pairs), *(mig(4 + n // 3, n) for n in range(6))),
    "none": lambda: (),
}
FILTERS = (
    GpuRequest(),
    GpuRequest(names=("H100",)),
    GpuRequest(names=("L40S",)),
    GpuRequest(min_memory=60 << 30),
    GpuRequest(min_compute_capability="9.0"),
    GpuRequest(names=("MIG",)),
)


class Violation(AssertionError):
    """A promise of the ledger does not hold."""


class Model:
    """`counts` says how often each kind of order came, and how it ended."""

    def __init__(self, gpus: tuple[GpuInfo, ...]) -> None:
        self.counts: Counter[str] = Counter()
        self._gpus = {gpu.uuid: gpu for gpu in gpus}
        self._ledger = Ledger(CAPACITY, gpus)
        self._held: dict[str, AllocationInfo] = {}
        self._numbers = 0

    def obey(self, order: Order) -> None:
        """Raises Violation."""
        kind, place, count, wish, share = order
        if kind < 5:
            self._ask(f"place-{place}", self._request(place, count, wish, share))
        elif kind == 5:
            whole = TaskResources(cpu=1.0, memory=GIB, whole_node=True)
            self._ask(f"place-{place}", self._wrap(place, whole))
        elif kind < 8:
            self._release(f"place-{place}")
        else:
            self._change(count, share, healthy=kind == 8)
        self._check()

    def _request(self, place: int, count: int, wish: int, share: int) -> TaskRequest:
        gpu = msgspec.structs.replace(FILTERS[wish], count=count)
        if wish == 0 and share % 4 == 0 and self._gpus:
            names = sorted(self._gpus)
            chosen = {names[(share + step * 3) % len(names)] for step in range(max(count, 1))}
            gpu = GpuRequest(uuids=tuple(sorted(chosen)))
        cpu, memory = 1.0 + share % 8, (1 + share) * GIB
        return self._wrap(place, TaskResources(cpu=cpu, memory=memory, disk=GIB, gpu=gpu))

    def _wrap(self, place: int, resources: TaskResources) -> TaskRequest:
        return TaskRequest(
            run_id=f"run-{place}",
            run_name="run",
            allocation_id=f"place-{place}",
            image="busybox",
            resources=resources,
        )

    def _ask(self, place: str, request: TaskRequest) -> None:
        self._numbers += 1
        free = self._free(place)
        may = self._may(place, request.resources, free)
        try:
            allocation = self._ledger.plan(f"t-{self._numbers}", request)
        except Refused as problem:
            _must(problem.code == "no_capacity", f"refused as {problem.code}")
            _must(not may, f"refused though it fits: {problem.message}")
            self.counts["refused"] += 1
            return
        _must(may, "granted though it does not fit")
        self._check_granted(request.resources, allocation, free)
        self._ledger.hold(allocation)
        self._held[place] = allocation
        self.counts["whole nodes" if request.resources.whole_node else "granted"] += 1

    def _free(self, place: str) -> list[GpuInfo]:
        taken = {u for key, held in self._held.items() if key != place for u in held.gpus}
        return [
            gpu
            for gpu in self._gpus.values()
            if gpu.healthy and not gpu.held and gpu.uuid not in taken
        ]

    def _may(self, place: str, wanted: TaskResources, free: list[GpuInfo]) -> bool:
        others = [held for key, held in self._held.items() if key != place]
        if any(held.whole_node for held in others) or (wanted.whole_node and others):
            return False
        used_cpu = sum(held.cpu for held in others)
        used_memory = sum(held.memory for held in others)
        used_disk = sum(held.disk for held in others)
        if (
            wanted.cpu + used_cpu > CAPACITY.cpu
            or wanted.memory + used_memory > CAPACITY.memory
            or (wanted.disk or 0) + used_disk > CAPACITY.disk
        ):
            return False
        if wanted.gpu.uuids:
            return set(wanted.gpu.uuids) <= {gpu.uuid for gpu in free}
        return len(_fitting(wanted.gpu, free)) >= wanted.gpu.count

    def _check_granted(
        self, wanted: TaskResources, allocation: AllocationInfo, free: list[GpuInfo]
    ) -> None:
        got = [self._gpus[uuid] for uuid in allocation.gpus]
        _must(len(set(allocation.gpus)) == len(got), "a GPU was given twice")
        _must(set(allocation.gpus) <= {gpu.uuid for gpu in free}, "a GPU was not free")
        if wanted.whole_node:
            whole = {gpu.uuid for gpu in free if gpu.parent is None}
            _must(set(allocation.gpus) == whole, "a whole node has all whole GPUs and no instance")
            return
        if wanted.gpu.uuids:
            _must(allocation.gpus == wanted.gpu.uuids, "other GPUs than those named")
            return
        _must(len(got) == wanted.gpu.count, "another number of GPUs than asked")
        fitting = _fitting(wanted.gpu, free)
        _must(all(gpu in fitting for gpu in got), "a GPU that was not asked for")
        if allocation.id not in self._held:
            best = max(tightness(some) for some in combinations(fitting, len(got)))
            _must(tightness(got) == best, "GPUs nearer to each other were free")

    def _release(self, place: str) -> None:
        self._ledger.release(place)
        self._held.pop(place, None)
        self.counts["released"] += 1

    def _change(self, count: int, share: int, *, healthy: bool) -> None:
        """A GPU breaks and is repaired, or its memory stays in use and is freed."""
        if not self._gpus:
            return
        uuid = sorted(self._gpus)[share % len(self._gpus)]
        is_well = count % 3 > 0
        change = {"healthy": is_well} if healthy else {"held": not is_well}
        self._gpus[uuid] = msgspec.structs.replace(self._gpus[uuid], **change)
        self._ledger.set_gpus(self._gpus.values())
        self.counts["changed"] += 1

    def _check(self) -> None:
        owners = Counter(uuid for held in self._ledger.held for uuid in held.gpus)
        _must(all(count == 1 for count in owners.values()), f"two owners: {owners}")
        shown = {g.uuid: g.allocation_id for g in self._ledger.gpus() if g.allocation_id}
        real = {uuid: held.id for held in self._held.values() for uuid in held.gpus}
        _must(shown == real, "the owners shown are not the owners")
        used = self._ledger.used()
        if any(held.whole_node for held in self._held.values()):
            _must(used == CAPACITY, "a whole node that is not all of it")
            return
        cpu = sum(held.cpu for held in self._held.values())
        memory = sum(held.memory for held in self._held.values())
        disk = sum(held.disk for held in self._held.values())
        _must((used.cpu, used.memory, used.disk) == (cpu, memory, disk), "the sums are wrong")
        _must(cpu <= CAPACITY.cpu and memory <= CAPACITY.memory, "more is held than there is")


def _fitting(asked: GpuRequest, free: list[GpuInfo]) -> list[GpuInfo]:
    return [
        gpu
        for gpu in free
        if (
            any(is_called(gpu.name, name) for name in asked.names)
            if asked.names
            else gpu.parent is None
        )
        and gpu.memory >= asked.min_memory
        and (asked.min_compute_capability or "") <= (gpu.compute_capability or "")
    ]


def _must(condition: bool, what: str) -> None:
    if not condition:
        raise Violation(what)


ORDERS = st.tuples(
    st.integers(0, 9), st.integers(0, 11), st.integers(0, 9), st.integers(0, 5), st.integers(0, 63)
)
