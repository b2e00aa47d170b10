"""The use of nodes: what runs occupy there, and which run holds a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from controller.lifecycle.model import (
    Allocation,
    Run,
    RunState,
)
from fairlead.model.statuses import (
    FINAL_ATTEMPT_STATUSES,
    FINAL_RUN_STATUSES,
    AllocationState,
)
from fairlead.wire.amounts import Amounts, sums_of


def node_uses(states: Iterable[RunState], name_of: Callable[[Run], str]) -> dict[str, NodeUse]:
    """Return what is occupied, by node id: held and orphaned allocations, and attempts that are not
    final or whose cleanup is unknown."""
    tallies: dict[str, _Tally] = {}
    for state in states:
        name = name_of(state.run)
        for allocation in state.allocations:
            if allocation.state not in (AllocationState.RELEASED, AllocationState.NOMINATED):
                tallies.setdefault(allocation.node_id, _Tally()).add(allocation, state, name)
        for job in state.jobs:
            for attempt in job.attempts:
                over = attempt.status in FINAL_ATTEMPT_STATUSES and not attempt.cleanup_unknown
                if attempt.node_id is not None and not over:
                    tallies.setdefault(attempt.node_id, _Tally()).name(state, name)
    return {node_id: tally.sum() for node_id, tally in tallies.items()}


class NodeUse(Amounts, frozen=True, kw_only=True):
    """The resources that allocations hold on a node: cores, bytes, bytes, GPU UUIDs.

    `runs` are the live runs that hold them, `ended` the ended ones that may have something left
    there.
    """

    gpus: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()


class Holder(msgspec.Struct, frozen=True):
    """The run that holds a GPU. `run_id` None: the user may not see it."""

    run_id: str | None
    name: str


class _Tally:
    def __init__(self) -> None:
        self._allocations: list[Allocation] = []
        self._runs: dict[str, str] = {}
        """Names by id."""
        self._ended: dict[str, str] = {}

    def add(self, allocation: Allocation, state: RunState, name: str) -> None:
        self._allocations.append(allocation)
        self.name(state, name)

    def name(self, state: RunState, name: str) -> None:
        ended = state.run.status in FINAL_RUN_STATUSES
        (self._ended if ended else self._runs)[state.run.id] = name

    def sum(self) -> NodeUse:
        return NodeUse(
            **sums_of(allocation.resources for allocation in self._allocations),
            gpus=tuple(gpu for allocation in self._allocations for gpu in allocation.gpus),
            runs=tuple(self._runs.values()),
            ended=tuple(self._ended.values()),
        )
