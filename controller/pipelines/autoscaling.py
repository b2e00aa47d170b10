"""The autoscaler's clock: it asks `lifecycle.services.scaling` for each group, and reports changes.

It decides nothing itself, and keeps nothing: the wanted number and the time of its last change are
committed with the run.
"""

from __future__ import annotations

import asyncio

from controller.clock import Clock
from controller.lifecycle import reports
from controller.lifecycle.model import Run
from controller.lifecycle.services import scaling
from controller.lifecycle.services.scaling import ScaleDecision
from controller.pipelines.run_pipeline import RunPipeline
from controller.traffic.statistics import Traffic
from fairlead.model.service import GroupScale, ReplicaGroup

PAUSE_SECONDS = 2.0


class Autoscaler:
    def __init__(self, pipeline: RunPipeline, traffic: Traffic, clock: Clock) -> None:
        self._pipeline = pipeline
        self._traffic = traffic
        self._clock = clock

    async def run(self) -> None:
        """Look at all services again and again, until cancelled."""
        while True:
            self.look()
            # Not woken by requests: a rate is a matter of time, and each look costs all services.
            await asyncio.sleep(PAUSE_SECONDS)

    def look(self) -> None:
        """Report each group whose load needs another number of replicas."""
        self._traffic.keep(self._pipeline.runs)
        for state in list(self._pipeline.runs.values()):
            run = state.run
            if run.service is None or run.suspended or run.reason is not None:
                continue
            for group in run.service.groups:
                scale = next((one for one in run.scales if one.group == group.name), None)
                if group.scaling is None or scale is None:
                    continue
                decided = self.decision(run, group, scale)
                if decided.wanted != scale.wanted:
                    self._pipeline.post(
                        reports.ReplicasWanted(
                            run_id=run.id,
                            group=group.name,
                            wanted=decided.wanted,
                            why=decided.why,
                        )
                    )

    def decision(self, run: Run, group: ReplicaGroup, scale: GroupScale) -> ScaleDecision:
        """Return what the load of this group asks for now."""
        now = self._clock.now()
        window = group.scaling.window if group.scaling is not None else 60.0
        load = self._traffic.group(run.id, group.name).window(window, now).load
        return scaling.decide(group, scale, load, now)
