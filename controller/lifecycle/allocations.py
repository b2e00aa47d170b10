"""The rules for allocations between attempts, and for nominations.

An allocation is released only when its shim has let go of it. Where the task's removal took it
along that is known at once; one that was kept beyond its task is `releasing` until the shim says so
(PlaceReleased), or orphaned when its node is gone. A nomination keeps an allocation for a waiting
attempt until the victims have left (docs/rules.md 6.6); it becomes the attempt's allocation when
the attempt is `Placed`, and ends with the attempt.
"""

from __future__ import annotations

from collections.abc import Iterator

from controller.lifecycle.draft import Draft
from controller.lifecycle.events import EventKind
from controller.lifecycle.gangs.membership import keeps_place
from controller.lifecycle.gangs.queries import is_gang_run
from controller.lifecycle.model import Allocation, Attempt, Job, Run, Use
from controller.lifecycle.reasons import Reason
from controller.lifecycle.reports import NodeGone, Nominated, NominationEnded
from controller.lifecycle.statuses import (
    FINAL_ATTEMPT_STATUSES,
    FINAL_RUN_STATUSES,
    AllocationState,
    AttemptStatus,
    RunStatus,
)

OCCUPIED = frozenset({AllocationState.HELD, AllocationState.ORPHANED})


def is_kept(run: Run, attempt: Attempt) -> bool:
    """Whether the place of this attempt, its job's last, waits for the next one. It never becomes
    true again once it was false, so who removes the task and who decides may ask at different
    times."""
    if run.status is RunStatus.TERMINATING or run.status in FINAL_RUN_STATUSES:
        return False
    return attempt.reason is Reason.SIBLING_FAILED or keeps_place(run, attempt)


def holders(jobs: list[Job] | tuple[Job, ...]) -> dict[str, Attempt]:
    """The last attempt that has, or had, each allocation, by the allocation's id."""
    return {
        attempt.allocation_id: attempt
        for job in jobs
        for attempt in job.attempts
        if attempt.allocation_id is not None
    }


def settle(draft: Draft) -> None:
    """Give back what is held, not needed, and not being given back yet."""
    for place, attempt in _idle(draft):
        if attempt.cleanup_unknown:
            continue
        if attempt.place_released:
            draft.move_allocation(attempt, AllocationState.RELEASED, "cleanup confirmed")
        elif place.state is not AllocationState.HELD or place.releasing:
            continue
        elif not _stays(draft, place, attempt):
            draft.change_allocation(place, releasing=True)


def goes_with_its_task(draft: Draft, attempt: Attempt) -> bool:
    """Where the shim has nothing of the attempt, it has nothing of its place: true of the attempt
    that took it, not of one that took it over."""
    place = draft.allocation_of(attempt)
    return place is None or not place.taken_over


def free_orphaned(draft: Draft, attempt: Attempt, cause: str) -> None:
    """It is known now what became of the attempt; of a place that it took over the shim has to say
    so itself."""
    place = draft.allocation_of(attempt)
    if attempt.place_released or goes_with_its_task(draft, attempt):
        draft.move_allocation(attempt, AllocationState.RELEASED, cause)
    elif place is not None:
        draft.change_allocation(place, releasing=True)


def released_by_shim(draft: Draft, allocation_id: str) -> None:
    for place, attempt in _idle(draft):
        if place.id == allocation_id and place.releasing:
            draft.move_allocation(attempt, AllocationState.RELEASED, "PlaceReleased")


def lose(draft: Draft, report: NodeGone) -> None:
    """Of a node that is gone: the places that outlived their tasks. Its shim may come back with
    them, whatever became of what ran there."""
    for place, attempt in _idle(draft):
        if place.node_id != report.node_id or attempt.cleanup_unknown or attempt.place_released:
            continue
        if report.removed:
            draft.move_allocation(attempt, AllocationState.RELEASED, "NodeGone")
        elif place.state is AllocationState.HELD:
            draft.change_allocation(place, releasing=True)
            draft.move_allocation(attempt, AllocationState.ORPHANED, "NodeGone")


def all_given_back(draft: Draft) -> bool:
    """Nothing is occupied that a shim could still let go of."""
    return all(place.state is not AllocationState.HELD for place in draft.allocations())


def _idle(draft: Draft) -> Iterator[tuple[Allocation, Attempt]]:
    """The occupied places that no live attempt has, each with the last attempt that had it."""
    occupied = [place for place in draft.allocations() if place.state in OCCUPIED]
    if not occupied:
        return
    last = holders(draft.jobs)
    for place in occupied:
        attempt = last.get(place.id)
        if attempt is not None and attempt.status in FINAL_ATTEMPT_STATUSES:
            yield place, attempt


def _stays(draft: Draft, place: Allocation, attempt: Attempt) -> bool:
    """A node that drains is to become empty, and nobody knows when a suspended run goes on: no
    place is kept there, or for it."""
    if place.node_id in draft.context.draining_nodes or _lies_still(draft):
        return False
    return is_kept(draft.run, attempt) and _is_waited_for(draft, attempt)


def _lies_still(draft: Draft) -> bool:
    """Suspended, and no gang of it goes on for which a finished rank's place could be kept."""
    if not draft.run.suspended:
        return False
    return not is_gang_run(draft.run) or all(one.reason is not None for one in draft.live())


def _is_waited_for(draft: Draft, attempt: Attempt) -> bool:
    """It is its job's last, and the job may get another one."""
    return any(
        job.attempts and job.attempts[-1] is attempt and not job.abandoned for job in draft.jobs
    )


def nominate(draft: Draft, report: Nominated) -> None:
    attempt = draft.attempt(report.attempt_id)
    if attempt is None or attempt.status is not AttemptStatus.SUBMITTED:
        return
    if draft.run.suspended or draft.run.status is RunStatus.TERMINATING:
        return
    if attempt.allocation_id is not None:
        return
    place = report.allocation
    draft.add_allocation(place)
    attempt = draft.change_attempt(
        attempt, allocation_id=place.id, pending_reason=report.pending_reason
    )
    draft.note(EventKind.ALLOCATION, attempt, "Nominated", to_status=place.state)


def end_nomination(draft: Draft, report: NominationEnded) -> None:
    attempt = draft.attempt(report.attempt_id)
    if attempt is not None and attempt.status is AttemptStatus.SUBMITTED:
        give_up_nomination(draft, attempt, report.cause)


def settle_nominations(draft: Draft) -> None:
    """End the nominations of attempts that wait no longer."""
    for place in draft.allocations():
        if place.state is AllocationState.NOMINATED:
            job = draft.job(place.job_id)
            for attempt in () if job is None else job.attempts:
                if attempt.allocation_id == place.id and attempt.reason is not None:
                    draft.move_allocation(attempt, AllocationState.RELEASED, "the attempt ended")


def give_up_nomination(draft: Draft, attempt: Attempt, cause: str) -> Attempt:
    """The waiting attempt is in the queue again, if a place was kept for it."""
    place = draft.allocation_of(attempt)
    if place is None or place.state is not AllocationState.NOMINATED:
        return attempt
    draft.move_allocation(attempt, AllocationState.RELEASED, cause)
    return draft.change_attempt(attempt, allocation_id=None)


def use_of(place: Allocation, user: str) -> Use:
    """A nominated place counts for nobody yet: do not ask for it."""
    return Use(
        user=user,
        gpus=len(place.gpus),
        cpu=place.resources.cpu,
        start=place.created_at,
        end=place.released_at,
    )
