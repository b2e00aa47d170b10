"""Secrets, services and their keys from Python, with and without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp.test_utils import TestServer

from fairlead import ApiError, AsyncClient, Client, NotFound, Task
from tests.unit.api.conftest import ADMIN_TOKEN
from tests.unit.cli.conftest import PlayedNode

SERVICE = {"type": "service", "name": "web", "image": "busybox", "port": 80, "auth": True}


@pytest.fixture
async def other(server: TestServer) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(str(server.make_url("")), ADMIN_TOKEN) as made:
        yield made


async def test_a_secret_is_stored_listed_without_its_value_and_deleted(
    client: Client, other: AsyncClient
) -> None:
    stored = await asyncio.to_thread(client.set_secret, "HF", "canary")
    shared = await other.set_secret("HF", "canary", shared=True)
    assert (stored.shared, shared.shared) == (False, True)
    listed = await asyncio.to_thread(client.secrets)
    assert [(one.name, one.shared) for one in listed] == [("HF", True), ("HF", False)]
    assert "canary" not in repr(listed)
    await asyncio.to_thread(client.delete_secret, "HF", shared=True)
    assert [one.shared for one in await other.secrets()] == [False]
    await other.delete_secret("HF")
    with pytest.raises(NotFound):
        await asyncio.to_thread(client.delete_secret, "HF")


async def test_a_list_of_several_pages_is_whole(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"S{number}" for number in range(5)]
    for name in names:
        await asyncio.to_thread(client.set_secret, name, "value")
    get = client.rest.get
    monkeypatch.setattr(client.rest, "get", lambda path, **query: get(path, **query, limit=2))
    assert [one.name for one in await asyncio.to_thread(client.secrets)] == names


async def test_a_service_is_changed_brought_back_and_opened_by_keys(
    client: Client, other: AsyncClient, node: PlayedNode
) -> None:
    service = {**SERVICE, "commands": ["serve"]}
    run = await asyncio.to_thread(client.submit, service)
    await node.runs("web")
    made = await asyncio.to_thread(client.deploy, run, {**service, "commands": ["serve --fast"]})
    assert [change.field for change in made.changes] == ["commands"]
    assert made.service.deployment == 1
    same = await other.deploy("web", {**service, "commands": ["serve --fast"]})
    assert (same.changes, same.service.deployment) == ((), 1)
    back = await asyncio.to_thread(run.rollback, 0)
    assert back.deployments[-1].of == 0
    found = await other.run("web")
    assert (await found.service()).deployment == 2
    with pytest.raises(ApiError, match="7"):
        await found.rollback(7)
    key = await asyncio.to_thread(client.add_service_key, "web", label="ci")
    assert (key.service, key.label, bool(key.secret)) == ("web", "ci", True)
    second = await other.add_service_key("web")
    assert {one.id for one in await other.service_keys("web")} == {key.id, second.id}
    await asyncio.to_thread(client.revoke_service_key, key)
    await other.revoke_service_key(second.id)
    assert await asyncio.to_thread(client.service_keys) == []


async def test_a_task_is_no_service(client: Client) -> None:
    run = await asyncio.to_thread(client.submit, Task(name="hello", commands=["true"]))
    with pytest.raises(ApiError, match="hello is a task, no service"):
        await asyncio.to_thread(run.service)


async def test_one_job_is_aborted_from_an_event_loop(other: AsyncClient, node: PlayedNode) -> None:
    run = await other.submit(Task(name="hello", commands=["true"]))
    await node.runs("hello")
    await run.abort_job(0)
    assert run.state.jobs[0].attempts[-1].termination_reason == "job_aborted_by_user"
