"""Membership decides which allocations survive a switch, and which job carries which rank.

An allocation survives if its attempt ended `incarnation_changed` or was DONE with the allocation
still held, its node is healthy and not draining, and no nomination lies on it (docs/rules.md 5.5).
A ranked job whose allocation survived keeps its rank. The other ranks go to reserved survivors, by
cookie (5.6). A gang gets all its allocations, in one placement value, or none (5.1): the scheduler
plans so, and this module checks it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from controller.lifecycle.draft import Draft
from controller.lifecycle.gangs import queries
from controller.lifecycle.gangs.queries import is_held, is_reserved
from controller.lifecycle.model import Allocation, Attempt, Group, Job, Run
from controller.lifecycle.pending_reasons import GangApart, GangInPart, PendingReason
from controller.lifecycle.reasons import Reason
from controller.lifecycle.reports import Nominated, Placed, Report
from controller.lifecycle.statuses import AttemptStatus


def keeps_allocation(run: Run, attempt: Attempt) -> bool:
    """Return whether the allocation of this ended attempt is kept for its job's next one."""
    own, now = attempt.incarnation, run.incarnation
    if own is None or now is None or attempt.occurrence != run.occurrence:
        return False
    if own.number == now.number:
        return attempt.reason is Reason.DONE_BY_RUNNER and not is_reserved(attempt)
    if own.number != now.number - 1 or (run.switches and run.switches[-1].whole):
        return False
    if attempt.reason is Reason.DONE_BY_RUNNER:
        return not is_reserved(attempt)
    return attempt.reason is Reason.INCARNATION_CHANGED


def survivors(draft: Draft) -> Mapping[str, Allocation]:
    """Return the surviving allocations by job id; call this when all old attempts are final."""
    around = draft.context
    found: dict[str, Allocation] = {}
    for job in draft.jobs:
        allocation = _kept_allocation(draft, job)
        if allocation is None or allocation.node_id in around.unusable_nodes:
            continue
        if allocation.id not in around.nominated | around.broken_allocations:
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
    places = (_kept_allocation(draft, job) for job in draft.jobs)
    return any(allocation is not None and allocation.node_id in nodes for allocation in places)


def _kept_allocation(draft: Draft, job: Job) -> Allocation | None:
    if not job.attempts or job.abandoned or not keeps_allocation(draft.run, job.attempts[-1]):
        return None
    place = draft.allocation_of(job.attempts[-1])
    return place if place is not None and is_held(place) else None


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


Offer = Placed | Nominated


def only_whole(draft: Draft, reports: Sequence[Report]) -> list[Report]:
    """Return the reports without offers that would break a gang's placement.

    Refused are allocations or nominations for only a part of the waiting ranks, or under two
    placement values, and an allocation for a reserved job before all ranks have one.
    """
    offers = [report for report in reports if isinstance(report, Offer)]
    if not offers or not queries.is_gang_run(draft.run):
        return list(reports)
    ranked = queries.ranked_attempts(draft.run, draft.jobs)
    waiting = {one.id: one for one in ranked if one.status is AttemptStatus.SUBMITTED}
    refused: set[str] = set()
    for kind in (Placed, Nominated):
        to_ranks = [one for one in offers if type(one) is kind and one.attempt_id in waiting]
        why = _why_refused(draft, to_ranks, waiting, ranked)
        if why is not None:
            refused |= {one.attempt_id for one in to_ranks}
            _tell(draft, waiting, why)
    given = {one.attempt_id for one in offers if type(one) is Placed} - refused
    if not given >= waiting.keys():
        refused |= {one.attempt_id for one in offers if one.attempt_id not in waiting}
    return [one for one in reports if not (isinstance(one, Offer) and one.attempt_id in refused)]


def _why_refused(
    draft: Draft, offers: Sequence[Offer], waiting: Mapping[str, Attempt], ranked: Iterable[Attempt]
) -> PendingReason | None:
    if not offers:
        return None
    offered = {one.attempt_id for one in offers}
    if offered != waiting.keys():
        return GangInPart(found=len(offered), waiting=len(waiting))
    held = (draft.allocation_of(one) for one in ranked if one.id not in waiting)
    values = {
        allocation.placement
        for allocation in held
        if allocation is not None and queries.is_held(allocation)
    }
    values |= {one.allocation.placement for one in offers}
    if len(values) > 1:
        return GangApart(values=len(values))
    return None


def _tell(draft: Draft, waiting: Iterable[str], why: PendingReason) -> None:
    for attempt_id in waiting:
        attempt = draft.attempt(attempt_id)
        if attempt is not None:
            draft.change_attempt(attempt, pending_reason=why)
