"""Nodes, GPUs, runs and gangs for tests of the scheduler, and one scheduling pass."""

from __future__ import annotations

import itertools
from typing import Any

from controller.lifecycle.decide import decide
from controller.lifecycle.model import (
    Group,
    JobSpec,
    Node,
    NodeAddress,
    NodeCapacity,
    NodeGpu,
    NodeStatus,
    Resources,
    RunPolicy,
    RunState,
)
from controller.lifecycle.reports import NotPlaced, Placed
from controller.lifecycle.runs.first_state import PlannedJob, new_run
from controller.pipelines.from_node import capacity
from controller.scheduling.placement import SchedulingPass
from fairlead.model.spec import PlannedGroup
from fairlead.wire.node import GpuInfo
from tests.doubles.shim import node_info
from tests.support.indexes import index_of

GIB = 1 << 30
ANSWERS = (Placed, NotPlaced)
_ids = (f"id{n}" for n in itertools.count())


def new_id() -> str:
    return next(_ids)


def gpu(uuid: str, **more: Any) -> NodeGpu:
    fields: dict[str, Any] = {
        "name": "A100",
        "memory": 80 * GIB,
        "compute_capability": "8.0",
    } | more
    return NodeGpu(uuid=uuid, **fields)


def node(name: str = "n1", **more: Any) -> Node:
    capacity = {"cpu": 4.0, "memory": 16 * GIB, "disk": 100 * GIB} | more.pop("capacity", {})
    fields = {"status": NodeStatus.CONNECTED} | more
    return Node(
        id=name,
        name=name,
        address=NodeAddress(shim_socket="/run/shim.sock"),
        capacity=NodeCapacity(**capacity),
        created_at=0.0,
        **fields,
    )


def run(
    name: str = "a", *, at: float = 0.0, policy: RunPolicy | None = None, **need: Any
) -> RunState:
    spec = JobSpec(image="busybox", resources=Resources(**need))
    return new_run(
        name=name, user="ada", jobs=[PlannedJob(spec=spec)], now=at, new_id=new_id, policy=policy
    )


def gang_run(ranks: int, name: str = "gang", *, at: float = 0.0, **need: Any) -> RunState:
    spec = JobSpec(image="busybox", resources=Resources(**need))
    groups = [PlannedGroup(group=gang(ranks), spec=spec)]
    return new_run(name=name, user="ada", groups=groups, now=at, new_id=new_id)


def place(runs: list[RunState], nodes: list[Node]) -> list[Placed | NotPlaced]:
    told = SchedulingPass(index_of(runs, nodes), 1.0, new_id).decide()
    return [one for reports in told.values() for one in reports if isinstance(one, ANSWERS)]


def told(runs: list[RunState], nodes: list[Node]) -> str:
    (answer,) = place(runs, nodes)
    assert isinstance(answer, NotPlaced)
    return answer.pending_reason.sentence()


def after(state: RunState, answer: Placed | NotPlaced) -> RunState:
    return decide(state, [answer], 1.0, new_id).state


def gang(nodes: int, size: int | None = None, name: str = "main") -> Group:
    return Group(name=name, nodes=nodes, gang_size=nodes if size is None else size)


def as_seen(gpus: tuple[GpuInfo, ...]) -> list[NodeGpu]:
    """Those that are well, as the controller has them."""
    return list(capacity(node_info(gpus=gpus)).gpus)
