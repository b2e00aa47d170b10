"""The ledger accounts for what of this node is taken, and by whom. Pure.

An allocation belongs to a run, outlives its tasks, and is released only by its owner. The ledger
refuses what does not fit, and names the dimension, what was requested and what is free. The caller
makes changes durable. A node can be split into blocks, equal shares of CPU, memory and GPUs: an
allocation then takes whole blocks, and one that takes all of them holds the whole node. Disk is not
split.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import Literal

import msgspec

from fairlead.wire.amounts import UNITS, Amounts, Unit, amounts_of, sums_of
from fairlead.wire.errors import Refused
from fairlead.wire.gpu_names import GpuVendor, in_every_block, is_named, is_part
from fairlead.wire.node import AllocationInfo, GpuInfo
from fairlead.wire.shim import GpuRequest, RefusalCode, TaskRequest, TaskResources
from shim.errors import StartError, conflict, invalid
from shim.gpus.selection import choose

AUTO: Literal["auto"] = "auto"
"""As many blocks as there are GPUs, also with a driver that is loaded late."""
Asked = int | Literal["auto"]
_TOLERANCE = 1e-6


class Blocks(msgspec.Struct, frozen=True):
    """The blocks of a node. `cpu` (cores), `memory` (bytes) and `gpus` are the whole node's.

    `gpus_of`: the vendors whose tasks get their share of the GPUs with each block, also unasked.
    """

    count: int
    cpu: float
    memory: int
    gpus: int
    gpus_of: frozenset[GpuVendor] = frozenset(GpuVendor)

    @classmethod
    def of(cls, count: int, cpu: float, memory: int, gpus: Sequence[GpuInfo]) -> Blocks:
        parts = any(is_part(gpu.name, gpu.parent) for gpu in gpus)
        vendors = [gpu.vendor for gpu in gpus]
        theirs = frozenset(each for each in GpuVendor if in_every_block(vendors, parts, each))
        return cls(count, cpu, memory, len(gpus), theirs)

    def round_up(self, resources: TaskResources) -> TaskResources:
        """Return what whole blocks give for this need; the need itself if no number of blocks is
        enough."""
        number = max(
            self._shares(resources.cpu, self.cpu / self.count),
            self._shares(resources.memory, self.memory // self.count),
            self._shares(_gpus(resources), self.gpus // self.count),
            self.count if resources.whole_node else 1,
        )
        if number > self.count:
            return resources
        gpu = resources.gpu
        if self.gpus and gpu.vendor in self.gpus_of:
            gpu = msgspec.structs.replace(gpu, count=number * (self.gpus // self.count))
        return msgspec.structs.replace(
            resources,
            cpu=number * (self.cpu / self.count),
            memory=number * (self.memory // self.count),
            gpu=gpu,
            whole_node=number == self.count,
        )

    def _shares(self, need: float, share: float) -> int:
        if need <= 0:
            return 0
        return ceil(need / share - _TOLERANCE) if share > 0 else self.count + 1


def parse(text: str) -> Asked:
    """Return the value of `--blocks`. Raises StartError."""
    if text == AUTO:
        return AUTO
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise StartError(f"--blocks {text!r}: expected a number of 1 or more, or 'auto'")
    return int(text)


def check(asked: Asked | None, gpus: int) -> None:
    """Raise StartError when the GPUs cannot be shared equally."""
    if isinstance(asked, int) and gpus % asked:
        raise StartError(
            f"--blocks {asked}: {gpus} GPUs cannot be split in {asked} equal shares; "
            f"choose a number that divides {gpus}"
        )


def resolve(asked: Asked | None, gpus: int) -> int | None:
    """Return how many blocks a node with this many GPUs has."""
    return max(gpus, 1) if asked == AUTO else asked


def _gpus(resources: TaskResources) -> int:
    return max(resources.gpu.count, len(resources.gpu.uuids))


class Capacity(Amounts, frozen=True, kw_only=True):
    """The amounts that may be allocated."""


class Ledger:
    """The allocations of the node. `blocks`: the number of equal shares of the node."""

    def __init__(
        self,
        capacity: Capacity,
        gpus: Iterable[GpuInfo] = (),
        held: Iterable[AllocationInfo] = (),
        blocks: Asked | None = None,
    ) -> None:
        self.capacity = capacity
        self._blocks = blocks
        self._gpus = tuple(gpus)
        self._held = {allocation.id: allocation for allocation in held}

    @property
    def blocks(self) -> int | None:
        return resolve(self._blocks, len(self._gpus))

    @property
    def held(self) -> tuple[AllocationInfo, ...]:
        return tuple(self._held.values())

    def get(self, allocation_id: str) -> AllocationInfo | None:
        return self._held.get(allocation_id)

    def used(self) -> Capacity:
        if any(allocation.whole_node for allocation in self._held.values()):
            return self.capacity
        sums = sums_of(self._held.values())
        return Capacity(**sums | {"cpu": round(sums["cpu"], 6)})

    def gpus(self) -> tuple[GpuInfo, ...]:
        owner = {uuid: a.id for a in self._held.values() for uuid in a.gpus}
        return tuple(_with_owner(gpu, owner.get(gpu.uuid)) for gpu in self._gpus)

    def set_gpus(self, gpus: Iterable[GpuInfo]) -> None:
        """Update the GPUs; their allocations do not change."""
        self._gpus = tuple(gpus)

    def plan(self, task_id: str, request: TaskRequest) -> AllocationInfo:
        """Return the allocation as it would be with this task; this changes nothing.

        Raises Refused: 409 `conflict` when another run holds it, 409 `no_capacity` when it does not
        fit.
        """
        known = self._held.get(request.allocation_id)
        if known is not None and known.run_id != request.run_id:
            raise conflict(f"allocation {known.id} belongs to run {known.run_id}", "allocation_id")
        others = [a for a in self._held.values() if a.id != request.allocation_id]
        resources = self._in_blocks(request.resources)
        self._check_whole_node(resources, others)
        self._check_sizes(resources, others)
        tasks = known.task_ids if known else ()
        return AllocationInfo(
            id=request.allocation_id,
            run_id=request.run_id,
            **amounts_of(resources),
            gpus=self._choose_gpus(resources, known, others),
            whole_node=resources.whole_node,
            task_ids=(*(t for t in tasks if t != task_id), task_id),
        )

    def hold(self, allocation: AllocationInfo) -> None:
        self._held[allocation.id] = allocation

    def without_task(self, allocation_id: str, task_id: str) -> AllocationInfo | None:
        """Return the allocation without the task; None when there is no such allocation."""
        known = self._held.get(allocation_id)
        if known is None:
            return None
        kept = tuple(t for t in known.task_ids if t != task_id)
        self._held[allocation_id] = msgspec.structs.replace(known, task_ids=kept)
        return self._held[allocation_id]

    def release(self, allocation_id: str) -> None:
        self._held.pop(allocation_id, None)

    def _in_blocks(self, resources: TaskResources) -> TaskResources:
        number, capacity = self.blocks, self.capacity
        if number is None:
            return resources
        return Blocks.of(number, capacity.cpu, capacity.memory, self._gpus).round_up(resources)

    def _check_whole_node(self, resources: TaskResources, others: list[AllocationInfo]) -> None:
        holder = next((a for a in others if a.whole_node), None)
        if holder is not None:
            raise _no_capacity(
                f"the whole node is held by allocation {holder.id} of run {holder.run_id}",
                "resources.whole_node",
            )
        if resources.whole_node and others:
            raise _no_capacity(
                f"the whole node was requested, but {len(others)} other allocation(s) hold parts",
                "resources.whole_node",
            )

    def _check_sizes(self, resources: TaskResources, others: list[AllocationInfo]) -> None:
        for dimension, wanted in amounts_of(resources).items():
            total = getattr(self.capacity, dimension)
            free = total - sum(getattr(a, dimension) for a in others)
            if wanted > free + 1e-6:
                raise _no_capacity(
                    f"{dimension}: {_size(dimension, wanted)} asked, {_size(dimension, free)} free "
                    f"of {_size(dimension, total)}",
                    f"resources.{dimension}",
                )

    def _choose_gpus(
        self, resources: TaskResources, known: AllocationInfo | None, others: list[AllocationInfo]
    ) -> tuple[str, ...]:
        asked = resources.gpu
        taken = {uuid for allocation in others for uuid in allocation.gpus}
        free = [g for g in self._gpus if g.healthy and not g.held and g.uuid not in taken]
        if asked.uuids:
            self._check_named(asked.uuids, {gpu.uuid for gpu in free}, taken)
        fitting = [gpu for gpu in free if _fits(gpu, asked)]
        count = max(asked.count, len(asked.uuids))
        if resources.whole_node and not asked.count:
            count = len(fitting)
        if count > len(fitting):
            raise _no_capacity(
                f"gpu: {count} asked, {len(fitting)} fitting and free of {len(self._gpus)}"
                + _notes(self._gpus)
                + _instances_left_out(self._gpus, asked),
                "resources.gpu.count",
            )
        wanted = asked.uuids or (known.gpus if known else ())
        by_uuid = {gpu.uuid: gpu for gpu in fitting}
        kept = tuple(uuid for uuid in wanted if uuid in by_uuid)[:count]
        rest = [gpu for gpu in fitting if gpu.uuid not in kept]
        beside = [by_uuid[uuid] for uuid in kept]
        return kept + choose(rest, rest, count - len(kept), beside)

    def _check_named(self, uuids: tuple[str, ...], free: set[str], taken: set[str]) -> None:
        known = {gpu.uuid: gpu for gpu in self._gpus}
        if len(set(uuids)) < len(uuids):
            raise invalid("a GPU is listed twice", "resources.gpu.uuids")
        wrong = []
        for uuid in (uuid for uuid in uuids if uuid not in free):
            gpu = known.get(uuid)
            why = "not on this node" if gpu is None else gpu.message or "not offered"
            wrong.append(f"{uuid} ({'held by another allocation' if uuid in taken else why})")
        if wrong:
            raise _no_capacity(f"gpu: {', '.join(wrong)}", "resources.gpu.uuids")


def _with_owner(gpu: GpuInfo, owner: str | None) -> GpuInfo:
    """Return the GPU with its allocation, which explains memory in use."""
    if owner is None or not gpu.healthy:
        return msgspec.structs.replace(gpu, allocation_id=owner)
    return msgspec.structs.replace(gpu, allocation_id=owner, held=False, message=None)


def _notes(gpus: Iterable[GpuInfo]) -> str:
    notes = [f"GPU {gpu.index}: {gpu.message}" for gpu in gpus if gpu.message]
    return f" ({'; '.join(notes)})" if notes else ""


def _instances_left_out(gpus: Iterable[GpuInfo], asked: GpuRequest) -> str:
    left_out = any(
        is_part(gpu.name, gpu.parent) and not is_named(gpu.name, gpu.parent, asked.names)
        for gpu in gpus
    )
    return "; MIG instances are given only by name" if left_out else ""


def _fits(gpu: GpuInfo, asked: GpuRequest) -> bool:
    """Return whether the GPU fits. One that is named by its UUID was chosen by the caller."""
    return (
        (
            gpu.uuid in asked.uuids
            or (gpu.vendor is asked.vendor and is_named(gpu.name, gpu.parent, asked.names))
        )
        and gpu.memory >= asked.min_memory
        and _capability(gpu.compute_capability) >= _capability(asked.min_compute_capability)
    )


def _capability(text: str | None) -> tuple[int, ...]:
    if not text:
        return ()
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


def _size(dimension: str, amount: float) -> str:
    if UNITS[dimension] is Unit.CORES:
        return f"{max(amount, 0.0):g} cores"
    if UNITS[dimension] is Unit.PIECES:
        return f"{max(amount, 0)}"
    return f"{max(amount, 0) / (1 << 20):.0f} MiB"


def _no_capacity(message: str, field: str) -> Refused:
    return Refused(409, RefusalCode.NO_CAPACITY, message, field)
