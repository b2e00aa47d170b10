"""A few nodes and runs under the scheduler as the turns use it: the index is kept, told reports are
decided, and nothing else moves."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from controller.lifecycle.attempts.allocations import is_kept
from controller.lifecycle.decide import decide
from controller.lifecycle.draft import DecisionContext
from controller.lifecycle.model import (
    Allocation,
    Amount,
    Attempt,
    Band,
    Constraint,
    Fleet,
    GpuNeed,
    Group,
    JobSpec,
    Node,
    Resources,
    RunPolicy,
    RunState,
)
from controller.lifecycle.reports import Report, RunnerStarted, TaskAccepted, TaskRemoved
from controller.lifecycle.runs.first_state import new_run
from controller.scheduling.scheduler import JobSubmittedPipeline
from fairlead.model.service import ServicePolicy
from fairlead.model.spec import PlannedGroup
from fairlead.model.statuses import AllocationState, AttemptStatus
from tests.unit.scheduling.parts import gpu, new_id, node


def gpu_node(name: str, count: int = 8, **more: Any) -> Node:
    gpus = tuple(gpu(f"{name}-g{n}") for n in range(count))
    capacity = {"cpu": 64.0, "memory": 1 << 40, "gpus": gpus}
    return node(name, capacity=capacity, **more)


class Cluster:
    def __init__(self, *nodes: Node, fleets: tuple[Fleet, ...] = ()) -> None:
        self.now = 0.0
        self.states: dict[str, RunState] = {}
        self.pipeline = JobSubmittedPipeline(new_id)
        for fleet in fleets:
            self.pipeline.fleet_changed(fleet.name, fleet)
        for one in nodes:
            self.set_node(one)

    def set_node(self, one: Node) -> None:
        self.pipeline.node_changed(one.id, one)

    def remove_node(self, name: str) -> None:
        self.pipeline.node_changed(self.node(name).id, None)

    def node(self, name: str) -> Node:
        return self.pipeline.index.nodes[name]

    def submit(
        self,
        name: str,
        *groups: Group,
        band: Band = Band.INTERACTIVE,
        user: str = "ada",
        constraints: tuple[Constraint, ...] = (),
        fleets: tuple[str, ...] = (),
        policy: RunPolicy | None = None,
        cpu: float = 1.0,
        gpus: int = 0,
        whole_node: bool = False,
        unset: tuple[Amount, ...] = (),
        service: ServicePolicy | None = None,
        own: dict[str, dict[str, Any]] | None = None,
    ) -> str:
        """Its id; without groups one plain job. `own`: the fields of single groups' specs."""
        self.now += 1.0
        need = Resources(cpu=cpu, gpu=GpuNeed(count=gpus), whole_node=whole_node, unset=unset)
        spec = JobSpec(image="i", resources=need, constraints=constraints, fleets=fleets)
        state = new_run(
            name=name,
            user=user,
            groups=[
                PlannedGroup(group=g, spec=replace(spec, **(own or {}).get(g.name, {})))
                for g in groups or (Group(name="main"),)
            ],
            policy=replace(policy or RunPolicy(), band=band),
            now=self.now,
            new_id=new_id,
            service=service,
        )
        self._set(state)
        self.tell(state.run.id)
        return state.run.id

    def tell(self, run_id: str, *reports: Report) -> None:
        state = self.states[run_id]
        around = DecisionContext(nominated=self.pipeline.nominated(state))
        self._set(decide(state, reports, self.now, new_id, context=around).state)

    def turn(self) -> dict[str, list[Report]]:
        """One round and what follows from it; what it told."""
        told = self.pipeline.place(self.now)
        for run_id, reports in told.items():
            self.tell(run_id, *reports)
        return told

    def settle(self) -> None:
        while self.turn() or self.pipeline.is_unfinished:
            pass

    def start_all(self) -> None:
        """All jobs with a place run."""
        for run_id, state in list(self.states.items()):
            for attempt in attempts(state):
                if attempt.status is AttemptStatus.PROVISIONING:
                    ids = {"run_id": run_id, "attempt_id": attempt.id}
                    self.tell(run_id, TaskAccepted(**ids), RunnerStarted(at=self.now, **ids))

    def leave(self, run_id: str, at_most: int | None = None) -> None:
        """Jobs that are ending there have ended, and are cleaned up."""
        ending = [
            attempt
            for attempt in attempts(self.states[run_id])
            if attempt.status is AttemptStatus.TERMINATING and attempt.node_id
        ]
        for attempt in ending[:at_most]:
            ids = {"run_id": run_id, "attempt_id": attempt.id}
            gone = not is_kept(self.states[run_id].run, attempt)
            self.tell(run_id, TaskRemoved(allocation_released=gone, **ids))

    def _set(self, state: RunState) -> None:
        self.states[state.run.id] = state
        self.pipeline.run_changed(state.run.id, state)

    # -- what tests look at -----------------------------------------------------------------

    def places(self, run_id: str) -> dict[str, str]:
        """Node by `group/cookie`, of what is held."""
        state = self.states[run_id]
        held = {a.id: a for a in state.allocations if a.state is AllocationState.HELD}
        return {
            f"{job.group}/{job.cookie}": held[job.attempts[-1].allocation_id].node_id
            for job in state.jobs
            if job.attempts[-1].allocation_id in held
        }

    def nominated(self, run_id: str) -> list[Allocation]:
        found = self.states[run_id].allocations
        return [a for a in found if a.state is AllocationState.NOMINATED]

    def attempt(self, run_id: str, index: int = 0) -> Attempt:
        return self.states[run_id].jobs[index].attempts[-1]

    def waits(self, run_id: str, index: int = 0) -> str | None:
        reason = self.attempt(run_id, index).pending_reason
        return None if reason is None else reason.sentence()


def attempts(state: RunState) -> list[Attempt]:
    return [job.attempts[-1] for job in state.jobs if job.attempts]


def rack_fleet(name: str = "default") -> Fleet:
    return Fleet(name=name, placement="rack", created_at=0.0)


def in_rack(name: str, rack: str, count: int = 8, **more: Any) -> Node:
    return gpu_node(name, count, attributes={"rack": rack}, **more)
