"""A switch's freed allocations stay nominated for its run until the gang is whole again or gives
up.

An attempt that ended by itself loses its allocation, and the gang's new attempts are made only when
the last survivor is gone. Meanwhile another run could take the room that the gang needs. So a
NOMINATED allocation follows the released one. It belongs to the run, not to an attempt. The
scheduler gives it to no other run, and reports when a new allocation uses it up or its node takes
no more work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from controller.lifecycle.draft import Draft
from controller.lifecycle.gangs import incarnation
from controller.lifecycle.gangs.incarnation import Phase, phase
from controller.lifecycle.gangs.survivors import may_survive
from controller.lifecycle.membership.ranks import is_gang_run
from controller.lifecycle.model import Allocation, Attempt
from fairlead.model.statuses import AllocationState


def kept(allocations: Iterable[Allocation]) -> list[Allocation]:
    """Return the allocations that a switch of their run freed and that are still nominated for
    it."""
    return [one for one in allocations if one.freed and one.state is AllocationState.NOMINATED]


def settle(draft: Draft) -> None:
    """Keep what this turn has freed, and end the nominations that nothing waits for. Call this last
    in a turn."""
    if not is_gang_run(draft.run):
        return
    if _is_waited_for(draft):
        _keep(draft)
        return
    for allocation in kept(draft.allocations()):
        draft.end_nomination(allocation, "the gang is whole or has given up")


def give_up(draft: Draft, allocation_id: str, cause: str) -> None:
    """End the nomination of this freed allocation."""
    for allocation in kept(draft.allocations()):
        if allocation.id == allocation_id:
            draft.end_nomination(allocation, cause)


def _is_waited_for(draft: Draft) -> bool:
    """Return whether the gang goes on in allocations of its own and is not whole yet.

    If no allocation survives, the gang queues whole, as any other gang, and nothing is kept for it.
    """
    run = draft.run
    if run.suspended or not run.switches or run.switches[-1].whole:
        return False
    match phase(run, draft.jobs):
        case Phase.STOPPING | Phase.WAITING:
            return may_survive(draft)
        case Phase.GATHERING:
            return incarnation.since(run, draft.jobs) is not None
        case _:
            return False


def _keep(draft: Draft) -> None:
    released = {allocation.id: allocation for allocation in draft.released_in_this_turn()}
    if not released:
        return
    context = draft.context
    for job in draft.jobs:
        allocation = _released_of_old_incarnation(draft, job.attempts, released)
        if allocation is None or job.abandoned:
            continue
        if (
            allocation.id not in context.nominated
            and allocation.node_id not in context.draining_nodes
        ):
            draft.nominate(_nomination(draft, allocation), "freed by a switch")


def _released_of_old_incarnation(
    draft: Draft, attempts: tuple[Attempt, ...], released: Mapping[str, Allocation]
) -> Allocation | None:
    """Return the last of the released allocations that the job had in the previous incarnation.

    The job may already have an attempt of the new one. It may also have had two in the previous
    one, of which the first gives its allocation back after the second has ended.
    """
    now = draft.run.incarnation
    for attempt in reversed(attempts):
        own = attempt.incarnation
        if own is None or now is None or attempt.occurrence != draft.run.occurrence:
            return None
        if own.number < now.number - 1:
            return None
        allocation = released.get(attempt.allocation_id or "")
        if own.number == now.number - 1 and allocation is not None:
            return allocation
    return None


def _nomination(draft: Draft, allocation: Allocation) -> Allocation:
    return replace(
        allocation,
        id=draft.new_id(),
        state=AllocationState.NOMINATED,
        created_at=draft.now,
        released_at=None,
        monitoring_descriptor=None,
        releasing=False,
        taken_over=False,
        victims=(allocation.id,),
        freed=True,
    )
