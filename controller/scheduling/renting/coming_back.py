"""What will wait because its machine is lost, while its attempts still stop.

A single job comes back by itself. A gang comes back as it will be once its next incarnation has
begun: its spare jobs take over ranks first, and what survives is kept. So nothing is ordered that
it will not use.
"""

from __future__ import annotations

from msgspec.structs import replace

from controller.lifecycle.draft import DecisionContext
from controller.lifecycle.gangs import incarnation
from controller.lifecycle.model import Attempt, Job, NodeStatus, RunState
from controller.scheduling.index import CapacityIndex, keeps_its_allocations
from controller.scheduling.queue import Kind, Member, Unit, waiting_units
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AttemptStatus


def coming_back(index: CapacityIndex, now: float) -> list[Unit]:
    """Return the units, those of gangs with the attempts that will follow the present ones."""
    alone = [unit for units in index.returning.values() for unit in units]
    gangs = (_of_gang(index, state, now) for state in index.gangs_between.values())
    return [*alone, *(unit for unit in gangs if unit is not None)]


def stops_now(index: CapacityIndex, unit: Unit) -> bool:
    """Return whether its attempts still stop; else they wait for their retry."""
    if unit.kind is Kind.SOLO:
        return unit.members[0].attempt.status is AttemptStatus.TERMINATING
    state = index.states[unit.run.id]
    return incarnation.phase(state.run, state.jobs) is incarnation.Phase.STOPPING


def lost_where_it_was(index: CapacityIndex, member: Member) -> bool:
    """Return whether a switch had ended the job's attempt, and it would be back where it was if no
    recall had come meanwhile: that attempt does not end by the recall."""
    ended = (one for one in member.job.attempts[-2:] if one.reason is Reason.INCARNATION_CHANGED)
    return any(_is_taken_back(index, one) for one in ended)


def without_freed(index: CapacityIndex, unit: Unit) -> Unit | None:
    """Return the gang without the jobs for which a switch keeps the room that they had (5.5); None:
    that is all of them."""
    freed = {one.job_id for one in unit.freed if _may_keep(index, one.node_id)}
    members = tuple(one for one in unit.members if one.job.id not in freed)
    return replace(unit, members=members) if members else None


def _of_gang(index: CapacityIndex, state: RunState, now: float) -> Unit | None:
    """Return the ranks that will wait for room; None: none will, or no machine is lost."""
    if not any(_is_lost(index, job) for job in state.jobs):
        return None
    begun = incarnation.as_begun(state, now, _context(index, state))
    units = waiting_units(begun, index.needs)
    ranks = next((unit for unit in units if unit.kind is Kind.TOGETHER), None)
    if ranks is None:
        return None
    # A rank that failed left room on a node that stays: that is kept for the gang (5.5).
    freed = {job.id for job in state.jobs if _leaves_room(index, job)} if ranks.anchors else ()
    members = tuple(one for one in ranks.members if one.job.id not in freed)
    return replace(ranks, members=members, comes_back=True) if members else None


def _leaves_room(index: CapacityIndex, job: Job) -> bool:
    """Return whether the job may be placed again where it was."""
    node = index.nodes.get(job.attempts[-1].node_id or "") if job.attempts else None
    # The node of a machine that is gone is cordoned until its provider confirms that.
    return node is not None and not node.cordoned and _may_keep(index, node.id)


def _is_lost(index: CapacityIndex, job: Job) -> bool:
    """Return whether the job's machine is taken back, or is gone without notice."""
    if not job.attempts:
        return False
    last = job.attempts[-1]
    # A recall may find attempts that end already, with the switch after another one's end.
    return _is_taken_back(index, last) or last.reason in _LOST_MACHINE


_LOST_MACHINE = frozenset({Reason.INTERRUPTED_BY_NO_CAPACITY, Reason.INSTANCE_UNREACHABLE})


def _is_taken_back(index: CapacityIndex, attempt: Attempt) -> bool:
    node = index.nodes.get(attempt.node_id or "")
    return node is not None and node.draining and node.recalled_at is not None


def _context(index: CapacityIndex, state: RunState) -> DecisionContext:
    """Return what decides which allocations survive."""
    held = {one.node_id for one in state.allocations}
    return DecisionContext(
        unusable_nodes=frozenset(one for one in held if not _may_keep(index, one)),
        nominated=frozenset(one.id for one in state.allocations if one.id in index.nomination_on),
    )


def _may_keep(index: CapacityIndex, node_id: str) -> bool:
    """Return whether allocations survive on the node, or that is decided once it is reached."""
    node = index.nodes.get(node_id)
    return node is not None and keeps_its_allocations(replace(node, status=NodeStatus.CONNECTED))
