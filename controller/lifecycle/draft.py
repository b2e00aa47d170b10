"""A draft is one turn's working copy of a run, so that rules can be small functions.

A draft never changes the state it was made from. What no rule changed keeps its identity, so states
before and after can be compared with `is`. Every move goes through the tables of `statuses` and
leaves an event. `DecisionContext` holds what the decision needs to know besides the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from controller.lifecycle.events import Event, EventKind
from controller.lifecycle.model import Allocation, Attempt, Job, Run, RunState
from controller.lifecycle.predecessors import PredecessorFacts
from fairlead.model.reasons import RunReason
from fairlead.model.statuses import (
    FINAL_ATTEMPT_STATUSES,
    FINAL_RUN_STATUSES,
    AllocationState,
    AttemptStatus,
    RunStatus,
    move_allocation,
    move_attempt,
    move_run,
)


class DecisionContext(msgspec.Struct, frozen=True, kw_only=True):
    """The facts outside of the run that a decision needs."""

    unusable_nodes: frozenset[str] = frozenset()
    """Nodes that are not connected, draining, cordoned, unfit or unknown: no allocation there
    outlives its attempt."""
    draining_nodes: frozenset[str] = frozenset()
    """The unusable nodes that must become empty: no allocation there is kept."""
    drain_deadlines: Mapping[str, float] = {}
    """When the jobs on draining nodes end, by the nodes' ids; a drain without a deadline has
    none."""
    recalled: Mapping[str, float] = {}
    """When the providers of draining nodes take them back, by the nodes' ids."""
    undecided_nodes: frozenset[str] = frozenset()
    """Nodes of this run's allocations whose link is being made: it is not known yet whether they
    are usable."""
    silent_engines: frozenset[str] = frozenset()
    """The unusable nodes that are connected and whose engine does not answer."""
    broken_allocations: frozenset[str] = frozenset()
    """Allocations of this run that have a broken GPU."""
    nominated: frozenset[str] = frozenset()
    """Allocations of this run that another run has nominated."""
    next_trigger: float | None = None
    """When a cron expression of the run fires next after now; None: the run has none, or it never
    fires."""
    predecessors: Mapping[str, PredecessorFacts] = {}
    """What has become of the live runs that must come first, by their ids."""


EMPTY_CONTEXT: Final = DecisionContext()


class Draft:
    """One turn's working copy of a run: the rules read it and change it."""

    def __init__(
        self,
        state: RunState,
        now: float,
        new_id: Callable[[], str],
        jitter: Callable[[], float],
        context: DecisionContext = EMPTY_CONTEXT,
    ) -> None:
        self.now = now
        self.context = context
        self.new_id = new_id
        self.jitter = jitter
        self.run: Run = state.run
        self.jobs: list[Job] = list(state.jobs)
        self.sweep = state.sweep
        self.ended = state.ended
        self.events: list[Event] = []
        self._before = state
        self._allocations: dict[str, Allocation] = {a.id: a for a in state.allocations}
        self._positions: dict[str, tuple[int, int]] = {}
        for at, job in enumerate(state.jobs):
            for number, attempt in enumerate(job.attempts):
                self._positions[attempt.id] = (at, number)

    # -- reading ----------------------------------------------------------------------------

    @property
    def all_jobs(self) -> list[Job]:
        """The jobs, and those of a sweep's ended sets."""
        return [*self.ended.jobs, *self.jobs]

    @property
    def run_is_final(self) -> bool:
        return self.run.status in FINAL_RUN_STATUSES

    def attempt(self, attempt_id: str) -> Attempt | None:
        position = self._positions.get(attempt_id)
        if position is None:
            return None
        return self.jobs[position[0]].attempts[position[1]]

    def attempts_on(self, node_id: str) -> list[Attempt]:
        """Return all attempts that ever had an allocation on this node, final ones included."""
        return [a for job in self.jobs for a in job.attempts if a.node_id == node_id]

    def live(self) -> Iterator[Attempt]:
        """Yield the attempts that are not final, each in its state when the iterator reaches it."""
        for at in range(len(self.jobs)):
            attempts = self.jobs[at].attempts
            if attempts and attempts[-1].status not in FINAL_ATTEMPT_STATUSES:
                yield attempts[-1]

    def allocation_of(self, attempt: Attempt) -> Allocation | None:
        return self._allocations.get(attempt.allocation_id) if attempt.allocation_id else None

    def allocations(self) -> list[Allocation]:
        return list(self._allocations.values())

    def released_in_this_turn(self) -> list[Allocation]:
        """Return the allocations that were held when the turn began and are released now."""
        held = (one.id for one in self._before.allocations if one.state is AllocationState.HELD)
        now = (self._allocations[allocation_id] for allocation_id in held)
        return [one for one in now if one.state is AllocationState.RELEASED]

    def result(self) -> RunState:
        """Return the state after the turn; the same object as before when nothing changed."""
        before = self._before
        jobs = before.jobs
        same = len(self.jobs) == len(jobs)
        if not same or any(new is not old for new, old in zip(self.jobs, jobs, strict=True)):
            jobs = tuple(self.jobs)
        allocations = before.allocations
        if len(self._allocations) != len(allocations) or any(
            self._allocations[old.id] is not old for old in allocations
        ):
            allocations = tuple(self._allocations.values())
        changed = (
            before.run.version == 0  # it was never committed
            or self.run is not before.run
            or jobs is not before.jobs
            or allocations is not before.allocations
            or self.sweep is not before.sweep
            or self.ended is not before.ended
        )
        if not changed:
            return before
        run = replace(self.run, version=before.run.version + 1)
        return RunState(
            run=run, jobs=jobs, allocations=allocations, sweep=self.sweep, ended=self.ended
        )

    # -- changing ---------------------------------------------------------------------------

    def change_attempt(self, attempt: Attempt, **changes: Any) -> Attempt:
        """Change fields of an attempt. `attempt` must be the draft's current one; the result is the
        new one."""
        # Reports come at least once: a repeated one must give the same object, or it is committed
        # again.
        if all(getattr(attempt, name) == value for name, value in changes.items()):
            return attempt
        at, number = self._positions[attempt.id]
        changed = replace(attempt, **changes)
        job = self.jobs[at]
        attempts = (*job.attempts[:number], changed, *job.attempts[number + 1 :])
        self.jobs[at] = replace(job, attempts=attempts)
        return changed

    def move_attempt(
        self,
        attempt: Attempt,
        target: AttemptStatus,
        cause: str,
        **changes: Any,
    ) -> Attempt:
        status = move_attempt(attempt.status, target)
        changed = self.change_attempt(attempt, status=status, **changes)
        self.record(
            EventKind.ATTEMPT,
            cause,
            attempt=changed,
            from_status=attempt.status,
            to_status=status,
            reason=changed.reason,
            message=changed.message if status is AttemptStatus.TERMINATING else None,
        )
        return changed

    def add_attempt(self, job: Job, attempt: Attempt, cause: str) -> Attempt:
        at = self.jobs.index(job)
        self.jobs[at] = replace(job, attempts=(*job.attempts, attempt), retry_at=None)
        self._positions[attempt.id] = (at, len(job.attempts))
        self.record(EventKind.ATTEMPT, cause, attempt=attempt, to_status=attempt.status)
        return attempt

    def fresh_attempt(self, job: Job, cause: str) -> Attempt:
        """Add a new SUBMITTED attempt to this job, in the present occurrence and incarnation."""
        before = job.attempts[-1] if job.attempts else None
        starts = None if before is None else before.starts
        attempt = Attempt(
            id=self.new_id(),
            job_id=job.id,
            number=0 if before is None else before.number + 1,
            status=AttemptStatus.SUBMITTED,
            occurrence=self.run.occurrence,
            incarnation=self.run.incarnation,
            rank=job.rank,
            deployment=job.deployment,
            starts=None if starts is None else starts.for_next_attempt,
            submitted_at=self.now,
        )
        return self.add_attempt(job, attempt, cause)

    def add_job(self, job: Job) -> Job:
        """Add a job that the run did not have, or that had left its state."""
        self.jobs.append(job)
        for number, attempt in enumerate(job.attempts):
            self._positions[attempt.id] = (len(self.jobs) - 1, number)
        return job

    def job(self, job_id: str) -> Job | None:
        return next((job for job in self.jobs if job.id == job_id), None)

    def change_job(self, job: Job, **changes: Any) -> Job:
        """Change fields of a job. `job` must be the draft's current one; the result is the new
        one."""
        if all(getattr(job, name) == value for name, value in changes.items()):
            return job
        changed = replace(job, **changes)
        self.jobs[self.jobs.index(job)] = changed
        return changed

    def set_retry_at(self, job: Job, retry_at: float | None) -> Job:
        return self.change_job(job, retry_at=retry_at)

    def change_run(self, **changes: Any) -> None:
        if any(getattr(self.run, name) != value for name, value in changes.items()):
            self.run = replace(self.run, **changes)

    def move_run(
        self,
        target: RunStatus,
        cause: str,
        *,
        reason: RunReason | None = None,
        message: str | None = None,
    ) -> None:
        source = self.run.status
        status = move_run(source, target)
        self.change_run(
            status=status, reason=reason or self.run.reason, message=message or self.run.message
        )
        self.record(
            EventKind.RUN,
            cause,
            from_status=source,
            to_status=status,
            reason=self.run.reason,
            message=message,
        )

    def hold(self, attempt: Attempt, allocation: Allocation, cause: str) -> None:
        """Give this attempt a new held allocation, or hold its nominated one."""
        held = replace(allocation, state=AllocationState.HELD)
        before = self._allocations.get(held.id)
        if before is not None:
            move_allocation(before.state, held.state)
        self._allocations[held.id] = held
        self.record(
            EventKind.ALLOCATION,
            cause,
            attempt=attempt,
            from_status=None if before is None else before.state,
            to_status=held.state,
        )

    def add_allocation(self, allocation: Allocation) -> None:
        self._allocations[allocation.id] = allocation

    def take_over(self, attempt: Attempt, allocation: Allocation, cause: str) -> Attempt:
        """Give a SUBMITTED attempt an allocation that is held already."""
        allocation = self.change_allocation(allocation, taken_over=True)
        return self.provision(attempt, allocation, cause)

    def provision(
        self, attempt: Attempt, allocation: Allocation, cause: str, **changes: Any
    ) -> Attempt:
        """Let a SUBMITTED attempt begin with the allocation that the draft holds for it."""
        return self.move_attempt(
            attempt,
            AttemptStatus.PROVISIONING,
            cause,
            allocation_id=allocation.id,
            node_id=allocation.node_id,
            node_name=allocation.node_name,
            task=replace(attempt.task, gpus=allocation.gpus),
            pending_reason=None,
            renting=None,
            provisioned_at=self.now,
            **changes,
        )

    def change_allocation(self, allocation: Allocation, **changes: Any) -> Allocation:
        """Change fields of an allocation other than its state. `allocation` must be the draft's
        current one; the result is the new one."""
        if all(getattr(allocation, name) == value for name, value in changes.items()):
            return allocation
        self._allocations[allocation.id] = replace(allocation, **changes)
        return self._allocations[allocation.id]

    def move_allocation(self, attempt: Attempt, target: AllocationState, cause: str) -> None:
        """Move this attempt's allocation to `target`, if it has one in another state."""
        allocation = self.allocation_of(attempt)
        if allocation is None or allocation.state is target:
            return
        state = move_allocation(allocation.state, target)
        released_at = self.now if state is AllocationState.RELEASED else None
        self._allocations[allocation.id] = replace(allocation, state=state, released_at=released_at)
        self.record(
            EventKind.ALLOCATION,
            cause,
            attempt=attempt,
            from_status=allocation.state,
            to_status=state,
        )

    def end_nomination(self, allocation: Allocation, cause: str) -> None:
        """Release an allocation that is nominated for the run, not for an attempt."""
        state = move_allocation(allocation.state, AllocationState.RELEASED)
        self._allocations[allocation.id] = replace(allocation, state=state, released_at=self.now)
        self._note_of_allocation(allocation, cause, from_status=allocation.state, to_status=state)

    def nominate(self, allocation: Allocation, cause: str) -> None:
        """Keep an allocation for the run, not for an attempt."""
        self._allocations[allocation.id] = allocation
        self._note_of_allocation(allocation, cause, from_status=None, to_status=allocation.state)

    def _note_of_allocation(
        self, allocation: Allocation, cause: str, *, from_status: str | None, to_status: str
    ) -> None:
        self.record(
            EventKind.ALLOCATION,
            cause,
            job_id=allocation.job_id,
            from_status=from_status,
            to_status=to_status,
            message=f"on node {allocation.node_name or allocation.node_id}",
        )

    def record(
        self,
        kind: EventKind,
        cause: str,
        *,
        attempt: Attempt | None = None,
        job_id: str | None = None,
        at: float | None = None,
        from_status: str | None = None,
        to_status: str | None = None,
        reason: str | None = None,
        message: str | None = None,
    ) -> None:
        """Record an event of this attempt, of this job, or of the run. `at` None: now."""
        self.events.append(
            Event(
                run_id=self.run.id,
                job_id=job_id if attempt is None else attempt.job_id,
                attempt_id=None if attempt is None else attempt.id,
                at=self.now if at is None else at,
                kind=kind,
                from_status=from_status,
                to_status=to_status,
                reason=reason,
                message=message,
                cause=cause,
            )
        )
