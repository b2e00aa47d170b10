"""Which runs have something on which node, so that nobody has to look through all of them."""

from __future__ import annotations

from collections.abc import Iterable

from controller.lifecycle.model import RunState
from controller.lifecycle.places import OCCUPIED
from controller.lifecycle.statuses import FINAL_ATTEMPT_STATUSES


class RunsByNode:
    def __init__(self) -> None:
        self._runs: dict[str, dict[str, None]] = {}
        self._minded: set[str] = set()

    def moved(self, before: RunState | None, state: RunState) -> list[str]:
        """Take over what the run has where now; the nodes that are new for it."""
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
        """The ids of the runs that have something there."""
        return self._runs.get(node_id, ())

    def may_mind_silence(self, node_id: str) -> bool:
        """Whether a job may be there that is stopped when it hears of no controller."""
        return node_id in self._minded

    def _left(self, node_id: str, run_id: str) -> None:
        runs = self._runs.get(node_id, {})
        runs.pop(run_id, None)
        if not runs:
            self._runs.pop(node_id, None)
            self._minded.discard(node_id)


def nodes_of(state: RunState) -> set[str]:
    """Where it has something, or a place that is kept or not given back yet."""
    places = {place.node_id for place in state.allocations if place.state in OCCUPIED}
    return places | {
        attempt.node_id
        for job in state.jobs
        for attempt in job.attempts
        if attempt.node_id is not None
        and (attempt.cleanup_unknown or attempt.status not in FINAL_ATTEMPT_STATUSES)
    }
