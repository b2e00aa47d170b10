"""The deadline of a drain, on a clock that the test moves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec

from controller.lifecycle.model import Node, RunState
from controller.nodes.drains import DrainDeadlines
from controller.pipelines.run_pipeline import RunPipeline
from controller.scheduling.scheduler import JobSubmittedPipeline
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AttemptStatus
from tests.doubles.clock import NOW, ManualClock
from tests.doubles.memory_store import MemoryDatabase, MemoryStore
from tests.support.attempts import attempt_with
from tests.support.waiting import eventually
from tests.unit.pipelines.parts import Ids, a_node, attempt_of, placed, steady_chance


@contextlib.asynccontextmanager
async def drained(
    state: RunState, node: Node, clock: ManualClock, database: MemoryDatabase | None = None
) -> AsyncIterator[RunPipeline]:
    store = MemoryStore(database or MemoryDatabase())
    await store.open()
    pipeline = RunPipeline(store, clock, steady_chance(), JobSubmittedPipeline(Ids()))
    pipeline.restore([state], [node])
    tasks = [
        asyncio.create_task(pipeline.run()),
        asyncio.create_task(DrainDeadlines(pipeline, clock).run()),
    ]
    try:
        yield pipeline
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await store.close()


def reason_of(pipeline: RunPipeline, state: RunState) -> Reason | None:
    return attempt_of(pipeline.runs[state.run.id]).reason


async def test_a_job_that_runs_at_the_deadline_ends_as_node_drained_with_the_admins_reason() -> (
    None
):
    state, clock = placed(AttemptStatus.RUNNING), ManualClock()
    node = a_node(draining=True, drain_reason="new disk", drain_deadline=NOW + 60.0)
    async with drained(state, node, clock) as pipeline:
        await pipeline.settled()
        assert reason_of(pipeline, state) is None
        clock.time += 60.0
        pipeline.set_node(msgspec.structs.replace(node, message="any change"), node.id)
        await eventually(lambda: reason_of(pipeline, state) is Reason.NODE_DRAINED)
        assert "new disk" in (attempt_of(pipeline.runs[state.run.id]).message or "")


async def test_a_deadline_that_passed_while_no_controller_was_there_is_met_at_once() -> None:
    state = placed(AttemptStatus.RUNNING)
    node = a_node(draining=True, drain_deadline=NOW - 1.0)
    async with drained(state, node, ManualClock()) as pipeline:
        assert await eventually(lambda: reason_of(pipeline, state)) is Reason.NODE_DRAINED


async def test_the_timer_itself_wakes() -> None:
    state, clock = placed(AttemptStatus.RUNNING), ManualClock()
    node = a_node(draining=True, drain_deadline=NOW + 0.05)
    async with drained(state, node, clock) as pipeline:
        await pipeline.settled()
        clock.time += 1.0
        assert await eventually(lambda: reason_of(pipeline, state)) is Reason.NODE_DRAINED


async def test_a_resumed_node_ends_nothing() -> None:
    state, clock = placed(AttemptStatus.RUNNING), ManualClock()
    node = a_node(draining=True, drain_deadline=NOW + 60.0)
    async with drained(state, node, clock) as pipeline:
        await pipeline.save_node(msgspec.structs.replace(node, draining=False), node.id)
        clock.time += 3600.0
        await pipeline.save_node(
            msgspec.structs.replace(node, draining=False, message="x"), node.id
        )
        await pipeline.settled()
        assert reason_of(pipeline, state) is None


async def test_a_place_that_is_kept_on_a_node_goes_back_once_it_drains() -> None:
    """Of a replica's job that waits for its next try: nothing else would wake its run."""
    state, clock = placed(AttemptStatus.RUNNING), ManualClock()
    (job,) = state.jobs
    ended = attempt_with(
        attempt_of(state),
        status=AttemptStatus.TERMINATED,
        reason=Reason.SIBLING_FAILED,
        terminating_at=NOW,
        container_gone=True,
        logs_complete=True,
        task_removed=True,
    )
    waiting = msgspec.structs.replace(job, attempts=(ended,), retry_at=NOW + 600.0)
    state = msgspec.structs.replace(state, jobs=(waiting,))
    node = a_node()
    async with drained(state, node, clock) as pipeline:
        await pipeline.settled()
        (place,) = pipeline.runs[state.run.id].allocations
        assert not place.releasing
        pipeline.set_node(msgspec.structs.replace(node, draining=True), node.id)
        await eventually(lambda: pipeline.runs[state.run.id].allocations[0].releasing)
        assert len(pipeline.runs[state.run.id].jobs[0].attempts) == 1


async def test_jobs_on_other_nodes_go_on() -> None:
    state = placed(AttemptStatus.RUNNING, node="n2")
    node = a_node(draining=True, drain_deadline=NOW - 1.0)
    async with drained(state, node, ManualClock()) as pipeline:
        await pipeline.settled()
        await pipeline.settled()
        assert reason_of(pipeline, state) is None
