"""A replica is probed as long as it runs, and only what is new is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import msgspec

from controller.lifecycle.draft import Draft
from controller.lifecycle.model import RunState
from controller.lifecycle.reports import ProbeSeen, Report
from controller.lifecycle.services import readiness
from controller.links.base import NodeConnection
from controller.pipelines.performers.service_replicas import ReplicaProber
from controller.pipelines.to_node import AttemptContext
from fairlead.model.service import Probe
from tests.doubles.clock import NOW
from tests.doubles.node import FakeConnection, FakeShim
from tests.simulation.virtual import VirtualLoop
from tests.support.attempts import attempt_with
from tests.unit.pipelines.parts import Ids, NotedPipeline, attempt_of, context_of
from tests.unit.pipelines.test_registering import a_replica


class NotingPipeline(NotedPipeline):
    """Its state has what the probes that were posted say."""

    def post(self, report: Report) -> None:
        super().post(report)
        assert isinstance(report, ProbeSeen)
        (state,) = self.runs.values()
        draft = Draft(state, NOW, Ids(), lambda: 0.0)
        readiness.note_probe(draft, report)
        self.restore([draft.result()], ())


def probed(state: RunState, seconds: float, why: Callable[[int], str | None]) -> NotingPipeline:
    """Probe the replica for so many virtual seconds; `why` the n-th try fails."""
    pipeline, tries = NotingPipeline(state), iter(range(1_000_000))

    async def try_probe(
        context: AttemptContext, connection: NodeConnection, probe: Probe
    ) -> str | None:
        return why(next(tries))

    async def probe() -> None:
        prober = ReplicaProber(pipeline, try_probe)(context_of(state), FakeConnection(FakeShim()))
        try:
            await asyncio.wait_for(prober, seconds)
        except TimeoutError:
            return

    loop = VirtualLoop(Random(0))
    try:
        loop.run_until_complete(probe())
    finally:
        loop.close()
    return pipeline


def starting() -> RunState:
    state = a_replica()
    job = state.jobs[0]
    attempt = attempt_with(attempt_of(state), ready=False, registering_since=None)
    return msgspec.structs.replace(state, jobs=(msgspec.structs.replace(job, attempts=(attempt,)),))


def test_why_a_replica_is_not_ready_is_renewed() -> None:
    pipeline = probed(
        starting(), 60.0, lambda n: "nothing listens" if n < 3 else "answered with status 404"
    )
    (state,) = pipeline.runs.values()
    assert attempt_of(state).serving.probes[0].message == "answered with status 404"
    assert len(pipeline.posted) == 2


def test_a_reason_that_is_another_one_at_each_try_costs_few_commits() -> None:
    pipeline = probed(starting(), 60.0, lambda n: f"request {n} failed")
    assert len(pipeline.posted) == 7
