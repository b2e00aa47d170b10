"""A run starts again in its container, or the answer says why it needs a new one."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from tests.unit.api.asking import HELLO, submit
from tests.unit.api.conftest import Controller
from tests.unit.cli.conftest import PlayedNode

API = TestClient[Any, Any]


async def again(api: API, **fields: object) -> tuple[int, dict[str, Any]]:
    body = {"configuration": {**HELLO, **fields}}
    async with api.post("/v1/runs/hello/start-again", json=body) as answer:
        return answer.status, await answer.json()


async def refused(api: API, **fields: object) -> str:
    status, body = await again(api, **fields)
    assert (status, body["error"]["code"]) == (409, "not_in_place"), body
    return str(body["error"]["message"])


async def test_a_running_job_starts_again_with_what_may_differ(
    api: API, controller: Controller
) -> None:
    node = PlayedNode(controller)
    await submit(api, name="hello", starts_again=True)
    assert "its job is not running" in await refused(api, commands=["two"])
    await node.runs("hello")
    status, run = await again(api, commands=["two"])
    (attempt,) = run["jobs"][0]["attempts"]
    starts = attempt["starts"]
    assert (status, starts["asked"], starts["begun"], starts["refused"]) == (200, 1, 0, None)
    assert "its image has changed" in await refused(api, image="other")
    assert "policy" in await refused(api, priority=1)
    async with api.get("/v1/runs/hello/submission") as answer:
        assert (await answer.json())["configuration"]["commands"] == ["two"]


@pytest.mark.parametrize("fields", [{"nodes": 2}, {"on_time_limit": "requeue", "max_duration": 60}])
async def test_a_container_waits_only_for_a_task_with_one_job(
    api: API, fields: dict[str, object]
) -> None:
    await submit(api, name="hello", configuration={**HELLO, **fields}, starts_again=True)
    assert "a task with one job" in await refused(api, **fields)


async def test_a_run_that_was_submitted_without_it_does_not_start_again(api: API) -> None:
    await submit(api, name="hello")
    assert "a task with one job" in await refused(api)
