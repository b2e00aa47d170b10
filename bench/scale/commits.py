"""How fast jobs are decided, placed and committed: the turn loop, the scheduler and a database on
this machine's disk, without the API and without nodes that answer.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from bench.scale.parts import Row
from bench.scheduling import JOBS, NODES, new_job, new_node
from controller.clock import SystemClock, system_chance
from controller.commands.serve import prepare_for_many_nodes
from controller.pipelines.run_pipeline import RunPipeline
from controller.scheduling.scheduler import JobSubmittedPipeline
from controller.store.sql import SqlStore
from controller.store.sqlite import SqliteDatabase
from fairlead.model.statuses import AttemptStatus

GOAL = 500


def measure() -> list[Row]:
    prepare_for_many_nodes()
    with tempfile.TemporaryDirectory() as folder:
        wall, cpu = asyncio.run(_placed(Path(folder)))
    figure = f"{JOBS / wall:.0f} jobs/s ({JOBS / cpu:.0f} per s of CPU)"
    what = f"{JOBS} runs handed in at once, {NODES} nodes: decided, placed, committed"
    return [
        Row(what, figure, f"≥ {GOAL} jobs/s", JOBS / wall >= GOAL, "scale.commits", JOBS / wall)
    ]


async def _placed(folder: Path) -> tuple[float, float]:
    store, chance = SqlStore(SqliteDatabase(folder)), system_chance()
    await store.open()
    pipeline = RunPipeline(store, SystemClock(), chance, JobSubmittedPipeline(chance.new_id))
    pipeline.restore((), [new_node(number) for number in range(NODES)])
    states = [new_job(8) for _ in range(JOBS)]
    loop = asyncio.create_task(pipeline.run())
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(pipeline.admit(state) for state in states))
    await pipeline.settled()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    placed = {state.jobs[0].attempts[-1].status for state in pipeline.runs.values()}
    assert placed == {AttemptStatus.PROVISIONING}, placed
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)
    await store.close()
    return wall, cpu
