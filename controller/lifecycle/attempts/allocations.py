"""The rules for allocations between attempts, and for nominations.

An allocation is released only when its shim has let go of it. If the shim removed it together with
the task, that is known at once. If it was kept beyond its task, it is `releasing` until the shim
confirms it (AllocationReleased), or orphaned when its node is gone.

A nomination keeps an allocation for a waiting attempt until the victims have left (docs/rules.md
6.6). It becomes the attempt's allocation when the attempt is `Placed`, and ends with the attempt.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from controller.lifecycle.draft import Draft
from controller.lifecycle.events import EventKind
from controller.lifecycle.membership.members import queues_as_a_whole
from controller.lifecycle.membership.ranks import is_gang_run, keeps_allocation
from controller.lifecycle.model import Allocation, Attempt, Job, Run, StartupOrder, Use
from controller.lifecycle.reports import NodeGone, Nominated, NominationEnded
from fairlead.model.reasons import Reason
from fairlead.model.statuses import (
    FINAL_ATTEMPT_STATUSES,
    FINAL_RUN_STATUSES,
    AllocationState,
    AttemptStatus,
    RunStatus,
)

OCCUPIED = frozenset({AllocationState.HELD, AllocationState.ORPHANED})


def is_kept(run: Run, attempt: Attempt) -> bool:
    """Return whether the allocation of this attempt, its job's last, is kept for the next attempt.

    Once this is false it never becomes true again. So the code that decides and the code that
    removes the task may ask at different times.

    With a `startup_order`, siblings do not keep theirs: the job that they wait for may need the
    space (3.3). A replica of a service queues as a whole, and keeps none either (8.14).
    """
    if run.status is RunStatus.TERMINATING or run.status in FINAL_RUN_STATUSES:
        return False
    if attempt.reason is Reason.SIBLING_FAILED:
        return run.policy.startup_order is StartupOrder.ANY and not queues_as_a_whole(run)
    return keeps_allocation(run, attempt)


def holders(jobs: list[Job] | tuple[Job, ...]) -> dict[str, Attempt]:
    """Return the last attempt that has, or had, each allocation, by the allocation's id."""
    return {
        attempt.allocation_id: attempt
        for job in jobs
        for attempt in job.attempts
        if attempt.allocation_id is not None
    }


def settle(draft: Draft) -> None:
    """Give back every allocation that is held, not needed, and not being given back yet."""
    for allocation, attempt in _idle(draft):
        if attempt.cleanup_unknown:
            continue
        if attempt.seen.allocation_released:
            draft.move_allocation(attempt, AllocationState.RELEASED, "cleanup confirmed")
        elif allocation.state is not AllocationState.HELD or allocation.releasing:
            continue
        elif not _stays(draft, allocation, attempt):
            draft.change_allocation(allocation, releasing=True)


def goes_with_its_task(draft: Draft, attempt: Attempt) -> bool:
    """Return whether the shim drops the attempt's allocation together with its task.

    It does for the attempt that took the allocation, not for a successor that took it over.
    """
    allocation = draft.allocation_of(attempt)
    return allocation is None or not allocation.taken_over


def free_orphaned(draft: Draft, attempt: Attempt, cause: str) -> None:
    """Free the allocation of an attempt whose end is now known.

    An allocation that was taken over is only marked `releasing`: the shim must confirm its release.
    """
    allocation = draft.allocation_of(attempt)
    if attempt.seen.allocation_released or goes_with_its_task(draft, attempt):
        draft.move_allocation(attempt, AllocationState.RELEASED, cause)
    elif allocation is not None:
        draft.change_allocation(allocation, releasing=True)


def released_by_shim(draft: Draft, allocation_id: str) -> None:
    """Release an allocation that the shim no longer holds."""
    for allocation, attempt in _idle(draft):
        if allocation.id == allocation_id and allocation.releasing:
            draft.move_allocation(attempt, AllocationState.RELEASED, "AllocationReleased")


def lose(draft: Draft, report: NodeGone) -> None:
    """Handle the allocations on a lost node that outlived their tasks.

    They become orphaned, because the shim may come back with them. If the node was removed, they
    are released.
    """
    for allocation, attempt in _idle(draft):
        if (
            allocation.node_id != report.node_id
            or attempt.cleanup_unknown
            or attempt.seen.allocation_released
        ):
            continue
        if report.removed:
            draft.move_allocation(attempt, AllocationState.RELEASED, "NodeGone")
        elif allocation.state is AllocationState.HELD:
            draft.change_allocation(allocation, releasing=True)
            draft.move_allocation(attempt, AllocationState.ORPHANED, "NodeGone")


def hold_declared_ports(draft: Draft) -> None:
    """Let occupied allocations of an earlier version, which recorded none, hold the port that their
    job declares."""
    ports = {job.id: job.spec.serves.port for job in draft.jobs if job.spec.serves is not None}
    for allocation in draft.allocations() if ports else ():
        port, resources = ports.get(allocation.job_id), allocation.resources
        if port is not None and resources.port is None and allocation.state in OCCUPIED:
            draft.change_allocation(allocation, resources=replace(resources, port=port))


def all_given_back(draft: Draft) -> bool:
    """Return whether no allocation is held: what is left belongs to lost nodes."""
    return all(allocation.state is not AllocationState.HELD for allocation in draft.allocations())


def _idle(draft: Draft) -> Iterator[tuple[Allocation, Attempt]]:
    """Yield the occupied allocations that no live attempt has, each with its last attempt."""
    occupied = [allocation for allocation in draft.allocations() if allocation.state in OCCUPIED]
    if not occupied:
        return
    last = holders(draft.jobs)
    for allocation in occupied:
        attempt = last.get(allocation.id)
        if attempt is not None and attempt.status in FINAL_ATTEMPT_STATUSES:
            yield allocation, attempt


def _stays(draft: Draft, allocation: Allocation, attempt: Attempt) -> bool:
    """Return whether the allocation is kept for the job's next attempt.

    It is not kept on a draining node, which must become empty, or for a suspended run, which may
    stay suspended for any time.
    """
    if allocation.node_id in draft.context.draining_nodes or _needs_nothing_now(draft):
        return False
    return is_kept(draft.run, attempt) and _is_waited_for(draft, attempt)


def _needs_nothing_now(draft: Draft) -> bool:
    """Return whether the run is suspended and no job needs an allocation that is kept: the ranks of
    a gang that still runs need those of the ranks that have ended."""
    if not draft.run.suspended:
        return False
    return not is_gang_run(draft.run) or all(one.reason is not None for one in draft.live())


def _is_waited_for(draft: Draft, attempt: Attempt) -> bool:
    """Return whether the attempt is its job's last and the job may get another one."""
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
    allocation = report.allocation
    draft.add_allocation(allocation)
    attempt = draft.change_attempt(
        attempt, allocation_id=allocation.id, pending_reason=report.pending_reason
    )
    draft.record(EventKind.ALLOCATION, "Nominated", attempt=attempt, to_status=allocation.state)


def end_nomination(draft: Draft, report: NominationEnded) -> None:
    attempt = draft.attempt(report.attempt_id)
    if attempt is not None and attempt.status is AttemptStatus.SUBMITTED:
        give_up_nomination(draft, attempt, report.cause)


def settle_nominations(draft: Draft) -> None:
    """End the nominations of attempts that no longer wait."""
    for allocation in draft.allocations():
        if allocation.state is AllocationState.NOMINATED:
            job = draft.job(allocation.job_id)
            for attempt in () if job is None else job.attempts:
                if attempt.allocation_id == allocation.id and attempt.reason is not None:
                    draft.move_allocation(attempt, AllocationState.RELEASED, "the attempt ended")


def give_up_nomination(draft: Draft, attempt: Attempt, cause: str) -> Attempt:
    """End the attempt's nomination, if it has one; the attempt is in the queue again."""
    allocation = draft.allocation_of(attempt)
    if allocation is None or allocation.state is not AllocationState.NOMINATED:
        return attempt
    draft.move_allocation(attempt, AllocationState.RELEASED, cause)
    return draft.change_attempt(attempt, allocation_id=None)


def use_of(allocation: Allocation, user: str) -> Use:
    """Return what the user used with this allocation. A nominated allocation does not count yet:
    do not pass one."""
    return Use(
        user=user,
        gpus=len(allocation.gpus),
        cpu=allocation.resources.cpu,
        start=allocation.created_at,
        end=allocation.released_at,
    )
