"""Offers: what the scheduler gives a gang, which gets all its allocations or none.

A gang's ranks are placed together, in one placement value (docs/rules.md 5.1). The scheduler plans
so, from the state that it had; this module checks it again for the state that the turn has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from controller.lifecycle.draft import Draft
from controller.lifecycle.membership import ranks
from controller.lifecycle.model import Attempt
from controller.lifecycle.pending_reasons import GangApart, GangInPart, PendingReason
from controller.lifecycle.reports import Nominated, Placed, Report
from fairlead.model.statuses import AttemptStatus

Offer = Placed | Nominated


def only_whole(draft: Draft, reports: Sequence[Report]) -> list[Report]:
    """Return the reports without offers that would break a gang's placement.

    Refused are allocations or nominations for only a part of the waiting ranks, or under two
    placement values, and an allocation for a reserved job before all ranks have one.
    """
    offers = [report for report in reports if isinstance(report, Offer)]
    if not offers or not ranks.is_gang_run(draft.run):
        return list(reports)
    ranked = ranks.ranked_attempts(draft.run, draft.jobs)
    waiting = {one.id: one for one in ranked if one.status is AttemptStatus.SUBMITTED}
    refused: set[str] = set()
    for kind in (Placed, Nominated):
        to_ranks = [one for one in offers if type(one) is kind and one.attempt_id in waiting]
        why = _why_refused(draft, to_ranks, waiting, ranked)
        if why is not None:
            refused |= {one.attempt_id for one in to_ranks}
            _note(draft, waiting, why)
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
        if allocation is not None and ranks.is_held(allocation)
    }
    values |= {one.allocation.placement for one in offers}
    if len(values) > 1:
        return GangApart(values=len(values))
    return None


def _note(draft: Draft, waiting: Iterable[str], why: PendingReason) -> None:
    for attempt_id in waiting:
        attempt = draft.attempt(attempt_id)
        if attempt is not None:
            draft.change_attempt(attempt, pending_reason=why)
