"""Which places outlive a switch.

An allocation survives iff its attempt ended `incarnation_changed` or was DONE and its place is
still held, its node is healthy and not draining, and no nomination lies on it. An attempt that
ended by itself loses its place. A finished rank's place stays held for as long as the gang lives,
so that a switch never has to compete for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from controller.lifecycle.draft import Draft
from controller.lifecycle.gangs.reading import is_held, is_reserved
from controller.lifecycle.model import Allocation, Attempt, Job, Run
from controller.lifecycle.reasons import Reason


def keeps_place(run: Run, attempt: Attempt) -> bool:
    """Whether the place of this ended attempt waits for its job's next one."""
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
    """The surviving allocations by job id; to be asked when all old attempts are final."""
    around = draft.surroundings
    found: dict[str, Allocation] = {}
    for job in draft.jobs:
        place = _kept_place(draft, job)
        if place is None or place.node_id in around.unusable_nodes:
            continue
        if place.id not in around.nominated | around.broken_places:
            found[job.id] = place
    return found


def may_survive(draft: Draft) -> bool:
    """Whether a place of the old incarnation is left in which the new one could begin."""
    return any(_kept_place(draft, job) is not None for job in draft.jobs)


def are_undecided(draft: Draft) -> bool:
    """A link that is just being made again decides soon whether a place survives."""
    nodes = draft.surroundings.undecided_nodes
    if not nodes:
        return False
    places = (_kept_place(draft, job) for job in draft.jobs)
    return any(place is not None and place.node_id in nodes for place in places)


def _kept_place(draft: Draft, job: Job) -> Allocation | None:
    if not job.attempts or job.abandoned or not keeps_place(draft.run, job.attempts[-1]):
        return None
    place = draft.allocation_of(job.attempts[-1])
    return place if place is not None and is_held(place) else None
