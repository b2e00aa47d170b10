"""Nominations keep allocations for a waiting unit until victims have left (docs/rules.md 6.6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from controller.lifecycle.attempts.allocations import is_kept
from controller.lifecycle.model import Allocation, Node, NodeStatus
from controller.lifecycle.pending_reasons import NominatedNodeSilent, PendingReason, VictimsLeave
from controller.lifecycle.reports import NominationEnded, NotPlaced, Placed
from controller.scheduling.fitting.fit import room
from controller.scheduling.freed_allocations import is_overdrawn, used_up
from controller.scheduling.index import CapacityIndex, why_given_up
from controller.scheduling.queue import Unit
from fairlead.model.statuses import AllocationState, AttemptStatus

NO_LONGER_FITS = "a nominated allocation no longer fits"


def review(
    index: CapacityIndex, unit: Unit, now: float
) -> list[Placed] | list[NominationEnded] | list[NotPlaced]:
    """Return the reports for the members of a unit with nominations; empty when it waits as
    before."""
    broken = _broken(index, unit)
    if broken is not None:
        return list(_ended(unit, broken))
    left = victims_of(index, unit)
    if left:
        return list(_not_placed(unit, VictimsLeave(count=len(left))))
    nodes = [index.nodes[allocation.node_id] for allocation in unit.nominated]
    away = next((node for node in nodes if node.status is not NodeStatus.CONNECTED), None)
    if away is not None:
        return list(_not_placed(unit, NominatedNodeSilent(node=away.name)))
    if not all(_fits(index, node, unit.nominated) for node in nodes):
        return list(_ended(unit, NO_LONGER_FITS))
    held = {
        allocation.id: replace(allocation, state=AllocationState.HELD, victims=(), created_at=now)
        for allocation in unit.nominated
    }
    used = used_up(index, unit, list(held.values()), lambda node_id: _beside(index, node_id, held))
    chosen = [(member, held[member.attempt.allocation_id or ""]) for member in unit.members]
    return [
        Placed(
            run_id=unit.run.id,
            attempt_id=member.attempt.id,
            allocation=allocation,
            instead_of=used.get(allocation.id, ()),
        )
        for member, allocation in chosen
    ]


def _beside(index: CapacityIndex, node_id: str, held: Mapping[str, Allocation]) -> list[Allocation]:
    """Return what is on the node when these allocations are held."""
    return [held.get(one.id, one) for one in index.taken.get(node_id, {}).values()]


def ended_nominations(index: CapacityIndex) -> Iterator[NominationEnded]:
    """Yield the end of nominations whose run no longer waits, because it is suspended."""
    for allocation in index.nominations.values():
        if allocation.run_id not in index.units:
            attempt = index.attempt_with(allocation)
            if attempt is not None:
                yield NominationEnded(
                    run_id=allocation.run_id, attempt_id=attempt.id, cause="the run no longer waits"
                )


def victims_of(index: CapacityIndex, unit: Unit) -> set[str]:
    """Return the allocations that must still leave: the unit's own victims. When they have left, it
    is what leaves beside them for another nomination or by itself, where the unit does not fit
    before."""
    own = {
        victim
        for allocation in unit.nominated
        for victim in allocation.victims
        if victim in index.taken.get(allocation.node_id, {})
    }
    if own:
        return own
    nodes = dict.fromkeys(allocation.node_id for allocation in unit.nominated)
    known = (index.nodes[node_id] for node_id in nodes if node_id in index.nodes)
    return {
        allocation_id
        for node in known
        if not _fits(index, node, unit.nominated)
        for allocation_id in _leaving(index, node.id)
    }


def _leaving(index: CapacityIndex, node_id: str) -> Iterator[str]:
    """Yield the allocations of the node that come free without a decision: they are being given
    back, or their jobs are ending and do not come back to them."""
    for allocation in index.taken.get(node_id, {}).values():
        if allocation.state is not AllocationState.HELD:
            continue
        attempt = index.attempt_with(allocation)
        is_over = (
            attempt is not None
            and attempt.status is AttemptStatus.TERMINATING
            and not is_kept(index.states[allocation.run_id].run, attempt)
        )
        if is_over or allocation.releasing:
            yield allocation.id


def _broken(index: CapacityIndex, unit: Unit) -> str | None:
    if len(unit.nominated) < len(unit.members):
        return "one of its nominations is gone"
    nodes = (index.nodes.get(allocation.node_id) for allocation in unit.nominated)
    return next((why for node in nodes if (why := why_given_up(node)) is not None), None)


def _fits(index: CapacityIndex, node: Node, own: tuple[Allocation, ...]) -> bool:
    """Return whether the unit fits beside what is held there now. Other nominations wait for their
    own victims."""
    there = index.taken.get(node.id, {}).values()
    held = [a for a in there if a.state is not AllocationState.NOMINATED]
    mine = [a for a in own if a.node_id == node.id]
    free = room(node, held)
    if any(a.resources.whole_node for a in mine):
        return not held and {g.uuid for g in free.gpus} >= {u for a in mine for u in a.gpus}
    rest = room(node, (*held, *mine))
    has_gpus = {gpu.uuid for gpu in free.gpus} >= {uuid for a in mine for uuid in a.gpus}
    return has_gpus and not is_overdrawn(rest)


def _ended(unit: Unit, cause: str) -> Iterator[NominationEnded]:
    ids = {allocation.id for allocation in unit.nominated}
    for member in unit.members:
        if member.attempt.allocation_id in ids:
            yield NominationEnded(run_id=unit.run.id, attempt_id=member.attempt.id, cause=cause)


def _not_placed(unit: Unit, why: PendingReason) -> Iterator[NotPlaced]:
    for member in unit.members:
        if member.attempt.pending_reason != why:
            yield NotPlaced(run_id=unit.run.id, attempt_id=member.attempt.id, pending_reason=why)
