"""The registries of the live runs and nodes that RunPipeline keeps, and what it derives from them.

They hold runs by node, parents and children, and changes of nodes and fleets that are not committed
yet. They also make the context that a run's decision needs.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from controller.clock import next_trigger
from controller.lifecycle.attempts.allocations import OCCUPIED
from controller.lifecycle.draft import EMPTY_CONTEXT, DecisionContext
from controller.lifecycle.inventory import has_silent_engine
from controller.lifecycle.machines.model import Machine
from controller.lifecycle.model import (
    Allocation,
    Fleet,
    Node,
    NodeStatus,
    OnParentEnd,
    RunState,
)
from controller.lifecycle.reports import NodeDisconnected, NodeGone, ParentEnded
from controller.lifecycle.runs.schedules import needs_next_trigger
from controller.scheduling.index import keeps_its_allocations
from fairlead.model.reasons import Reason
from fairlead.model.statuses import (
    FINAL_ATTEMPT_STATUSES,
    FINAL_RUN_STATUSES,
    AllocationState,
    RunStatus,
)


def reports_about_nodes(
    run_id: str, node_ids: Iterable[str], nodes: Mapping[str, Node], gone: Container[str]
) -> Iterator[NodeDisconnected | NodeGone]:
    """Yield what a run must know of these nodes that are new for it; `gone`: removed nodes."""
    for node_id in node_ids:
        node = nodes.get(node_id)
        if node_id in gone:
            yield node_removed(run_id, node_id)
        elif node is not None and node.status is not NodeStatus.CONNECTED:
            yield NodeDisconnected(run_id=run_id, node_id=node_id, disconnected=True)


def reports_at_start(
    run_id: str, node_ids: Iterable[str], nodes: Mapping[str, Node]
) -> Iterator[NodeDisconnected | NodeGone]:
    """Yield the reports of a controller that has just started: it was away for an unknown time."""
    for node_id in node_ids:
        if node_id in nodes:
            yield NodeDisconnected(
                run_id=run_id, node_id=node_id, disconnected=True, limits_anew=True
            )
        else:
            yield node_removed(run_id, node_id)


def node_removed(run_id: str, node_id: str) -> NodeGone:
    """Return the report of a removed node. An admin removes a node only when nothing of Fairlead
    runs there."""
    return NodeGone(
        run_id=run_id,
        node_id=node_id,
        reason=Reason.INSTANCE_UNREACHABLE,
        message="the node was removed",
        cleanup_confirmed=True,
        removed=True,
    )


class RunsByNode:
    """The runs that have something on each node."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[str, None]] = {}
        self._minded: set[str] = set()

    def moved(self, before: RunState | None, state: RunState) -> list[str]:
        """Update the nodes of a run and return those that are new for it."""
        if before is state:
            return []
        old = set() if before is None else nodes_of(before)
        nodes = nodes_of(state)
        for node_id in old - nodes:
            self._left(node_id, state.run.id)
        for node_id in nodes:
            self._runs.setdefault(node_id, {})[state.run.id] = None
        fresh = sorted(nodes - old)
        if fresh and any(job.spec.stop_when_unheard is not None for job in state.jobs):
            self._minded.update(fresh)
        return fresh

    def on(self, node_id: str) -> Iterable[str]:
        """Return the ids of the runs that have something there."""
        return self._runs.get(node_id, ())

    def may_mind_silence(self, node_id: str) -> bool:
        """Return whether a job may be there that stops when it hears from no controller
        (`on_disconnect: stop`)."""
        return node_id in self._minded

    def _left(self, node_id: str, run_id: str) -> None:
        runs = self._runs.get(node_id, {})
        runs.pop(run_id, None)
        if not runs:
            self._runs.pop(node_id, None)
            self._minded.discard(node_id)


def nodes_of(state: RunState) -> set[str]:
    """Return the nodes where the run has an attempt, or an allocation that is kept or not released
    yet."""
    allocations = {
        allocation.node_id for allocation in state.allocations if allocation.state in OCCUPIED
    }
    return allocations | {
        attempt.node_id
        for job in state.jobs
        for attempt in job.attempts
        if attempt.node_id is not None
        and (attempt.cleanup_unknown or attempt.status not in FINAL_ATTEMPT_STATUSES)
    }


class Families:
    """The live children of each run."""

    def __init__(self) -> None:
        self._children: dict[str, dict[str, None]] = {}

    def add(self, state: RunState) -> None:
        parent_id = state.run.parent_id
        if parent_id is not None:
            self._children.setdefault(parent_id, {})[state.run.id] = None

    def remove(self, state: RunState) -> None:
        """Forget a run that has ended, or was never admitted."""
        parent_id = state.run.parent_id
        children = self._children.get(parent_id or "")
        if parent_id is not None and children is not None:
            children.pop(state.run.id, None)
            if not children:
                del self._children[parent_id]

    def children_of(self, run_id: str) -> tuple[str, ...]:
        """Return the ids of its live children, in the order of their submission."""
        return tuple(self._children.get(run_id, ()))

    def reports_to_children(self, state: RunState) -> list[ParentEnded]:
        """Return the reports to the children of a run that ended other than DONE."""
        run = state.run
        if run.status not in FINAL_RUN_STATUSES or run.status is RunStatus.DONE:
            return []
        message = f"its parent run {run.name} ended as {run.status}"
        return [
            ParentEnded(run_id=child_id, parent_id=run.id, message=message)
            for child_id in self._children.get(run.id, ())
        ]


def unknown_parents(
    states: Iterable[RunState], live: Mapping[str, object]
) -> list[tuple[RunState, str]]:
    """Return the runs that may not have heard of the end of their parent, with its id. A child that
    the database refuses is not in the commit of that end, and the controller may end before the
    child can be stored again."""
    return [
        (state, parent_id)
        for state in states
        if (parent_id := state.run.parent_id) is not None
        and parent_id not in live
        and state.run.status is not RunStatus.TERMINATING
        and state.run.policy.on_parent_end is OnParentEnd.TERMINATE
    ]


T = TypeVar("T")


class InventoryChanges(msgspec.Struct):
    """Nodes and fleets that were changed or removed (None), and machines that were changed, that
    are not committed yet."""

    nodes: dict[str, Node | None] = {}
    fleets: dict[str, Fleet | None] = {}
    machines: dict[str, Machine] = {}
    stored_nodes: dict[str, Node | None] = {}
    stored_fleets: dict[str, Fleet | None] = {}
    """The store's version of the changed fleets; `stored_nodes`: of the changed nodes."""

    @property
    def has_any(self) -> bool:
        return bool(self.nodes or self.fleets or self.machines)

    def over(self, older: InventoryChanges) -> InventoryChanges:
        """Return both; `older` could not be committed."""
        return InventoryChanges(
            nodes={**older.nodes, **self.nodes},
            fleets={**older.fleets, **self.fleets},
            machines={**older.machines, **self.machines},
            # The older change knows what is stored; the newer one only what was shown then.
            stored_nodes={**self.stored_nodes, **older.stored_nodes},
            stored_fleets={**self.stored_fleets, **older.stored_fleets},
        )


def without_removed(changes: Mapping[str, T | None]) -> dict[str, T]:
    return {key: value for key, value in changes.items() if value is not None}


def removed_keys(changes: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(key for key, value in changes.items() if value is None)


class DecisionContexts:
    """Makes the context of decisions from the live nodes."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes

    def of(self, state: RunState, now: float, nominated: frozenset[str]) -> DecisionContext:
        """Return the run's context; `nominated`: its allocations that another run has nominated."""
        run = state.run
        at = next_trigger(run.policy.schedule, now) if needs_next_trigger(run, now) else None
        held = [one for one in state.allocations if one.state is AllocationState.HELD]
        unusable = {one.node_id for one in held if self._is_unusable(one.node_id)}
        draining = {node_id for node_id in unusable if self._is_draining(node_id)}
        silent = {node_id for node_id in unusable if self._has_silent_engine(node_id)}
        undecided = {node_id for node_id in unusable if self._is_undecided(node_id)}
        broken = {one.id for one in held if one.gpus and self._is_broken(one)}
        if at is None and not unusable and not nominated and not broken:
            return EMPTY_CONTEXT
        return DecisionContext(
            unusable_nodes=frozenset(unusable - undecided),
            draining_nodes=frozenset(draining),
            drain_deadlines=self._drain_deadlines(draining),
            recalled=self._recalled(draining),
            undecided_nodes=frozenset(undecided),
            silent_engines=frozenset(silent),
            broken_allocations=frozenset(broken),
            nominated=nominated,
            next_trigger=at,
        )

    def _is_draining(self, node_id: str) -> bool:
        node = self._nodes.get(node_id)
        return node is not None and node.draining

    def _drain_deadlines(self, draining: Iterable[str]) -> dict[str, float]:
        nodes = ((node_id, self._nodes[node_id]) for node_id in sorted(draining))
        return {
            node_id: node.drain_deadline
            for node_id, node in nodes
            if node.drain_deadline is not None
        }

    def _recalled(self, draining: Iterable[str]) -> dict[str, float]:
        nodes = ((node_id, self._nodes[node_id].recalled_at) for node_id in sorted(draining))
        return {node_id: at for node_id, at in nodes if at is not None}

    def _has_silent_engine(self, node_id: str) -> bool:
        node = self._nodes.get(node_id)
        return node is not None and has_silent_engine(node)

    def _is_undecided(self, node_id: str) -> bool:
        """Return whether the node would be usable if the link that is being made were there."""
        node = self._nodes.get(node_id)
        if node is None or node.status is not NodeStatus.CONNECTING:
            return False
        return keeps_its_allocations(replace(node, status=NodeStatus.CONNECTED))

    def _is_broken(self, allocation: Allocation) -> bool:
        node = self._nodes.get(allocation.node_id)
        gpus = () if node is None else node.capacity.gpus
        return any(gpu.uuid in allocation.gpus and not gpu.healthy for gpu in gpus)

    def _is_unusable(self, node_id: str) -> bool:
        node = self._nodes.get(node_id)
        return node is None or not keeps_its_allocations(node)
