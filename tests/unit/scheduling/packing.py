"""A fleet of GPU nodes under a random stream of jobs, small ones and ones for a whole node."""

from __future__ import annotations

import random
from collections import Counter
from itertools import count

import msgspec
from msgspec.structs import replace

from controller.lifecycle.model import Allocation, GpuNeed, Node, NodeGpu, Resources, RunState
from controller.lifecycle.reports import Placed
from controller.scheduling.placement import SchedulingPass
from fairlead.model.statuses import AttemptStatus
from tests.support.indexes import index_of
from tests.unit.scheduling.parts import after, as_seen, node, run
from tests.unit.shim.gpus.parts import in_pairs, linked

GIB = 1 << 30
GPUS = 8
MAX_LIFE = 50


class Fleet:
    """A whole-node job must be placed whenever a node is empty, and small jobs must leave one
    empty when they fit elsewhere."""

    def __init__(self, dice: random.Random, nodes: int) -> None:
        self.counts: Counter[str] = Counter()
        self._dice = dice
        self._ids = count()
        self._nodes = [node(f"n{n}", capacity=_capacity(n)) for n in range(nodes)]
        self._held: dict[str, tuple[Allocation, int]] = {}
        self._runs: dict[str, RunState] = {}
        self._now = 0

    def step(self) -> None:
        """Raises AssertionError."""
        self._now += 1
        for key, (_, until) in list(self._held.items()):
            if until <= self._now:
                del self._held[key], self._runs[key]
        if self._dice.random() < 0.1:
            self._ask(Resources(whole_node=True), "whole nodes")
        else:
            need = GpuNeed(count=self._dice.choice((1, 1, 1, 2, 2, 4)))
            self._ask(Resources(gpu=need), "small jobs")

    def _ask(self, resources: Resources, what: str) -> None:
        empty = self._empty()
        allocation = self._placed(resources)
        if allocation is None:
            self.counts[f"{what} that waited"] += 1
            if resources.whole_node:
                assert not empty, f"a whole node was asked for, and {empty[0]} is empty"
            else:
                most = max(len(self._free(one)) for one in self._nodes)
                assert most < resources.gpu.count, "a small job waits beside free GPUs"
            return
        if not resources.whole_node and allocation.node_id in empty:
            others = [one for one in self._nodes if one.id not in empty]
            fits = [one.id for one in others if len(self._free(one)) >= resources.gpu.count]
            assert not fits, f"a small job broke an empty node beside {fits}"
        self._check_owners(allocation)
        self._held[allocation.id] = (allocation, self._now + self._dice.randint(1, MAX_LIFE))
        self.counts[f"{what} that were placed"] += 1

    def _placed(self, resources: Resources) -> Allocation | None:
        state = run(f"r{next(self._ids)}", gpu=resources.gpu, whole_node=resources.whole_node)
        index = index_of([*self._runs.values(), state], self._nodes)
        told = SchedulingPass(index, 0.0, self._new_id).decide()
        for answer in told[state.run.id]:
            if isinstance(answer, Placed):
                self._runs[answer.allocation.id] = as_running(after(state, answer))
                return answer.allocation
        return None

    def _new_id(self) -> str:
        return f"a{next(self._ids)}"

    def _empty(self) -> list[str]:
        used = {allocation.node_id for allocation, _ in self._held.values()}
        return [one.id for one in self._nodes if one.id not in used]

    def _free(self, one: Node) -> list[NodeGpu]:
        here = [a for a, _ in self._held.values() if a.node_id == one.id]
        if any(a.resources.whole_node for a in here):
            return []
        taken = {uuid for a in here for uuid in a.gpus}
        return [gpu for gpu in one.capacity.gpus if gpu.uuid not in taken]

    def _check_owners(self, fresh: Allocation) -> None:
        taken = {uuid for a, _ in self._held.values() for uuid in a.gpus}
        assert not taken & set(fresh.gpus), "a GPU has two owners"
        wanted = GPUS if fresh.resources.whole_node else fresh.resources.gpu.count
        assert len(set(fresh.gpus)) == wanted, "another number of GPUs than asked"


def as_running(state: RunState) -> RunState:
    """No longer among those that start."""
    job = state.jobs[0]
    attempt = replace(job.attempts[0], status=AttemptStatus.RUNNING, running_at=1.0)
    return replace(state, jobs=(replace(job, attempts=(attempt,)),))


def _capacity(number: int) -> dict[str, object]:
    gpus = linked(GPUS, in_pairs)
    named = [
        msgspec.structs.replace(
            gpu,
            uuid=f"n{number}-{gpu.uuid}",
            near={f"n{number}-{uuid}": near for uuid, near in gpu.near.items()},
        )
        for gpu in as_seen(gpus)
    ]
    return {"cpu": 1024.0, "memory": 4096 * GIB, "disk": GIB, "gpus": tuple(named)}
