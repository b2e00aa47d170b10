"""The stream of events: what was, then what comes, each once."""

from __future__ import annotations

import json
from typing import Any

from aiohttp.test_utils import TestClient, TestServer

from tests.unit.api.asking import error_of, submit
from tests.unit.api.conftest import USER_TOKEN


async def test_a_runs_story_is_streamed_to_its_end(api: TestClient[Any, Any]) -> None:
    await submit(api, name="other")
    run = await submit(api, name="hello")
    async with api.get("/v1/events/watch", params={"run": "hello"}) as answer:
        first = json.loads(await answer.content.readline())["event"]
        await api.post("/v1/runs/hello/stop", json={})
        told = [first] + [json.loads(line)["event"] async for line in answer.content]
    told = [event for event in told if event is not None]
    assert {event["run_id"] for event in told} == {run["id"]}
    seqs = [event["seq"] for event in told]
    assert seqs == sorted(set(seqs))
    assert "terminated" in [event["to_status"] for event in told if event["kind"] == "run"]


async def test_a_stream_goes_on_after_its_cursor(api: TestClient[Any, Any]) -> None:
    await submit(api, name="hello")
    await api.post("/v1/runs/hello/stop", json={})
    async with api.get("/v1/events", params={"run": "hello"}) as answer:
        story = (await answer.json())["events"]
    query = {"run": "hello", "cursor": str(story[0]["seq"])}
    async with api.get("/v1/events/watch", params=query) as answer:
        rest = [json.loads(line)["event"] async for line in answer.content]
    assert rest == story[1:]


async def test_the_story_of_anothers_run_is_not_told(
    api: TestClient[Any, Any], server: TestServer
) -> None:
    await submit(api, name="hello")
    headers = {"Authorization": f"Bearer {USER_TOKEN}"}
    async with api.get("/v1/events/watch", params={"run": "hello"}, headers=headers) as answer:
        assert (await error_of(answer))[:2] == (404, "not_found")
