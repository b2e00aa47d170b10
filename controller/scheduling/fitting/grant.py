"""A grant is what a job gets on its node: what its user asked for, and for the amounts that the
user left out what the allocation gives.

A job that holds its whole node gets all of the node's CPU and memory. A job with GPUs gets the
share of its GPUs: of the node, or of what is free when other jobs have taken more than their own.
Any other job gets the least that every job has. /dev/shm is as large as the memory, as which it
counts.

The grant is decided once, when the allocation is made, and is recorded with it; what is granted
never exceeds what is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor

from msgspec.structs import replace

from controller.lifecycle.model import Amount, NodeGpu, Resources
from controller.scheduling.fitting.fit import Room
from fairlead.model.answers import Amounts
from fairlead.wire.engine_abilities import EngineAbility

_MIB = 1 << 20
_STEPS_OF_A_CORE = 100


def granted(
    need: Resources, free: Room, gpus: Sequence[NodeGpu], *, least: bool = False
) -> Resources:
    """Return what the job gets in this room with these GPUs; the room must hold the need.

    `least`: amounts that the user left out stay the least that the job needs, because other jobs of
    its run need the rest.
    """
    cpu, memory = need.cpu, need.memory
    total = free.node.capacity
    if need.whole_node:
        max_cpu, max_memory = total.cpu, total.memory
    elif gpus and total.blocks is None and not least:
        of_node, of_free = _weight(gpus) / _weight(total.gpus), _weight(gpus) / _weight(free.gpus)
        max_cpu = min(total.cpu * of_node, free.cpu * of_free)
        max_memory = int(min(total.memory * of_node, free.memory * of_free))
        # Rounded down, else the shares of all GPUs together would exceed the node.
        max_cpu = floor(max_cpu * _STEPS_OF_A_CORE) / _STEPS_OF_A_CORE
        max_memory -= max_memory % _MIB
    else:
        max_cpu, max_memory = cpu, memory
    if Amount.CPU in need.unset:
        cpu = max(cpu, max_cpu)
    if Amount.MEMORY in need.unset:
        memory = max(memory, max_memory)
    shm_size = need.shm_size
    if Amount.SHM_SIZE in need.unset:
        # A plain process has its node's /dev/shm.
        shm_size = None if EngineAbility.OPTIONS in total.engine_lacks else memory
    return replace(need, cpu=cpu, memory=memory, shm_size=shm_size)


def asked_by(need: Resources) -> Amounts:
    """Return the amounts that the user wrote; None for one that was left out."""
    return Amounts(
        **{one.value: None if one in need.unset else getattr(need, one) for one in Amount}
    )


def granted_by(resources: Resources) -> Amounts:
    """Return the amounts of an allocation."""
    return Amounts(cpu=resources.cpu, memory=resources.memory, shm_size=resources.shm_size)


def asked_alike(one: Resources, other: Resources) -> bool:
    """Return whether two allocations were made for the same need, whatever their nodes gave."""
    return _asked(one) == _asked(other)


def _asked(resources: Resources) -> Resources:
    return replace(resources, **dict.fromkeys(map(str, resources.unset), 0))


def _weight(gpus: Sequence[NodeGpu]) -> float:
    """Return how much of a node's GPUs these are; instances of a GPU count by their memory."""
    return sum(gpu.memory for gpu in gpus) or len(gpus)
