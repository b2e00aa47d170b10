"""What becomes of nominations: held when all their places are free, ended as a whole when one can
no longer be (LIFECYCLE.md section 6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from controller.lifecycle.model import Allocation, Node, NodeStatus
from controller.lifecycle.reports import NominationEnded, NotPlaced, Placed
from controller.lifecycle.statuses import AllocationState
from controller.scheduling.fit import room
from controller.scheduling.index import Index, why_given_up
from controller.scheduling.kept import is_overdrawn, used_up
from controller.scheduling.units import Unit


def waiting_for(victims: int) -> str:
    return f"waiting for {victims} victim{'' if victims == 1 else 's'} to leave"


def review(
    index: Index, unit: Unit, now: float
) -> list[Placed] | list[NominationEnded] | list[NotPlaced]:
    """For a unit with nominated places: what is to be told about each member; nothing when it waits
    as before."""
    broken = _broken(index, unit)
    if broken is not None:
        return list(_ended(unit, broken))
    left = _victims_left(index, unit)
    if left:
        return list(_told(unit, waiting_for(left)))
    nodes = [index.nodes[place.node_id] for place in unit.nominated]
    away = next((node for node in nodes if node.status is not NodeStatus.CONNECTED), None)
    if away is not None:
        return list(_told(unit, f"waiting for node {away.name} to be connected again"))
    if not all(_fits(index, node, unit.nominated) for node in nodes):
        return list(_ended(unit, "a nominated place no longer fits"))
    held = {
        place.id: replace(place, state=AllocationState.HELD, victims=(), created_at=now)
        for place in unit.nominated
    }
    used = used_up(index, unit, list(held.values()), lambda node_id: _beside(index, node_id, held))
    places = [(member, held[member.attempt.allocation_id or ""]) for member in unit.members]
    return [
        Placed(
            run_id=unit.run.id,
            attempt_id=member.attempt.id,
            allocation=place,
            instead_of=used.get(place.id, ()),
        )
        for member, place in places
    ]


def _beside(index: Index, node_id: str, held: Mapping[str, Allocation]) -> list[Allocation]:
    """What is on the node when these are held."""
    return [held.get(one.id, one) for one in index.taken.get(node_id, {}).values()]


def orphans(index: Index) -> Iterator[NominationEnded]:
    """Nominations of what no longer waits, its run being suspended."""
    for place in index.nominations.values():
        if place.run_id not in index.units:
            attempt = index.attempt_with(place)
            if attempt is not None:
                yield NominationEnded(
                    run_id=place.run_id, attempt_id=attempt.id, cause="the run no longer waits"
                )


def victims_of(index: Index, unit: Unit) -> set[str]:
    """The allocations that must still leave."""
    return {
        victim
        for place in unit.nominated
        for victim in place.victims
        if victim in index.taken.get(place.node_id, {})
    }


def _victims_left(index: Index, unit: Unit) -> int:
    return len(victims_of(index, unit))


def _broken(index: Index, unit: Unit) -> str | None:
    if len(unit.nominated) < len(unit.members):
        return "one of its places is gone"
    nodes = (index.nodes.get(place.node_id) for place in unit.nominated)
    return next((why for node in nodes if (why := why_given_up(node)) is not None), None)


def _fits(index: Index, node: Node, own: tuple[Allocation, ...]) -> bool:
    """Beside what is held there now; other nominations wait for their own victims."""
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
    ids = {place.id for place in unit.nominated}
    for member in unit.members:
        if member.attempt.allocation_id in ids:
            yield NominationEnded(run_id=unit.run.id, attempt_id=member.attempt.id, cause=cause)


def _told(unit: Unit, sentence: str) -> Iterator[NotPlaced]:
    for member in unit.members:
        if member.attempt.pending_reason != sentence:
            yield NotPlaced(
                run_id=unit.run.id, attempt_id=member.attempt.id, pending_reason=sentence
            )
