"""The world around one run, for the core: what its decision must know beside its own state."""

from __future__ import annotations

from collections.abc import Mapping

from controller.cron import next_trigger
from controller.lifecycle.model import Node, RunState
from controller.lifecycle.occurrences import needs_next_trigger
from controller.lifecycle.statuses import AllocationState
from controller.lifecycle.surroundings import NOTHING_ELSE, Surroundings
from controller.scheduling.index import is_usable


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
        if at is None and not unusable and not nominated:
            return NOTHING_ELSE
        return Surroundings(
            unusable_nodes=frozenset(unusable), nominated=nominated, next_trigger=at
        )

    def _is_unusable(self, node_id: str) -> bool:
        node = self._nodes.get(node_id)
        return node is None or not is_usable(node)
