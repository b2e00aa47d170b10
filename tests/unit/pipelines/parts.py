"""Runs in any stage, and a pipeline that only notes what is posted."""

from __future__ import annotations

from typing import Any

import msgspec

from controller.clock import Chance
from controller.lifecycle.model import (
    Allocation,
    Attempt,
    JobSpec,
    Node,
    NodeAddress,
    NodeCapacity,
    NodeStatus,
    Resources,
    RunState,
)
from controller.lifecycle.reports import Report
from controller.lifecycle.runs.first_state import PlannedJob, new_run
from controller.pipelines.performers.cluster import Clusters
from controller.pipelines.run_pipeline import RunPipeline
from controller.pipelines.to_node import AttemptContext
from controller.scheduling.scheduler import JobSubmittedPipeline
from fairlead.model.statuses import AllocationState, AttemptStatus, RunStatus
from fairlead.wire.shim import TaskInfo, TaskStatus, TaskTimes
from tests.doubles.clock import NOW, ManualClock
from tests.doubles.memory_store import MemoryStore
from tests.support.attempts import attempt_with

SOCKET = "/tasks/t/runner.sock"


class Ids:
    def __init__(self) -> None:
        self._made = 0

    def __call__(self) -> str:
        self._made += 1
        return f"{self._made:016x}"


def steady_chance() -> Chance:
    return Chance(new_id=Ids(), jitter=lambda: 0.0)


ALONE = Clusters({}, b"")
"""For jobs that know of no other nodes."""


class NotedPipeline(RunPipeline):
    """Decides nothing; `posted` is what performers and sessions have reported."""

    def __init__(self, *states: RunState) -> None:
        super().__init__(MemoryStore(), ManualClock(), steady_chance(), JobSubmittedPipeline(Ids()))
        self.posted: list[Report] = []
        self.restore(states, ())

    def post(self, report: Report) -> None:
        self.posted.append(report)


def submitted(name: str = "hello", new_id: Ids | None = None, **spec: Any) -> RunState:
    job = PlannedJob(spec=JobSpec(**{"image": "busybox", "commands": ("true",), **spec}))
    return new_run(name=name, user="ann", jobs=[job], now=NOW, new_id=new_id or _ids)


_ids = Ids()
_RUN_STATUS = {
    AttemptStatus.PROVISIONING: RunStatus.PROVISIONING,
    AttemptStatus.PULLING: RunStatus.PROVISIONING,
    AttemptStatus.RUNNING: RunStatus.RUNNING,
}


def placed(
    status: AttemptStatus, name: str = "hello", node: str = "n1", **changes: Any
) -> RunState:
    """One job whose attempt holds a place on `node`."""
    state = submitted(name)
    job = state.jobs[0]
    place = Allocation(
        id=f"a{job.attempts[0].id[1:]}",
        run_id=state.run.id,
        job_id=job.id,
        node_id=node,
        state=AllocationState.HELD,
        resources=Resources(),
        created_at=NOW,
    )
    began = status is not AttemptStatus.PROVISIONING
    facts: dict[str, Any] = {
        "allocation_id": place.id,
        "node_id": node,
        "provisioned_at": NOW,
        "pulling_at": NOW if began else None,
        "running_at": NOW if status is AttemptStatus.RUNNING else None,
        "container_started": began,
        "container_started_at": NOW if began else None,
        "runner_socket": SOCKET if began else None,
    }
    attempt = attempt_with(job.attempts[0], status=status, **{**facts, **changes})
    return RunState(
        run=msgspec.structs.replace(
            state.run, status=_RUN_STATUS.get(status, RunStatus.RUNNING), version=1
        ),
        jobs=(msgspec.structs.replace(job, attempts=(attempt,)),),
        allocations=(place,),
    )


def context_of(state: RunState) -> AttemptContext:
    return AttemptContext(state, state.jobs[0], attempt_of(state))


def attempt_of(state: RunState) -> Attempt:
    return state.jobs[0].attempts[-1]


def task_of(state: RunState, status: TaskStatus = TaskStatus.RUNNING, **changes: Any) -> TaskInfo:
    """The shim's word about the state's attempt."""
    attempt = attempt_of(state)
    info = TaskInfo(
        id=attempt.id,
        run_id=state.run.id,
        run_name=state.run.name,
        allocation_id=attempt.allocation_id or "",
        status=status,
        image="busybox",
        runner_socket=SOCKET,
        times=TaskTimes(submitted_at=NOW, running_at=None if status is TaskStatus.PENDING else NOW),
    )
    return msgspec.structs.replace(info, **changes)


def a_node(node_id: str = "n1", **changes: Any) -> Node:
    node = Node(
        id=node_id,
        name=f"node-{node_id}",
        address=NodeAddress(shim_socket="/shim.sock", local_socket=True),
        status=NodeStatus.CONNECTED,
        capacity=NodeCapacity(cpu=64.0, memory=1 << 40, disk=1 << 40, engine="docker"),
        created_at=NOW,
    )
    return msgspec.structs.replace(node, **changes)
