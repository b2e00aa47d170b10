"""How long the scheduler takes to decide: `python -m bench.scheduling`. No daemon, no disk, no
network.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from controller.lifecycle.decide import decide
from controller.lifecycle.model import (
    Band,
    GpuNeed,
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
from controller.lifecycle.runs.first_state import new_run
from controller.scheduling.placement import ReportsByRun
from controller.scheduling.scheduler import JobSubmittedPipeline
from fairlead.model.spec import PlannedGroup

NODES = 5_000
JOBS = 5_000
GIB = 1 << 30
_numbers = itertools.count()


def _id() -> str:
    return f"{next(_numbers):016x}"


def new_node(number: int) -> Node:
    gpus = tuple(NodeGpu(uuid=f"{number}-{n}", name="H100", memory=80 * GIB) for n in range(8))
    return Node(
        id=f"n{number:05}",
        name=f"n{number:05}",
        address=NodeAddress(shim_socket="/run/shim.sock"),
        status=NodeStatus.CONNECTED,
        attributes={"rack": f"r{number // 20}"},
        capacity=NodeCapacity(cpu=128.0, memory=1024 * GIB, disk=4096 * GIB, gpus=gpus),
        created_at=0.0,
    )


def new_job(gpus: int, band: Band = Band.INTERACTIVE, nodes: int = 0, cpu: float = 8.0) -> RunState:
    need = Resources(cpu=cpu, memory=64 * GIB, gpu=GpuNeed(count=gpus), whole_node=bool(nodes))
    group = Group(name="main", nodes=nodes or 1, gang_size=nodes or None)
    return new_run(
        name=f"run-{next(_numbers)}",
        user=f"user-{next(_numbers) % 20}",
        groups=[PlannedGroup(group=group, spec=JobSpec(image="i", resources=need))],
        policy=RunPolicy(band=band),
        now=0.0,
        new_id=_id,
    )


class Bench:
    def __init__(self) -> None:
        self.pipeline = JobSubmittedPipeline(_id)
        self.states: dict[str, RunState] = {}
        for number in range(NODES):
            node = new_node(number)
            self.pipeline.node_changed(node.id, node)
        self.pipeline.place(0.0)

    def add(self, make: Callable[[int], RunState], count: int) -> None:
        for number in range(count):
            state = make(number)
            self.states[state.run.id] = state
            self.pipeline.run_changed(state.run.id, state)

    def round(self, what: str) -> None:
        began = time.perf_counter()
        reports_by_run = self.pipeline.place(1.0)
        took = time.perf_counter() - began
        reports = sum(map(len, reports_by_run.values()))
        print(f"{what:<66} {took * 1000:8.1f} ms  {reports:6} reports", flush=True)
        began = time.perf_counter()
        self._decide(reports_by_run)
        rest = time.perf_counter() - began
        if reports > 1:
            speed = reports / (took + rest)
            print(f"{'  with the decisions of the runs':<66} {rest * 1000:8.1f} ms  {speed:6.0f}/s")

    def settle(self) -> None:
        """Run a turn that is not measured."""
        self._decide(self.pipeline.place(1.0))

    def _decide(self, reports: ReportsByRun) -> None:
        for run_id, some in reports.items():
            state = decide(self.states[run_id], some, 1.0, _id).state
            self.states[run_id] = state
            self.pipeline.run_changed(run_id, state)


def main() -> None:
    bench = Bench()
    bench.add(lambda _: new_job(8), JOBS)
    bench.round(f"{JOBS} alike jobs, each gets one of {NODES} free nodes")
    bench.add(lambda _: new_job(8), JOBS)
    bench.round(f"{JOBS} alike jobs, none fits")
    bench.round("the same again, nothing has changed")
    bench.round("and once more")
    bench.pipeline.node_changed("n00000", None)
    bench.round("the same again, a node has changed")
    bench.add(lambda _: new_job(1, nodes=200), 1)
    bench.round("one gang of 200 more, nothing fits")
    bench.add(lambda _: new_job(8, Band.PRODUCTION), 50)
    bench.round("50 production jobs, each evicts one")

    bench = Bench()
    bench.add(lambda n: new_job(n % 8 + 1, cpu=float(n % 13 + 1)), JOBS)
    bench.round(f"{JOBS} jobs of 104 kinds on {NODES} free nodes")
    bench.add(lambda n: new_job(n % 8 + 1, cpu=float(n % 13 + 1)), JOBS)
    bench.round(f"{JOBS} more of them on what is left")
    bench = Bench()
    bench.add(lambda _: new_job(8, nodes=200), 25)
    bench.round("25 gangs of 200 on free nodes")


if __name__ == "__main__":
    main()
