"""The world around one run, for the core: what its decision must know beside its own state."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from controller.cron import next_trigger
from controller.lifecycle.model import Allocation, Node, NodeStatus, RunState
from controller.lifecycle.occurrences import needs_next_trigger
from controller.lifecycle.statuses import AllocationState
from controller.lifecycle.surroundings import NOTHING_ELSE, Surroundings
from controller.scheduling.index import keeps_its_places


class World:
    """Sees the live nodes."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes

    def around(self, state: RunState, now: float, nominated: frozenset[str]) -> Surroundings:
        """`nominated`: the places of this run on which another's nomination lies."""
        run = state.run
        at = next_trigger(run.policy.schedule, now) if needs_next_trigger(run, now) else None
        held = [one for one in state.allocations if one.state is AllocationState.HELD]
        unusable = {one.node_id for one in held if self._is_unusable(one.node_id)}
        draining = {node_id for node_id in unusable if self._is_draining(node_id)}
        undecided = {node_id for node_id in unusable if self._is_undecided(node_id)}
        broken = {one.id for one in held if one.gpus and self._is_broken(one)}
        if at is None and not unusable and not nominated and not broken:
            return NOTHING_ELSE
        return Surroundings(
            unusable_nodes=frozenset(unusable - undecided),
            draining_nodes=frozenset(draining),
            undecided_nodes=frozenset(undecided),
            broken_places=frozenset(broken),
            nominated=nominated,
            next_trigger=at,
        )

    def _is_draining(self, node_id: str) -> bool:
        node = self._nodes.get(node_id)
        return node is not None and node.draining

    def _is_undecided(self, node_id: str) -> bool:
        """It would be usable if its link, which is just being made, were there."""
        node = self._nodes.get(node_id)
        if node is None or node.status is not NodeStatus.CONNECTING:
            return False
        return keeps_its_places(replace(node, status=NodeStatus.CONNECTED))

    def _is_broken(self, place: Allocation) -> bool:
        node = self._nodes.get(place.node_id)
        gpus = () if node is None else node.capacity.gpus
        return any(gpu.uuid in place.gpus and not gpu.healthy for gpu in gpus)

    def _is_unusable(self, node_id: str) -> bool:
        node = self._nodes.get(node_id)
        return node is None or not keeps_its_places(node)
