"""Freed allocations are those that a switch of a gang has released and that stay nominated for it
(docs/rules.md 5.5).

This module decides which of them its jobs use first, and which of them a new allocation uses up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from controller.lifecycle.model import Allocation, Node
from controller.lifecycle.reports import FreedAllocationLost
from controller.scheduling.fitting.fit import Room, room
from controller.scheduling.fitting.grant import asked_alike
from controller.scheduling.index import CapacityIndex, why_given_up
from controller.scheduling.queue import Member, Unit
from fairlead.model.statuses import AllocationState
from fairlead.wire.amounts import amounts_in

TakenOn = Callable[[str], Sequence[Allocation]]
"""Returns the allocations that occupy a node."""


def in_order_for(member: Member, unit: Unit) -> list[Allocation]:
    """Return the freed allocations, the job's own former one first."""
    return sorted(unit.freed, key=lambda allocation: allocation.job_id != member.job.id)


def used_up(
    index: CapacityIndex, unit: Unit, placed: Sequence[Allocation], taken_on: TakenOn
) -> dict[str, tuple[str, ...]]:
    """Return the freed allocations that each new allocation of the unit uses up, by the new one's
    id.

    A new allocation uses up one of its size on its node, and those that have no room beside it. The
    others stay nominated until the gang is whole.
    """
    left = list(unit.freed)
    used: dict[str, tuple[str, ...]] = {}
    for allocation in placed:
        here = [one for one in left if one.node_id == allocation.node_id]
        alike = [one for one in here if asked_alike(one.resources, allocation.resources)]
        for one in sorted(alike, key=lambda one: one.job_id != allocation.job_id)[:1]:
            left.remove(one)
            used[allocation.id] = (one.id,)
    new = {allocation.id for allocation in placed}
    for allocation in placed:
        held = [
            one
            for one in taken_on(allocation.node_id)
            if one.id in new or (one.state is not AllocationState.NOMINATED)
        ]
        for one in [one for one in left if one.node_id == allocation.node_id]:
            if not _has_room(index.nodes[allocation.node_id], [*held, one]):
                left.remove(one)
                used[allocation.id] = (*used.get(allocation.id, ()), one.id)
    return used


def _has_room(node: Node, allocations: Sequence[Allocation]) -> bool:
    if any(allocation.resources.whole_node for allocation in allocations):
        return len(allocations) == 1
    gpus = [uuid for allocation in allocations for uuid in allocation.gpus]
    return len(gpus) == len(set(gpus)) and not is_overdrawn(room(node, allocations))


def is_overdrawn(free: Room) -> bool:
    networks = 0 if free.networks is None else free.networks
    # Sums of cores are not exact in floats.
    return any(amount < -1e-6 for amount in amounts_in(free)) or networks < 0


def lost(index: CapacityIndex) -> Iterator[FreedAllocationLost]:
    """Yield the freed allocations on nodes that take no more work."""
    for allocation in index.nominations.values():
        cause = why_given_up(index.nodes.get(allocation.node_id)) if allocation.freed else None
        if cause is not None:
            yield FreedAllocationLost(
                run_id=allocation.run_id, allocation_id=allocation.id, cause=cause
            )
