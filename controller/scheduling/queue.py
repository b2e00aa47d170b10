"""The queue: waiting jobs as units that are placed together, in the order of docs/rules.md 6.1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from controller.lifecycle.attempts import retry, startup
from controller.lifecycle.gangs import freed, incarnation
from controller.lifecycle.membership import members, ranks
from controller.lifecycle.membership.members import is_member, of_several
from controller.lifecycle.model import (
    Allocation,
    Attempt,
    Band,
    Constraint,
    Job,
    Operator,
    Run,
    RunState,
)
from controller.lifecycle.runs import schedules
from controller.scheduling.fair_share import UseMeter
from controller.scheduling.fitting.capacity import Need, Needs
from fairlead.model.reasons import ROWS, Budget, Reason, ReasonClass
from fairlead.model.statuses import FINAL_RUN_STATUSES, AllocationState, AttemptStatus, RunStatus

_MAX_PASSED_OVER = 8
"""The number of nodes that one job avoids."""
BANDS = {Band.PRODUCTION: 0, Band.INTERACTIVE: 1, Band.BATCH: 2}


class Kind(IntEnum):
    """The way in which the members of a unit are placed."""

    TOGETHER = 0
    """All or nothing, in one placement value."""
    SOLO = 1
    RESERVED = 2
    """A gang's job without a rank: placed on its own, after all ranked jobs have allocations."""


class Member(msgspec.Struct, frozen=True, gc=False):
    """A SUBMITTED attempt that waits for an allocation, or one whose successor will."""

    job: Job
    attempt: Attempt
    need: Need


class Unit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Jobs of one run that are placed together.

    `anchors`: allocations of the run's other such jobs, whose placement value this unit must share.
    `nominated`: allocations nominated for its members. `later`: jobs that wait for their turn
    (`startup_order`) and must then go to the same placement value. `reserved`: the gang's reserved
    jobs, which must go there too and may find no room. `starting`: how many jobs of the run are
    starting on each node. `freed`: allocations that a switch freed and that are kept for the run.
    `comes_back`: it does not wait yet; its attempts still stop, or wait for their retry.
    """

    run: Run
    kind: Kind
    members: tuple[Member, ...]
    anchors: tuple[Allocation, ...] = ()
    nominated: tuple[Allocation, ...] = ()
    gang: bool = False
    later: tuple[Member, ...] = ()
    reserved: tuple[Member, ...] = ()
    starting: tuple[tuple[str, int], ...] = ()
    freed: tuple[Allocation, ...] = ()
    comes_back: bool = False

    @property
    def band(self) -> int:
        return BANDS[self.run.policy.band]

    @property
    def is_replacement(self) -> bool:
        """Whether it makes a gang whole again whose other allocations are held."""
        return self.gang and self.kind is Kind.TOGETHER and bool(self.anchors)

    @property
    def view(self) -> tuple[object, ...]:
        """The part of the capacity that only this unit sees; units with equal views get equal
        results."""
        return (self.starting, tuple(allocation.id for allocation in self.freed))


def is_placeable(run: Run) -> bool:
    ending = run.status is RunStatus.TERMINATING or run.status in FINAL_RUN_STATUSES
    return not ending and not run.suspended


def waiting_units(state: RunState, needs: Needs) -> tuple[Unit, ...]:
    """Return all waiting units of this run, a gang's ranked jobs before its reserved ones."""
    submitted = [
        member_of(state, job, needs)
        for job in state.jobs
        if job.attempts
        and job.attempts[-1].status is AttemptStatus.SUBMITTED
        and job.attempts[-1].carrier is None
    ]
    waiting = {
        member.attempt.id: member
        for member in submitted
        if startup.may_take_allocation(state.run, state.jobs, member.attempt)
    }
    if not waiting or not is_placeable(state.run):
        return ()
    if ranks.is_gang_run(state.run):
        return tuple(_of_gang(state, waiting))
    if members.queues_as_a_whole(state.run):
        return tuple(_of_replicas(state, waiting))
    every = tuple(waiting.values())
    if state.run.policy.same_placement and len(state.jobs) > 1:
        together = _unit(state, Kind.TOGETHER, every, tuple(_held_allocations(state)))
        later = tuple(one for one in submitted if one.attempt.id not in waiting)
        return (replace(together, later=later),)
    return tuple(_unit(state, Kind.SOLO, (member,)) for member in every)


def returning_units(state: RunState, needs: Needs) -> tuple[Unit, ...]:
    """Return the jobs that lost a spot machine and come back, as if they waited already: a machine
    is ordered while they still stop. Jobs that are placed together come back with others; for
    gangs, see `renting.coming_back`."""
    lost = [job for job in state.jobs if _has_lost_a_machine(job)]
    run = state.run
    together = ranks.is_gang_run(run) or members.queues_as_a_whole(run) or run.policy.same_placement
    # An occurrence that is over leaves jobs behind that no retry brings back.
    if not lost or together or not is_placeable(run) or schedules.waits_for_trigger(run):
        return ()
    every = (job for job in lost if retry.verdict(run, job) is retry.Verdict.RETRY)
    units = (_unit(state, Kind.SOLO, (member_of(state, job, needs),)) for job in every)
    return tuple(replace(one, comes_back=True) for one in units)


def recalled_attempts(state: RunState) -> tuple[Attempt, ...]:
    """Return the attempts that stop because their provider takes their machine back."""
    lasts = (job.attempts[-1] for job in state.jobs if job.attempts)
    return tuple(
        last
        for last in lasts
        if last.reason is Reason.INTERRUPTED_BY_NO_CAPACITY
        and last.status is AttemptStatus.TERMINATING
    )


def is_gang_between(state: RunState) -> bool:
    """Return whether the run has a gang that stops, or has stopped, and will wait again."""
    return is_placeable(state.run) and incarnation.is_between(state.run, state.jobs)


def _has_lost_a_machine(job: Job) -> bool:
    if job.scaled_down or not job.attempts:
        return False
    last = job.attempts[-1]
    return last.reason is Reason.INTERRUPTED_BY_NO_CAPACITY and last.carrier is None


def member_of(state: RunState, job: Job, needs: Needs) -> Member:
    """Return the job with its latest attempt."""
    need = needs.of(
        job.spec,
        (*job.spec.rent.constraints(), *_rather_elsewhere(job)),
        host_network=_is_reached_by_peers(state, job),
        gateway=_is_reached_by_gateway(state, job),
        port=None if job.spec.serves is None else job.spec.serves.port,
    )
    return Member(job, job.attempts[-1], need)


def _is_reached_by_peers(state: RunState, job: Job) -> bool:
    """Return whether peers reach the job at its node's address; a job that shares its node is not
    reached."""
    together = ranks.is_gang_run(state.run) or state.run.policy.same_placement
    together = together or is_member(state.run, job)
    return together and len(state.jobs) > 1 and job.spec.resources.whole_node


def _is_reached_by_gateway(state: RunState, job: Job) -> bool:
    service = state.run.service
    return service is not None and service.gateway is not None and job.spec.serves is not None


def _rather_elsewhere(job: Job) -> Iterator[Constraint]:
    """Yield preferences against the nodes on which the job's last attempts failed to begin.

    The next attempt goes elsewhere, unless no other node has room.
    """
    last = job.attempts[-1]
    names: dict[str, None] = {}
    for attempt in reversed(job.attempts[:-1]):
        if attempt.occurrence != last.occurrence or not _was_not_begun(attempt):
            break
        names[attempt.node_name or ""] = None
    for name in sorted(list(names)[:_MAX_PASSED_OVER]):
        yield Constraint(attribute="node", operator=Operator.NE, values=(name,), required=False)


def _was_not_begun(attempt: Attempt) -> bool:
    """Return whether the attempt ended before it began, through a fault of its node."""
    if attempt.node_id is None or attempt.running_at is not None or attempt.reason is None:
        return False
    row = ROWS[attempt.reason]
    return row.reason_class is ReasonClass.FAILURE and row.budget is Budget.PREEMPTION


def _of_gang(state: RunState, waiting: dict[str, Member]) -> Iterator[Unit]:
    anchors = tuple(ranks.anchors(state))
    ranked = tuple(waiting[a.id] for a in ranks.waiting_ranked(state) if a.id in waiting)
    reserved = tuple(waiting[a.id] for a in ranks.waiting_reserved(state) if a.id in waiting)
    if ranked:
        together = _unit(state, Kind.TOGETHER, ranked, anchors, gang=True)
        yield replace(together, reserved=reserved)
    for member in reserved:
        yield _unit(state, Kind.RESERVED, (member,), anchors, gang=True)


def _of_replicas(state: RunState, waiting: dict[str, Member]) -> Iterator[Unit]:
    """Yield each waiting replica; one of several nodes is placed as a whole."""
    for member in waiting.values():
        if not is_member(state.run, member.job):
            yield _unit(state, Kind.SOLO, (member,))
    for jobs in of_several(state.run, state.jobs):
        lasts = [job.attempts[-1] for job in jobs if job.attempts]
        together = tuple(waiting[last.id] for last in lasts if last.id in waiting)
        ids = {last.allocation_id for last in lasts}
        if together:
            held = (one for one in state.allocations if one.id in ids)
            anchors = tuple(one for one in held if ranks.is_held(one))
            yield _unit(state, Kind.TOGETHER, together, anchors)


def is_starting(attempt: Attempt) -> bool:
    """Return whether its container is still being built.

    A job that only waits for its turn, or for its gang, does not count: it must not keep the jobs
    that it waits for off the node.
    """
    building = attempt.status in (AttemptStatus.PROVISIONING, AttemptStatus.PULLING)
    return building and not attempt.seen.container_started


def _starting(state: RunState) -> tuple[tuple[str, int], ...]:
    lasts = (job.attempts[-1] for job in state.jobs if job.attempts)
    return tuple(Counter(a.node_id for a in lasts if a.node_id and is_starting(a)).items())


def _held_allocations(state: RunState) -> Iterator[Allocation]:
    live = {job.attempts[-1].allocation_id for job in state.jobs if job.attempts}
    return (a for a in state.allocations if a.id in live and ranks.is_held(a))


def _unit(
    state: RunState,
    kind: Kind,
    members: tuple[Member, ...],
    anchors: tuple[Allocation, ...] = (),
    gang: bool = False,
) -> Unit:
    wanted = {member.attempt.allocation_id for member in members} - {None}
    nominated = tuple(
        a
        for a in (state.allocations if wanted else ())
        if a.id in wanted and a.state is AllocationState.NOMINATED
    )
    return Unit(
        run=state.run,
        kind=kind,
        members=members,
        anchors=anchors,
        nominated=nominated,
        gang=gang,
        starting=_starting(state) if kind is Kind.TOGETHER else (),
        freed=tuple(freed.kept(state.allocations)) if gang else (),
    )


Order: TypeAlias = tuple[bool, int, tuple[int, int], int, bool, float, str, int, int]


def in_order(units: Iterable[Unit], use: UseMeter, now: float) -> list[Unit]:
    """Sort the units, the first to place first. The order is total: no two units are equal in
    it."""
    used: dict[str, tuple[int, int]] = {}

    def key(unit: Unit) -> Order:
        user = unit.run.user
        if user not in used:
            used[user] = use.used(user, now)
        return (
            not unit.is_replacement,
            unit.band,
            used[user],
            -unit.run.policy.priority,
            not unit.gang,
            unit.run.submitted_at,
            unit.run.id,
            unit.kind,
            unit.members[0].job.index,
        )

    return sorted(units, key=key)
