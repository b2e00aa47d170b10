"""Survivors: which allocations outlive a switch, and which job then carries which rank.

An allocation survives if its attempt ended `incarnation_changed` or was DONE with the allocation
still held, its node is healthy and not draining, and no nomination lies on it (docs/rules.md 5.5).
A ranked job whose allocation survived keeps its rank. The other ranks go to reserved survivors, by
cookie (5.6).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controller.lifecycle.draft import Draft
from controller.lifecycle.membership.ranks import is_held, keeps_allocation
from controller.lifecycle.model import Allocation, Group, Job, Run


def survivors(draft: Draft) -> Mapping[str, Allocation]:
    """Return the surviving allocations by job id; call this when all old attempts are final."""
    context = draft.context
    found: dict[str, Allocation] = {}
    for job in draft.jobs:
        allocation = _kept_allocation(draft, job)
        if allocation is None or allocation.node_id in context.unusable_nodes:
            continue
        if allocation.id not in context.nominated | context.broken_allocations:
            found[job.id] = allocation
    return found


def may_survive(draft: Draft) -> bool:
    """Return whether an allocation of the old incarnation is left in which the new one could
    begin."""
    return any(_kept_allocation(draft, job) is not None for job in draft.jobs)


def are_undecided(draft: Draft) -> bool:
    """Return whether a link that is being made again will soon decide if an allocation survives."""
    nodes = draft.context.undecided_nodes
    if not nodes:
        return False
    kept = (_kept_allocation(draft, job) for job in draft.jobs)
    return any(allocation is not None and allocation.node_id in nodes for allocation in kept)


def _kept_allocation(draft: Draft, job: Job) -> Allocation | None:
    if not job.attempts or job.abandoned or not keeps_allocation(draft.run, job.attempts[-1]):
        return None
    allocation = draft.allocation_of(job.attempts[-1])
    return allocation if allocation is not None and is_held(allocation) else None


def assign(
    run: Run, jobs: Sequence[Job], surviving: Mapping[str, Allocation]
) -> dict[str, int | None]:
    """Return the new ranks by job id; `surviving` holds the allocations by job id."""
    ranks = {job.id: job.rank for job in jobs}
    value = _placement_value(run, jobs, surviving)
    for group in run.groups:
        if group.gang_size is not None:
            _promote(group, jobs, surviving, value, ranks)
    return ranks


def _placement_value(
    run: Run, jobs: Sequence[Job], surviving: Mapping[str, Allocation]
) -> str | None:
    """Return the placement value of the gang: that of its first surviving rank, else of its first
    reserved survivor."""
    order = {group.name: at for at, group in enumerate(run.groups)}
    alive = [job for job in jobs if job.id in surviving]
    if not alive:
        return None
    first = min(alive, key=lambda j: (j.rank is None, order.get(j.group, 0), j.rank or 0, j.index))
    return surviving[first.id].placement


def _promote(
    group: Group,
    jobs: Sequence[Job],
    surviving: Mapping[str, Allocation],
    value: str | None,
    ranks: dict[str, int | None],
) -> None:
    own = [job for job in jobs if job.group == group.name]
    lost = [j for j in own if j.rank is not None and j.id not in surviving and not j.abandoned]
    ready = [
        job
        for job in own
        if job.rank is None and job.id in surviving and surviving[job.id].placement == value
    ]
    lost.sort(key=lambda job: job.rank or 0)
    ready.sort(key=lambda job: job.cookie)
    for loser, heir in zip(lost, ready, strict=False):
        ranks[heir.id] = loser.rank
        ranks[loser.id] = None
