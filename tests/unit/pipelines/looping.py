"""A turn loop over a store, as it is between the start and the end of a controller."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

from controller.lifecycle.model import Node, NodeStatus, RunState
from controller.pipelines.run_pipeline import RunPipeline
from controller.scheduling.scheduler import JobSubmittedPipeline
from controller.store.base import Store
from tests.doubles.clock import ManualClock
from tests.support.kept import Kept
from tests.support.waiting import LONG
from tests.unit.pipelines.parts import Ids, a_node, steady_chance


class Listener:
    def __init__(self) -> None:
        self.told: list[RunState] = []

    def committed(self, touched: Sequence[RunState]) -> None:
        self.told.extend(touched)


S = TypeVar("S", bound=Store)
NODES = (a_node("n1", status=NodeStatus.CONNECTING),)


@contextlib.asynccontextmanager
async def working_over(
    database: Kept, misbehave: Callable[[Store], S], nodes: Sequence[Node] = NODES
) -> AsyncIterator[tuple[S, RunPipeline, Listener, asyncio.Task[None]]]:
    """A pipeline at work over a store that does not behave, which is the first result."""
    store = misbehave(database.store())
    await store.open()
    snapshot = await store.load()
    chance = steady_chance()
    pipeline = RunPipeline(store, ManualClock(), chance, JobSubmittedPipeline(Ids()))
    listener = Listener()
    pipeline.restore(snapshot.runs, snapshot.nodes or (nodes if snapshot.runs else ()))
    pipeline.listen(listener)
    loop = asyncio.create_task(pipeline.run())
    try:
        yield store, pipeline, listener, loop
    finally:
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        await store.close()


@contextlib.asynccontextmanager
async def working(
    database: Kept,
    misbehave: Callable[[Store], Store] = lambda store: store,
    nodes: Sequence[Node] = NODES,
) -> AsyncIterator[tuple[RunPipeline, Listener, asyncio.Task[None]]]:
    async with working_over(database, misbehave, nodes) as (_, pipeline, listener, loop):
        yield pipeline, listener, loop


async def until_committed(
    pipeline: RunPipeline, run_id: str | None, wanted: Callable[[], bool]
) -> None:
    async with asyncio.timeout(LONG), pipeline.watch(run_id) as changed:
        while not wanted():
            await changed.wait()
            changed.clear()
