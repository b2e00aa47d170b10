"""Who owns what of the node after a crash, when records may be lost, damaged or out of date.

What runs is believed before what is written: a container first, then a task on its way, then an
allocation's own record. A GPU gets one owner or the loser is told why. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shim.engines.base import Found
from shim.records import Loaded, TaskRecord
from shim.schemas import AllocationInfo, TaskStatus


class Owners(msgspec.Struct, frozen=True, kw_only=True):
    """`restored` are those whose record must be written anew, `dropped` those to be deleted.

    `losers` maps a task that has no container, and no GPU any more, to the reason. `complaints`
    are for the node's operator.
    """

    held: dict[str, AllocationInfo]
    restored: tuple[AllocationInfo, ...]
    dropped: tuple[str, ...]
    losers: dict[str, str]
    complaints: tuple[str, ...]


def settle(
    records: Iterable[TaskRecord],
    containers: dict[str, Found],
    unexplained: Iterable[Found],
    kept: Loaded[AllocationInfo],
) -> Owners:
    known = tuple(records)
    claims = dict(kept.records)
    restored: dict[str, AllocationInfo] = {}
    for record in known:
        name = record.info.allocation_id
        claim = claims.get(name)
        if _lives(record):
            wrong = claim is None or (claim.run_id, claim.gpus) != (
                record.info.run_id,
                record.info.gpus,
            )
        else:
            wrong = claim is None and name in kept.damaged
        if wrong:
            claims[name] = restored[name] = claim_of(record)
    for found in unexplained:
        claim = _claim_of_container(found)
        claims.setdefault(claim.id, claim)
    complaints = [
        f"allocation {name}: its record is damaged and no task tells what it held"
        for name in kept.damaged
        if name not in claims
    ]
    return _without_conflicts(known, containers, claims, restored, complaints)


def claim_of(record: TaskRecord) -> AllocationInfo:
    """The allocation as its task tells it."""
    info, resources = record.info, record.request.resources
    return AllocationInfo(
        id=info.allocation_id,
        run_id=info.run_id,
        cpu=resources.cpu,
        memory=resources.memory,
        disk=resources.disk or 0,
        gpus=info.gpus,
        whole_node=resources.whole_node,
        task_ids=(info.id,),
    )


def allocation_of(found: Found) -> str:
    """The allocation that a container of ours says it belongs to, or a name of its own."""
    return found.allocation_id or f"container-{found.container_id[:12]}"


def is_of_container(allocation: AllocationInfo) -> bool:
    """It stands for a container that nobody explains, not for what somebody asked for."""
    return not allocation.task_ids and allocation.cpu == 0.0


def _claim_of_container(found: Found) -> AllocationInfo:
    return AllocationInfo(
        id=allocation_of(found), run_id=found.run_id, cpu=0.0, memory=0, disk=0, gpus=found.gpus
    )


def _without_conflicts(
    records: tuple[TaskRecord, ...],
    containers: dict[str, Found],
    claims: dict[str, AllocationInfo],
    restored: dict[str, AllocationInfo],
    complaints: list[str],
) -> Owners:
    running = {allocation_of(found) for found in containers.values()}
    live = {r.info.allocation_id: r.info.id for r in records if _lives(r)}
    held: dict[str, AllocationInfo] = {}
    owner: dict[str, str] = {}
    dropped: list[str] = []
    losers: dict[str, str] = {}
    ordered = sorted(claims.values(), key=lambda a: (a.id not in running, a.id not in live, a.id))
    for claim in ordered:
        rivals = sorted({owner[gpu] for gpu in claim.gpus if gpu in owner})
        if rivals:
            complaints.append(f"allocation {claim.id}: its GPUs belong to {', '.join(rivals)}")
        if rivals and claim.id not in running:
            dropped.append(claim.id)
            if claim.id in live:
                losers[live[claim.id]] = f"its GPUs belong to allocation {rivals[0]}"
            continue
        held[claim.id] = claim
        owner |= {gpu: claim.id for gpu in claim.gpus if gpu not in owner}
    return Owners(
        held=held,
        restored=tuple(claim for name, claim in restored.items() if name in held),
        dropped=tuple(dropped),
        losers=losers,
        complaints=tuple(complaints),
    )


def _lives(record: TaskRecord) -> bool:
    return record.info.status is not TaskStatus.TERMINATED
