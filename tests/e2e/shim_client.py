"""A task on a real shim, asked for by the shim's own client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import aiohttp
import msgspec

from fairlead.wire.job import JobSpec, SubmitRequest
from fairlead.wire.shim import Fence, TaskInfo, TaskRequest, TaskResources, TaskStatus
from runner.client import RunnerClient
from shim.client import ShimClient
from tests.support.dialling import dial_to
from tests.support.processes import ShimProcess
from tests.support.waiting import LONG

RUN, FENCE = "run-1", Fence(1, 1)


@asynccontextmanager
async def client_of(shim: ShimProcess) -> AsyncIterator[ShimClient]:
    connector = aiohttp.UnixConnector(str(shim.socket))
    async with aiohttp.ClientSession(connector=connector) as session:
        yield ShimClient(session, timeout=LONG, dial=dial_to(shim.socket))


def request(image: str, *, whole_node: bool = False) -> TaskRequest:
    return TaskRequest(
        run_id=RUN,
        run_name="fair-wind",
        allocation_id="place-1",
        image=image,
        resources=TaskResources(cpu=0.5, memory=128 << 20, whole_node=whole_node),
    )


async def until(client: ShimClient, task_id: str, status: TaskStatus) -> TaskInfo:
    async with asyncio.timeout(LONG), aclosing(client.events()) as events:
        await anext(events)
        info = await client.task(task_id)
        while info.status is not status:
            event = await anext(events)
            info = event.task if event.task and event.task.id == task_id else info
        return info


async def begin_job(info: TaskInfo, command: str, secrets: dict[str, str] | None = None) -> None:
    """Returns once it has said something."""
    ids = {"job_id": "j1", "attempt_id": info.id, "group": "main", "cookie": 0, "index": 0}
    run = {"run_id": info.run_id, "run_name": info.run_name, "job_count": 1, "group_job_count": 1}
    job = msgspec.convert({**ids, **run, "commands": [command]}, JobSpec)
    connector = aiohttp.UnixConnector(info.runner_socket)
    async with aiohttp.ClientSession("http://runner", connector=connector) as session:
        runner = RunnerClient(session)
        await runner.submit(SubmitRequest(job=job, secrets=secrets or {}))
        await runner.run()
        async with asyncio.timeout(LONG):
            while not (await runner.logs(0, wait=5)).frames:
                pass
