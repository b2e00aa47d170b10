"""Engines that stay away: a node is connected, and nothing can be started, ended or removed there.

An engine that is restarted is waited for, since its jobs may go on (`live-restore`). One that stays
away for as long as a node may be silent is the node's fault: what has not started there, or has
ended, is given up as on a lost node. A job that runs goes on as long as its runner answers.
"""

from __future__ import annotations

import asyncio

from controller.clock import Clock
from controller.lifecycle.inventory import has_silent_engine
from controller.lifecycle.model import Node, RunState
from controller.lifecycle.reports import EngineGone
from controller.pipelines.run_pipeline import RunPipeline
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES, AttemptStatus

PAUSE_SECONDS = 10.0


class EngineAbsences:
    """Watches the nodes whose engine does not answer. `after`: seconds until they are given up; a
    controller that begins counts from its start."""

    def __init__(self, pipeline: RunPipeline, clock: Clock, after: float) -> None:
        self._pipeline = pipeline
        self._clock = clock
        self._after = after
        self._since: dict[str, float] = {}

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(PAUSE_SECONDS)

    def look(self) -> None:
        """Report the engines that have been away for too long, again and again: more attempts may
        end there."""
        now = self._clock.now()
        away = [
            one for one in self._pipeline.nodes.values() if one.capacity.engine_error is not None
        ]
        # An engine that answered in between counts from zero again.
        self._since = {node.id: self._since.get(node.id, now) for node in away}
        for node in away:
            seconds = now - self._since[node.id]
            if seconds >= self._after and has_silent_engine(node):
                self._report(node, seconds)

    def _report(self, node: Node, seconds: float) -> None:
        message = (
            f"the engine of node {node.name} has not answered for {seconds:.0f} s: "
            f"{node.capacity.engine_error}"
        )
        for state in self._pipeline.runs_on(node.id):
            if _waits_for_the_engine(state, node.id):
                self._pipeline.post(
                    EngineGone(run_id=state.run.id, node_id=node.id, message=message)
                )


def _waits_for_the_engine(state: RunState, node_id: str) -> bool:
    return any(
        attempt.node_id == node_id
        and attempt.status is not AttemptStatus.RUNNING
        and attempt.status not in FINAL_ATTEMPT_STATUSES
        for job in state.jobs
        for attempt in job.attempts[-1:]
    )
