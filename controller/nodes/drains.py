"""Drain deadlines make a draining node empty.

Runs that only keep an allocation there are told at once. Jobs that still run there at the deadline
end as node_drained. Drain and deadline are stored with the node, so they outlive this controller;
telling the runs again is harmless.
"""

from __future__ import annotations

import asyncio
import contextlib

from controller.clock import Clock
from controller.lifecycle.model import Node
from controller.lifecycle.reports import NodeDrained, Tick
from controller.pipelines.run_pipeline import ANY_NODE, RunPipeline


class DrainDeadlines:
    """Watches the draining nodes and posts their reports."""

    def __init__(self, pipeline: RunPipeline, clock: Clock) -> None:
        self._pipeline = pipeline
        self._clock = clock
        self._reported: dict[str, float] = {}
        self._draining: dict[str, float | None] = {}

    async def run(self) -> None:
        """Watch until cancelled."""
        async with self._pipeline.watch(ANY_NODE) as changed:
            while True:
                changed.clear()
                self._tell_of_drains()
                self._tell()
                # A deadline passes without any change that would wake this.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._until_next()):
                        await changed.wait()

    def _tell_of_drains(self) -> None:
        """Make the runs on a node decide again when its drain begins, has another deadline or is
        called off: nothing else may do so for a long time."""
        nodes, ids = self._pipeline.nodes, sorted(self._pipeline.draining)
        draining = {node_id: nodes[node_id].drain_deadline for node_id in ids}
        changed = draining.items() ^ self._draining.items()
        for node_id in sorted({node_id for node_id, _ in changed}):
            for state in self._pipeline.runs_on(node_id):
                self._pipeline.post(Tick(run_id=state.run.id))
        self._draining = draining

    def _tell(self) -> None:
        now = self._clock.now()
        ahead = {node.id: deadline for node, deadline in self._deadlines()}
        # An admin can move a deadline: the new one is reported again.
        self._reported = {key: at for key, at in self._reported.items() if ahead.get(key) == at}
        for node_id, deadline in ahead.items():
            if deadline <= now and node_id not in self._reported:
                self._reported[node_id] = deadline
                self._end_jobs(self._pipeline.nodes[node_id])

    def _end_jobs(self, node: Node) -> None:
        why = f": {node.drain_reason}" if node.drain_reason else ""
        message = f"node {node.name} reached its drain deadline{why}"
        for state in self._pipeline.runs_on(node.id):
            self._pipeline.post(NodeDrained(run_id=state.run.id, node_id=node.id, message=message))

    def _until_next(self) -> float | None:
        open_ones = [at for node, at in self._deadlines() if node.id not in self._reported]
        return max(0.0, min(open_ones) - self._clock.now()) if open_ones else None

    def _deadlines(self) -> list[tuple[Node, float]]:
        nodes = (self._pipeline.nodes[node_id] for node_id in sorted(self._pipeline.draining))
        return [(node, node.drain_deadline) for node in nodes if node.drain_deadline is not None]
