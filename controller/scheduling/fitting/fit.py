"""Fit compares what a job needs with what a node has free, dimension by dimension (docs/rules.md
6.2).

It also chooses GPU UUIDs, by the same rule as the shim: the tightest interconnect first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from math import ceil, comb
from pathlib import PurePosixPath

import msgspec

from common.host_paths import allowing_prefix
from controller.lifecycle.lacks import (
    HasOtherJobs,
    Lack,
    LacksAbilities,
    LacksAmount,
    LacksCpu,
    LacksGateways,
    LacksGpus,
    LacksHostNetwork,
    LacksInfiniband,
    LacksNetwork,
    LacksPermission,
    LacksPort,
    StartsTooMany,
)
from controller.lifecycle.model import (
    Allocation,
    Amount,
    GpuNeed,
    Node,
    NodeCapacity,
    NodeGpu,
    NodeStatus,
    Resources,
)
from controller.lifecycle.pending_reasons import DoesNotFit
from fairlead.model.needs import NO_PERMISSIONS
from fairlead.model.statuses import AllocationState
from fairlead.wire.amounts import NOTHING, UNITS, Amounts, Unit, amounts_in, left_of
from fairlead.wire.engine_abilities import EngineAbility
from fairlead.wire.gpu_names import GpuVendor, in_every_block, is_named, is_part
from fairlead.wire.sizes import SHOWN_DIGITS

# 16 GPUs have 12,870 sets of 8: to try all of them would hold up the event loop.
_MAX_COMBINATIONS = 5_000
_FAR = 0


def choose(fitting: Sequence[NodeGpu], free: Sequence[NodeGpu], count: int) -> list[NodeGpu]:
    """Return `count` of the GPUs in `fitting`, which are among `free`. Needs count <=
    len(fitting)."""
    if count == len(fitting):
        return list(fitting)
    places = {gpu.uuid: at for at, gpu in enumerate(free)}
    pattern = ((_FAR,) * len(free),) * len(free)
    if any(gpu.near for gpu in free):
        pattern = tuple(tuple(nearness(one, other) for other in free) for one in free)
    chosen = _chosen(
        tuple(places[gpu.uuid] for gpu in fitting), pattern, tuple(g.memory for g in free), count
    )
    return [free[at] for at in chosen]


@lru_cache(maxsize=4096)
def _chosen(
    fitting: tuple[int, ...],
    pattern: tuple[tuple[int, ...], ...],
    memory: tuple[int, ...],
    count: int,
) -> tuple[int, ...]:
    """Return the chosen GPUs as positions among the free ones. Nodes of a fleet are alike, so the
    result is cached for all of them."""
    free = [
        NodeGpu(
            uuid=str(at),
            name="",
            memory=memory[at],
            near={str(other): near for other, near in enumerate(row)},
        )
        for at, row in enumerate(pattern)
    ]
    groups = list(_groups(free))
    candidates = _candidates([free[at] for at in fitting], count)
    best = min(candidates, key=lambda chosen: _cost(chosen, groups))
    return tuple(int(gpu.uuid) for gpu in best)


def nearness(one: NodeGpu, other: NodeGpu) -> int:
    """Return how near two GPUs are; greater is nearer."""
    return one.near.get(other.uuid, _FAR)


def _candidates(fitting: Sequence[NodeGpu], count: int) -> Iterator[tuple[NodeGpu, ...]]:
    """Yield all combinations; if they are too many, each GPU with its nearest ones."""
    if comb(len(fitting), count) <= _MAX_COMBINATIONS:
        yield from combinations(fitting, count)
        return
    for seed in fitting:
        others = [gpu for gpu in fitting if gpu is not seed]
        yield (seed, *sorted(others, key=_distance_from(seed))[: count - 1])


def _distance_from(seed: NodeGpu) -> Callable[[NodeGpu], int]:
    return lambda gpu: -nearness(seed, gpu)


def _cost(chosen: Sequence[NodeGpu], groups: Sequence[frozenset[str]]) -> tuple[int, int, int, int]:
    near = [nearness(one, other) for one, other in combinations(chosen, 2)]
    uuids = {gpu.uuid for gpu in chosen}
    left = sum(len(group - uuids) ** 2 for group in groups)
    return -min(near, default=0), -sum(near), -left, sum(gpu.memory for gpu in chosen)


def _groups(free: Sequence[NodeGpu]) -> Iterator[frozenset[str]]:
    """Yield, for each degree of nearness, the groups of GPUs that are at least that near."""
    for degree in sorted({nearness(one, other) for one, other in combinations(free, 2)}):
        groups: list[list[NodeGpu]] = []
        for gpu in free:
            near = [group for group in groups if any(nearness(gpu, o) >= degree for o in group)]
            joined = [other for group in near for other in group]
            groups = [group for group in groups if group not in near] + [[gpu, *joined]]
        yield from (frozenset(gpu.uuid for gpu in group) for group in groups)


OCCUPYING = frozenset({AllocationState.NOMINATED, AllocationState.HELD, AllocationState.ORPHANED})
MAX_STARTS = 8
"""A node with this many jobs starting gets no other job. Jobs that are placed together do not delay
each other: they would never fit otherwise."""
# Sums of cores such as 0.1 are not exact in floats.
_CPU_TOLERANCE = 1e-6
_MIN_CPU, _MIN_MEMORY = 0.1, 256 << 20
"""The least of what the user left out on a node that has little of it."""
_MIG_OF_NAMES = "MIG"
_NO_NAME = re.compile(r"[^A-Za-z0-9]+")
_OF_ANOTHER_KIND = 0.1
"""The weight of a GPU of another kind in a ratio: a node with such GPUs is nearer than one
without."""


class Shortfall(msgspec.Struct, frozen=True, kw_only=True):
    """One dimension that does not fit. `ratio`: how much of the need the node covers, 0 to 1."""

    lack: Lack
    ratio: float = 0.0


_NO_HOST_NETWORK = Shortfall(lack=LacksHostNetwork())
_NO_GATEWAYS = Shortfall(lack=LacksGateways())
_NO_INFINIBAND = Shortfall(lack=LacksInfiniband())
_OTHER_JOBS = Shortfall(lack=HasOtherJobs())


class Room(Amounts, frozen=True, kw_only=True):
    """The free capacity of a node."""

    node: Node
    gpus: tuple[NodeGpu, ...]
    """Healthy GPUs that no job holds."""
    starts: int
    """Jobs between their placement and their running container."""
    empty: bool
    own_starts: int = 0
    """Those of the run that is being placed together."""
    networks: int | None = None
    """How many more runs can have a network there; None: no limit."""
    networked: frozenset[str] = frozenset()
    """The runs that have one there, or will have it because they are nominated."""
    connected: frozenset[str] = frozenset()
    """Those of `networked` that need not wait for a network. While there are too few, because
    victims still have theirs, that is who holds an allocation and keeps it."""
    own_network: bool = False
    """The run that is being placed has one there."""
    ports: tuple[int, ...] = ()
    """The ports that jobs there hold, sorted; empty where each job has ports of its own."""

    @property
    def has_all_networks(self) -> bool:
        """Whether no further run can have a network there."""
        return self.networks is not None and self.networks < 1

    @property
    def lacks_network(self) -> bool:
        """Whether the run that is being placed cannot have one."""
        return self.has_all_networks and not self.own_network


def room(node: Node, allocations: Iterable[Allocation], starts: int = 0) -> Room:
    """Return what is left of the node besides these allocations on it."""
    taken = [a for a in allocations if a.node_id == node.id and a.state in OCCUPYING]
    capacity, foreign = node.capacity, node.quarantine
    if any(a.resources.whole_node for a in taken) or any(task.whole_node for task in foreign):
        return Room(node=node, gpus=(), starts=starts, empty=False)
    networked = connected = _networked(taken, node)
    if capacity.networks is not None and len(networked) > capacity.networks:
        # A run of victims alone gives its network back: one more of its jobs would keep it there.
        leaving = {one for a in taken if a.state is AllocationState.NOMINATED for one in a.victims}
        held = [a for a in taken if a.state is AllocationState.HELD and a.id not in leaving]
        connected = _networked(held, node)
    held_gpus = {uuid for allocation in taken for uuid in allocation.gpus}
    held_gpus |= {uuid for task in foreign for uuid in task.gpus}
    return Room(
        node=node,
        **left_of(capacity, *[a.resources for a in taken], *foreign),
        gpus=tuple(g for g in capacity.gpus if g.healthy and g.uuid not in held_gpus),
        starts=starts,
        empty=not taken and not foreign,
        networks=None if capacity.networks is None else capacity.networks - len(networked),
        networked=networked,
        connected=connected,
        ports=_held_ports(node, [a.resources for a in taken]),
    )


def _held_ports(node: Node, taken: Iterable[Resources]) -> tuple[int, ...]:
    if not node.capacity.shares_ports:
        return ()
    return tuple(sorted({one.port for one in taken if one.port is not None}))


def less(free: Room, taken: Resources, gpus: Collection[str]) -> Room:
    """Return the room with one more job, which has just been placed and takes this much."""
    starts = free.starts + 1
    if taken.whole_node:
        return msgspec.structs.replace(free, **NOTHING, gpus=(), starts=starts, empty=False)
    return msgspec.structs.replace(
        free,
        **left_of(free, taken),
        gpus=tuple(gpu for gpu in free.gpus if gpu.uuid not in gpus) if gpus else free.gpus,
        starts=starts,
        empty=False,
        ports=tuple(sorted((*free.ports, *_held_ports(free.node, [taken])))),
    )


def takes_less(need: Resources, capacity: NodeCapacity) -> bool:
    """Return whether the node has less than the least of an amount that the user left out."""
    return (Amount.CPU in need.unset and capacity.cpu < need.cpu) or (
        Amount.MEMORY in need.unset and capacity.memory < need.memory
    )


def _min_on(need: Resources, capacity: NodeCapacity) -> Resources:
    """Return the need on this node (docs/rules.md 6.2): an amount that nobody asked for refuses no
    small node. One that the user wrote, also for /dev/shm, stays."""
    cpu, memory = need.cpu, need.memory
    if Amount.CPU in need.unset:
        cpu = min(cpu, max(capacity.cpu, _MIN_CPU))
    if Amount.MEMORY in need.unset:
        written = 0 if Amount.SHM_SIZE in need.unset else need.shm_size or 0
        memory = min(memory, max(capacity.memory, written + _MIN_MEMORY))
    return msgspec.structs.replace(need, cpu=cpu, memory=memory)


def in_blocks(need: Resources, capacity: NodeCapacity) -> Resources:
    """Return what the job takes on this node, in whole blocks where it gives only those, counted as
    the shim does.

    Where no number of blocks is enough, it is the need itself. On a node with MIG instances,
    or with GPUs of another vendor, a block adds no GPU that was not asked for.
    """
    if takes_less(need, capacity):
        need = _min_on(need, capacity)
    count = capacity.blocks
    if count is None:
        return need
    cpu, memory, gpus = capacity.cpu / count, capacity.memory // count, len(capacity.gpus) // count
    asked = (need.cpu, cpu), (need.memory, memory), (need.gpu.count, gpus)
    number = max(
        count if need.whole_node else 1,
        *(
            ceil(size / share - _CPU_TOLERANCE) if share else count + 1
            for size, share in asked
            if size
        ),
    )
    if number > count:
        return need
    gpu = need.gpu
    parts = any(is_part(one.name, one.parent) for one in capacity.gpus)
    if in_every_block((one.vendor for one in capacity.gpus), parts, gpu.vendor):
        gpu = msgspec.structs.replace(gpu, count=number * gpus)
    return msgspec.structs.replace(
        need,
        cpu=number * cpu,
        memory=number * memory,
        gpu=gpu,
        whole_node=number == count,
    )


def shortfalls(need: Resources, free: Room) -> list[Shortfall]:
    """Return every dimension in which the job does not fit; empty when it fits."""
    total = free.node.capacity
    need = in_blocks(need, total)
    found = [
        *[
            _too_little(name, wanted, has, whole)
            for name, wanted, has, whole in zip(
                UNITS, amounts_in(need), amounts_in(free), amounts_in(total), strict=True
            )
            if wanted > has
        ],
        _gpus(need.gpu, free.gpus, total.gpus),
    ]
    if need.host_network and not total.host_network:
        found.append(_NO_HOST_NETWORK)
    if has_network(need, total) and free.lacks_network:
        # Below 0 where the node's limit was lowered after runs had got their networks.
        lack = LacksNetwork(free=max(free.networks or 0, 0), total=total.networks or 0)
        found.append(Shortfall(lack=lack))
    if need.port is not None and need.port in free.ports:
        found.append(Shortfall(lack=LacksPort(port=need.port)))
    if need.gateway and not total.gateways:
        found.append(_NO_GATEWAYS)
    if need.infiniband and not total.infiniband:
        found.append(_NO_INFINIBAND)
    if need.engine and total.engine_lacks:
        lacks = tuple(one for one in need.engine if one in total.engine_lacks)
        if lacks:
            found.append(Shortfall(lack=LacksAbilities(abilities=lacks, engine=total.engine)))
    found += [Shortfall(lack=one) for one in _not_allowed(need, total)]
    if need.whole_node and not free.empty:
        found.append(_OTHER_JOBS)
    if is_busy(free):
        found.append(Shortfall(lack=StartsTooMany(starting=free.starts)))
    return [one for one in found if one is not None]


def _not_allowed(need: Resources, total: NodeCapacity) -> Iterator[LacksPermission]:
    """Yield what the job needs and the node's operator does not allow, where its engine could."""
    wanted, allows = need.permissions, total.allows
    if wanted == NO_PERMISSIONS or allows is None:
        return
    if EngineAbility.VOLUMES in total.engine_lacks:
        return
    if wanted.privileged and not allows.privileged:
        what = "`privileged` or a capability of the host"
        yield LacksPermission(need=what, option="--allow-privileged")
    is_in_its_network = need.whole_node and total.host_network
    if wanted.raw_sockets and is_in_its_network and not allows.raw_sockets:
        yield LacksPermission(
            need="NET_RAW in the node's own network", option="--allow-raw-sockets"
        )
    for paths, is_device in ((wanted.host_paths, False), (wanted.devices, True)):
        for path in paths:
            if allowing_prefix(path, allows.volume_prefixes, is_device=is_device) is None:
                option = f"--volume-prefix {PurePosixPath(path).parent if is_device else path}"
                yield LacksPermission(need=f"{path} as a volume", option=option)


def is_busy(free: Room) -> bool:
    """Return whether so many jobs are starting there that others must wait."""
    return free.starts - free.own_starts >= MAX_STARTS


def could_ever_hold(need: Resources, node: Node) -> list[Shortfall]:
    """Return the `shortfalls` on the same node with nothing on it and all its GPUs healthy."""
    return shortfalls(need, room(as_new(node), ()))


def as_new(node: Node) -> Node:
    """Return the same node with nothing on it and no fault."""
    capacity = node.capacity
    gpus = tuple(msgspec.structs.replace(g, healthy=True, message=None) for g in capacity.gpus)
    return msgspec.structs.replace(
        node,
        status=NodeStatus.CONNECTED,
        draining=False,
        cordoned=False,
        unfit=None,
        quarantine=(),
        capacity=msgspec.structs.replace(capacity, gpus=gpus),
    )


def closest(need: Resources, rooms: Sequence[Room]) -> DoesNotFit:
    """Return the reason of a job that fits none of these rooms; there must be at least one."""
    lacking = [(free, shortfalls(need, free)) for free in rooms]
    free, short = min(
        lacking,
        key=lambda pair: (
            bool(could_ever_hold(need, pair[0].node)),
            *distance(pair[1], pair[0].node.name),
        ),
    )
    return DoesNotFit(node=free.node.name, lacks=tuple(one.lack for one in short))


def distance(short: Sequence[Shortfall], name: str) -> tuple[int, float, str]:
    """Return what sorts nodes of these names by how near a job is to fitting there."""
    return len(short), -sum(one.ratio for one in short), name


def has_network(need: Resources, capacity: NodeCapacity) -> bool:
    """Return whether the job is in a network of its run's own there, and not in the node's."""
    return not (need.whole_node and capacity.host_network)


def _networked(taken: Iterable[Allocation], node: Node) -> frozenset[str]:
    """Return the runs that have a network there, as far as their number matters."""
    if node.capacity.networks is None:
        return frozenset()
    known = (a.run_id for a in taken if has_network(a.resources, node.capacity))
    return frozenset((*known, *(task.run_id for task in node.quarantine)))


def _too_little(name: str, need: float, free: float, total: float) -> Shortfall | None:
    if UNITS[name] is Unit.CORES:
        return _cpu(need, free, total)
    if need <= free or need == 0:
        return None
    lack = LacksAmount(amount=name, need=int(need), free=int(max(free, 0)), total=int(total))
    return Shortfall(lack=lack, ratio=lack.free / need)


def _cpu(need: float, free: float, total: float) -> Shortfall | None:
    if need <= free + _CPU_TOLERANCE:
        return None
    free = max(free, 0.0)
    lack = LacksCpu(need=need, free=round(free, SHOWN_DIGITS), total=total)
    return Shortfall(lack=lack, ratio=free / need)


def _gpus(need: GpuNeed, free: Sequence[NodeGpu], total: Sequence[NodeGpu]) -> Shortfall | None:
    if need.count == 0:
        return None
    fitting = fitting_gpus(need, free)
    if len(fitting) >= need.count:
        return None
    others = min(len(free), need.count) - len(fitting)
    return Shortfall(
        lack=LacksGpus(
            need=need,
            free=len(fitting),
            total=len(fitting_gpus(need, total)),
            instance=_instance_left_out(need, total),
            other_vendor=_vendor_left_out(need, total),
        ),
        ratio=(len(fitting) + _OF_ANOTHER_KIND * max(others, 0)) / need.count,
    )


def _vendor_left_out(need: GpuNeed, total: Sequence[NodeGpu]) -> GpuVendor | None:
    """Return the vendor of the node's GPUs if the job may have none of them for it."""
    if any(gpu.vendor is need.vendor for gpu in total):
        return None
    return next((gpu.vendor for gpu in total), None)


def _instance_left_out(need: GpuNeed, total: Sequence[NodeGpu]) -> str | None:
    """Return the name of a MIG instance that the job must ask for by name; None: there is none."""
    if any(_MIG_OF_NAMES in name.upper() for name in need.names):
        return None
    name = next((gpu.name for gpu in total if is_part(gpu.name, gpu.parent)), None)
    if name is None:
        return None
    return _NO_NAME.sub("-", name[max(name.upper().find(_MIG_OF_NAMES), 0) :])


def fitting_gpus(need: GpuNeed, gpus: Sequence[NodeGpu]) -> list[NodeGpu]:
    """Return the GPUs of the requested kind, the smallest first, so that larger ones stay free."""
    least = _version(need.min_compute_capability)
    fitting = [
        gpu
        for gpu in gpus
        if gpu.vendor is need.vendor
        and is_named(gpu.name, gpu.parent, need.names)
        and gpu.memory >= need.min_memory
        and (least is None or (_version(gpu.compute_capability) or ()) >= least)
    ]
    return sorted(fitting, key=lambda gpu: gpu.memory)


def _version(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    return tuple(int(part) for part in text.split(".") if part.isdecimal())
