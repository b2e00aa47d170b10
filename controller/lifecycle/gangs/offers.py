"""A gang gets its places whole, in one placement value, or not at all, whoever hands them in.

The scheduler plans so; the rule holds here all the same, since nothing later would mend half a gang
that holds places: it would wait for the rest of itself while others wait for its nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from controller.lifecycle.draft import Draft
from controller.lifecycle.gangs import reading
from controller.lifecycle.model import Attempt
from controller.lifecycle.reports import Nominated, Placed, Report
from controller.lifecycle.statuses import AttemptStatus

Offer = Placed | Nominated


def only_whole(draft: Draft, reports: Sequence[Report]) -> list[Report]:
    """The reports without those that would give places, or nominations, to a part of the ranks that
    wait or under two placement values, or a place to a reserved job before all ranks have one."""
    offers = [report for report in reports if isinstance(report, Offer)]
    if not offers or not reading.is_gang_run(draft.run):
        return list(reports)
    ranked = reading.ranked_attempts(draft.run, draft.jobs)
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
) -> str | None:
    if not offers:
        return None
    offered = {one.attempt_id for one in offers}
    if offered != waiting.keys():
        return f"places were found for {len(offered)} of {len(waiting)} ranks only"
    held = (draft.allocation_of(one) for one in ranked if one.id not in waiting)
    values = {place.placement for place in held if place is not None and reading.is_held(place)}
    values |= {one.allocation.placement for one in offers}
    if len(values) > 1:
        return f"its places lay in {len(values)} placement values"
    return None


def _tell(draft: Draft, waiting: Iterable[str], why: str) -> None:
    for attempt_id in waiting:
        attempt = draft.attempt(attempt_id)
        if attempt is not None:
            sentence = f"{why}: a gang is placed whole or not at all"
            draft.change_attempt(attempt, pending_reason=sentence)
