"""The state machines as data: which status may follow which, and nothing about when.

A pair that is not in a table raises IllegalMove, so the first test that meets a forgotten case
finds it. The pages under docs/lifecycle are generated from these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class AttemptStatus(StrEnum):
    SUBMITTED = "submitted"
    PROVISIONING = "provisioning"
    PULLING = "pulling"
    RUNNING = "running"
    TERMINATING = "terminating"
    DONE = "done"
    FAILED = "failed"
    TERMINATED = "terminated"
    ABORTED = "aborted"


class RunStatus(StrEnum):
    PENDING = "pending"
    SUBMITTED = "submitted"
    PROVISIONING = "provisioning"
    RUNNING = "running"
    TERMINATING = "terminating"
    TERMINATED = "terminated"
    FAILED = "failed"
    DONE = "done"


class IrisState(StrEnum):
    """The states that Iris gives a task, or one attempt of it."""

    PENDING = "pending"
    ASSIGNED = "assigned"
    BUILDING = "building"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    KILLED = "killed"
    UNSCHEDULABLE = "unschedulable"
    WORKER_FAILED = "worker_failed"
    PREEMPTED = "preempted"


class AllocationState(StrEnum):
    NOMINATED = "nominated"
    HELD = "held"
    RELEASED = "released"
    ORPHANED = "orphaned"


FINAL_ATTEMPT_STATUSES = frozenset(
    {
        AttemptStatus.DONE,
        AttemptStatus.FAILED,
        AttemptStatus.TERMINATED,
        AttemptStatus.ABORTED,
    }
)

STATES: Mapping[AttemptStatus, IrisState] = {
    AttemptStatus.SUBMITTED: IrisState.PENDING,
    AttemptStatus.PROVISIONING: IrisState.ASSIGNED,
    AttemptStatus.PULLING: IrisState.BUILDING,
    AttemptStatus.RUNNING: IrisState.RUNNING,
}
"""The state of an attempt without a reason; with a reason, the reason decides
(`reasons.state_of`)."""

FINAL_RUN_STATUSES = frozenset({RunStatus.TERMINATED, RunStatus.FAILED, RunStatus.DONE})

ATTEMPT_MOVES: Mapping[AttemptStatus, frozenset[AttemptStatus]] = {
    # To RUNNING: in the container of another job of its sweep.
    AttemptStatus.SUBMITTED: frozenset(
        {AttemptStatus.PROVISIONING, AttemptStatus.RUNNING, AttemptStatus.TERMINATING}
    ),
    AttemptStatus.PROVISIONING: frozenset({AttemptStatus.PULLING, AttemptStatus.TERMINATING}),
    AttemptStatus.PULLING: frozenset({AttemptStatus.RUNNING, AttemptStatus.TERMINATING}),
    AttemptStatus.RUNNING: frozenset({AttemptStatus.TERMINATING}),
    AttemptStatus.TERMINATING: FINAL_ATTEMPT_STATUSES,
    AttemptStatus.DONE: frozenset(),
    AttemptStatus.FAILED: frozenset(),
    AttemptStatus.TERMINATED: frozenset(),
    AttemptStatus.ABORTED: frozenset(),
}

RUN_MOVES: Mapping[RunStatus, frozenset[RunStatus]] = {
    RunStatus.PENDING: frozenset(
        {RunStatus.SUBMITTED, RunStatus.PROVISIONING, RunStatus.TERMINATING}
    ),
    RunStatus.SUBMITTED: frozenset(
        {RunStatus.PENDING, RunStatus.PROVISIONING, RunStatus.RUNNING, RunStatus.TERMINATING}
    ),
    RunStatus.PROVISIONING: frozenset(
        {RunStatus.PENDING, RunStatus.SUBMITTED, RunStatus.RUNNING, RunStatus.TERMINATING}
    ),
    RunStatus.RUNNING: frozenset(
        {RunStatus.PENDING, RunStatus.SUBMITTED, RunStatus.PROVISIONING, RunStatus.TERMINATING}
    ),
    RunStatus.TERMINATING: FINAL_RUN_STATUSES | {RunStatus.PENDING},
    RunStatus.TERMINATED: frozenset(),
    RunStatus.FAILED: frozenset(),
    RunStatus.DONE: frozenset(),
}

ALLOCATION_MOVES: Mapping[AllocationState, frozenset[AllocationState]] = {
    AllocationState.NOMINATED: frozenset({AllocationState.HELD, AllocationState.RELEASED}),
    AllocationState.HELD: frozenset({AllocationState.RELEASED, AllocationState.ORPHANED}),
    AllocationState.ORPHANED: frozenset({AllocationState.RELEASED}),
    AllocationState.RELEASED: frozenset(),
}


class NodeStatus(StrEnum):
    """The state of the controller's link to a node (docs/rules.md 7)."""

    EXPECTED = "expected"
    """It was announced by user-data and has no address yet, so no link is made."""
    CONNECTING = "connecting"
    CONNECTED = "connected"
    UNREACHABLE = "unreachable"
    LOST = "lost"


class OutputsState(StrEnum):
    NONE = "none"
    """The job left nothing, or has not ended yet."""
    COLLECTING = "collecting"
    """They are on the node and are being stored."""
    COLLECTED = "collected"
    LOST = "lost"
    """They were on a node, or may have been, when it was lost."""


class IllegalMove(Exception):
    """A rule asked for a move that its state machine does not have: a bug in this program."""

    def __init__(self, machine: str, source: StrEnum, target: StrEnum) -> None:
        super().__init__(f"{machine}: {source} may not become {target}")


def move_attempt(source: AttemptStatus, target: AttemptStatus) -> AttemptStatus:
    """Return `target` if the attempt may go there from `source`, else raise IllegalMove."""
    if target not in ATTEMPT_MOVES[source]:
        raise IllegalMove("attempt", source, target)
    return target


def move_run(source: RunStatus, target: RunStatus) -> RunStatus:
    """Return `target` if the run may go there from `source`, else raise IllegalMove."""
    if target not in RUN_MOVES[source]:
        raise IllegalMove("run", source, target)
    return target


def move_allocation(source: AllocationState, target: AllocationState) -> AllocationState:
    """Return `target` if the allocation may go there from `source`, else raise IllegalMove."""
    if target not in ALLOCATION_MOVES[source]:
        raise IllegalMove("allocation", source, target)
    return target
