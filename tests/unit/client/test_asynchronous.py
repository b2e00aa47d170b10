"""The client of programs with an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp.test_utils import TestServer

from fairlead import AsyncClient, RunFailed, Task
from tests.unit.api.conftest import ADMIN_TOKEN
from tests.unit.cli.conftest import PlayedNode

HELLO = Task(name="hello", commands=["echo hello"])


@pytest.fixture
async def client(server: TestServer) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(str(server.make_url("")), ADMIN_TOKEN) as made:
        yield made


async def test_output_is_followed_while_the_run_is_awaited(
    client: AsyncClient, node: PlayedNode
) -> None:
    run = await client.submit(HELLO)
    waiting = asyncio.create_task(run.wait())
    pieces = run.logs(follow=True)
    await node.runs("hello")
    await node.prints("hello", b"hello\n")
    assert (await anext(pieces)).text == "hello\n"
    await node.ends("hello", 0)
    assert [piece async for piece in pieces] == []
    assert (await waiting).status == "done"


async def test_a_cancelled_wait_leaves_no_thread_and_the_run_goes_on(client: AsyncClient) -> None:
    run = await client.submit(HELLO)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await run.wait()
    assert not (await run.refresh()).is_final


async def test_a_failure_is_raised_where_it_is_awaited(
    client: AsyncClient, node: PlayedNode
) -> None:
    run = await client.submit(HELLO)
    await node.runs("hello")
    await node.ends("hello", 4)
    with pytest.raises(RunFailed) as caught:
        await run.wait()
    assert caught.value.exit_status == 4


async def test_several_runs_are_submitted_as_one_act(client: AsyncClient) -> None:
    tasks = [Task(name=name, commands=["true"]) for name in ("a", "b")]
    runs = await client.submit_together(tasks, names=["c", "d"])
    assert [run.name for run in runs] == ["c", "d"]
    assert (await runs[1].refresh()).status == "submitted"


async def test_many_runs_are_awaited_at_once(client: AsyncClient, node: PlayedNode) -> None:
    tasks = [Task(name=f"run-{number}", commands=["true"]) for number in range(20)]
    runs = await asyncio.gather(*(client.submit(task) for task in tasks))
    ends = asyncio.gather(*(run.wait() for run in runs))
    for run in runs:
        await node.runs(run.name)
        await node.ends(run.name, 0)
    assert {run.status for run in await ends} == {"done"}
    assert len(await client.runs(all=True)) == 20


async def test_events_are_followed_until_the_run_ends(
    client: AsyncClient, node: PlayedNode
) -> None:
    run = await client.submit(HELLO)
    await run.stop()
    events = [event async for event in client.events(run, follow=True)]
    assert events[0].run_id == run.id
    assert (await run.explain()).name == "hello"
