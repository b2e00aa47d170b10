"""The scheduler's index, made at once instead of change by change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controller.lifecycle.model import Fleet, Node, RunState, Use
from controller.scheduling.index import CapacityIndex


def index_of(
    states: Iterable[RunState],
    nodes: Iterable[Node],
    fleets: Mapping[str, Fleet] | None = None,
    past_use: Iterable[Use] = (),
) -> CapacityIndex:
    """Return a new index of these runs, nodes and fleets, up to date."""
    made = CapacityIndex(past_use)
    for name, fleet in (fleets or {}).items():
        made.fleet_changed(name, fleet)
    for node in nodes:
        made.node_changed(node.id, node)
    for state in states:
        made.run_changed(state.run.id, state)
    made.refresh()
    return made
