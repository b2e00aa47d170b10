"""Runs for the tests of the simulation's checks."""

from __future__ import annotations

from typing import Any

import msgspec

from controller.lifecycle.model import (
    Allocation,
    Group,
    JobSpec,
    Resources,
    RetryEvent,
    RetryPolicy,
    RunPolicy,
    RunState,
)
from controller.lifecycle.runs.first_state import new_run
from fairlead.model.spec import PlannedGroup
from fairlead.model.statuses import AllocationState, AttemptStatus
from tests.support.attempts import attempt_with

RETRY = RetryPolicy(on_events=frozenset({RetryEvent.ERROR}), max_failures=1)


def a_gang(nodes: int = 3, size: int | None = 2) -> RunState:
    ids = iter(f"{number:016x}" for number in range(100))
    return new_run(
        name="g",
        user="u",
        groups=[
            PlannedGroup(
                group=Group(name="main", nodes=nodes, gang_size=size), spec=JobSpec(image="i")
            )
        ],
        now=0.0,
        new_id=lambda: next(ids),
        policy=RunPolicy(retry=RETRY),
    )


def changed(state: RunState, index: int, **changes: Any) -> RunState:
    """With the last attempt of that job replaced."""
    jobs = list(state.jobs)
    last = attempt_with(jobs[index].attempts[-1], **changes)
    attempts = (*jobs[index].attempts[:-1], last)
    jobs[index] = msgspec.structs.replace(jobs[index], attempts=attempts)
    return msgspec.structs.replace(state, jobs=tuple(jobs))


def placed(state: RunState, index: int, placement: str = "r0") -> RunState:
    place = Allocation(
        id=f"a{index}",
        run_id=state.run.id,
        job_id=state.jobs[index].id,
        node_id=f"n{index}",
        state=AllocationState.HELD,
        resources=Resources(),
        created_at=0.0,
        placement=placement,
    )
    state = msgspec.structs.replace(state, allocations=(*state.allocations, place))
    return changed(
        state,
        index,
        status=AttemptStatus.PROVISIONING,
        node_id=place.node_id,
        allocation_id=place.id,
    )
