"""Places that are kept for a run since a switch of its gang freed them (docs/rules.md 5):
where its jobs go first, and which of them a new place of its uses up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from controller.lifecycle.model import Allocation, Node
from controller.lifecycle.reports import FreedPlaceLost
from controller.lifecycle.statuses import AllocationState
from controller.scheduling.fit import Room, room
from controller.scheduling.index import CapacityIndex, why_given_up
from controller.scheduling.queue import Member, Unit

TakenOn = Callable[[str], Sequence[Allocation]]
"""What occupies a node."""


def in_order_for(member: Member, unit: Unit) -> list[Allocation]:
    """Its own former place first."""
    return sorted(unit.freed, key=lambda place: place.job_id != member.job.id)


def used_up(
    index: CapacityIndex, unit: Unit, placed: Sequence[Allocation], taken_on: TakenOn
) -> dict[str, tuple[str, ...]]:
    """By the id of each new place of the unit the kept ones that it uses up: one of its size on its
    node, and what has no room beside it. The others stay kept until the gang is whole."""
    left = list(unit.freed)
    used: dict[str, tuple[str, ...]] = {}
    for place in placed:
        here = [one for one in left if one.node_id == place.node_id]
        alike = [one for one in here if one.resources == place.resources]
        for one in sorted(alike, key=lambda one: one.job_id != place.job_id)[:1]:
            left.remove(one)
            used[place.id] = (one.id,)
    new = {place.id for place in placed}
    for place in placed:
        held = [
            one
            for one in taken_on(place.node_id)
            if one.id in new or (one.state is not AllocationState.NOMINATED)
        ]
        for one in [one for one in left if one.node_id == place.node_id]:
            if not _has_room(index.nodes[place.node_id], [*held, one]):
                left.remove(one)
                used[place.id] = (*used.get(place.id, ()), one.id)
    return used


def _has_room(node: Node, places: Sequence[Allocation]) -> bool:
    if any(place.resources.whole_node for place in places):
        return len(places) == 1
    gpus = [uuid for place in places for uuid in place.gpus]
    return len(gpus) == len(set(gpus)) and not is_overdrawn(room(node, places))


def is_overdrawn(free: Room) -> bool:
    return free.cpu < -1e-6 or free.memory < 0 or free.disk < 0


def lost(index: CapacityIndex) -> Iterator[FreedPlaceLost]:
    """Those on nodes that take no work any more."""
    for place in index.nominations.values():
        cause = why_given_up(index.nodes.get(place.node_id)) if place.freed else None
        if cause is not None:
            yield FreedPlaceLost(run_id=place.run_id, allocation_id=place.id, cause=cause)
