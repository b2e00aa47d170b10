"""A turn loop over a store, as it is between the start and the end of a controller."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from controller.lifecycle.model import Node, NodeStatus, RunState
from controller.pipelines.run_pipeline import RunPipeline
from controller.scheduling.scheduler import JobSubmittedPipeline
from controller.store.base import Store
from tests.doubles.clock import ManualClock
from tests.support.kept import Kept
from tests.unit.pipelines.parts import Ids, a_node, steady_chance


class Listener:
    def __init__(self) -> None:
        self.told: list[RunState] = []

    def committed(self, touched: Sequence[RunState]) -> None:
        self.told.extend(touched)


@contextlib.asynccontextmanager
async def working(
    database: Kept,
    around: Callable[[Store], Store] = lambda store: store,
    nodes: Sequence[Node] = (a_node("n1", status=NodeStatus.CONNECTING),),
) -> AsyncIterator[tuple[RunPipeline, Listener, asyncio.Task[None]]]:
    store = around(database.store())
    await store.open()
    snapshot = await store.load()
    chance = steady_chance()
    turns = RunPipeline(store, ManualClock(), chance, JobSubmittedPipeline(Ids()))
    listener = Listener()
    turns.restore(snapshot.runs, snapshot.nodes or (nodes if snapshot.runs else ()))
    turns.listen(listener)
    loop = asyncio.create_task(turns.run())
    try:
        yield turns, listener, loop
    finally:
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        await store.close()


async def until_committed(
    turns: RunPipeline, run_id: str | None, wanted: Callable[[], bool]
) -> None:
    async with asyncio.timeout(30), turns.watch(run_id) as changed:
        while not wanted():
            await changed.wait()
            changed.clear()
