"""The effect of a dev environment that runs: looks whether it is in use, and the warning before its
end."""

from __future__ import annotations

import asyncio

from controller.clock import Clock
from controller.lifecycle import reports
from controller.lifecycle.attempts import inactivity
from controller.lifecycle.attempts.inactivity import Look, Watched
from controller.lifecycle.effects import EffectKind
from controller.links.base import NodeConnection, RunnerApi
from controller.pipelines import to_node
from controller.pipelines.effects import Performer
from controller.pipelines.run_pipeline import RunPipeline
from controller.pipelines.to_node import AttemptContext, RetryLater
from controller.traffic.statistics import GroupStatistics, Traffic
from fairlead.model.dev_environment import BROWSER_PORTS, GROUP, DevEnvironment, Ide
from fairlead.wire.runner import JobMetrics
from runner.client import RunnerError


def look_at(
    wanted: DevEnvironment, metrics: JobMetrics, requests: GroupStatistics, now: float
) -> Look:
    """Return whether the dev environment is in use, by its connections and the proxy's requests.

    Connections of the proxy do not count, because it keeps unused ones open; its requests count.
    """
    connections, port = metrics.connections, BROWSER_PORTS.get(wanted.ide or Ide.VSCODE)
    if port is None:
        return Look(at=now, in_use=connections > 0)
    connections -= metrics.relayed.get(str(port), 0)
    in_use = connections > 0 or requests.in_flight > 0
    return Look(at=now, in_use=in_use, requested_at=requests.last_at)


class UseWatcher:
    """Look again and again, and report what is new.

    What was seen is kept beyond a lost connection; after a restart of the controller the count
    goes on from what was committed.
    """

    def __init__(self, pipeline: RunPipeline, traffic: Traffic, clock: Clock) -> None:
        self._pipeline = pipeline
        self._traffic = traffic
        self._clock = clock
        self._seen: dict[str, Watched] = {}

    async def __call__(self, context: AttemptContext, connection: NodeConnection) -> None:
        limit = inactivity.limit_of(context.state.run)
        runner = connection.runner(to_node.runner_socket(context))
        try:
            while (
                limit is not None
                and (attempt := to_node.current(self._pipeline.known, context)) is not None
            ):
                before = self._seen.get(attempt.id)
                if before is None:
                    before = inactivity.resumed(context.state.run, attempt)
                watched = await self._watched(context, runner, limit, before)
                self._seen[attempt.id] = watched
                if inactivity.needs_commit(attempt, limit, watched):
                    self._report(context, watched)
                await asyncio.sleep(inactivity.pause(limit))
        except asyncio.CancelledError:
            # A lost connection raises another error and keeps what was seen.
            self._seen.pop(context.attempt.id, None)
            raise

    def _report(self, context: AttemptContext, watched: Watched) -> None:
        self._pipeline.post(
            reports.InactivitySeen(
                run_id=context.state.run.id,
                attempt_id=context.attempt.id,
                at=watched.looked_at,
                idle_since=watched.idle_since,
            )
        )

    async def _watched(
        self, context: AttemptContext, runner: RunnerApi, limit: float, before: Watched | None
    ) -> Watched:
        """Look once, and warn in the log when the end is near. Raises RetryLater,
        RunnerUnavailable."""
        try:
            look = await self._look(context, runner)
            watched = inactivity.after(before, look)
            text = inactivity.warning(limit, watched)
            if text is not None:
                await runner.notice(f"inactive-{watched.idle_since}", text)
        except RunnerError as error:
            raise RetryLater(str(error)) from error
        return watched

    async def _look(self, context: AttemptContext, runner: RunnerApi) -> Look:
        """Raises RunnerUnavailable, RunnerError."""
        metrics, run = await runner.metrics(), context.state.run
        assert run.policy.dev_environment is not None
        requests = self._traffic.group(run.id, GROUP)
        return look_at(run.policy.dev_environment, metrics, requests, self._clock.now())


def performers(
    pipeline: RunPipeline, traffic: Traffic, clock: Clock
) -> dict[EffectKind, Performer]:
    return {EffectKind.WATCH_USE: UseWatcher(pipeline, traffic, clock)}
