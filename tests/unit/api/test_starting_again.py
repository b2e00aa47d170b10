"""A run starts again in its container, or the answer says why it needs a new one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from controller.lifecycle.reports import Report
from tests.unit.api.asking import HELLO, submit
from tests.unit.api.conftest import Controller
from tests.unit.api.test_users import Person, ada, admin, client
from tests.unit.cli.conftest import PlayedNode

__all__ = ["ada", "admin", "client"]

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


async def test_an_admin_cannot_start_a_run_of_another_user_again(
    ada: Person, admin: Person
) -> None:
    """The commands of the next start would read the owner's secrets."""
    body = {"configuration": HELLO, "name": "hello", "starts_again": True}
    assert (await ada("POST", "/v1/runs", **body))[0] == 201
    changed = {**HELLO, "commands": ["env"]}
    status, answer = await admin("POST", "/v1/runs/hello/start-again", configuration=changed)
    assert (status, answer["error"]["code"]) == (403, "not_owner")
    assert "fairlead rerun hello" in answer["error"]["message"]
    watcher = {"watcher": "here", "seconds": 60}
    status, _ = await admin("POST", "/v1/runs/hello/watchers", **watcher)
    assert status == 403


async def test_of_two_changes_at_once_one_counts_and_the_other_is_overtaken(
    api: API, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = PlayedNode(controller)
    await submit(api, name="hello", starts_again=True)
    await node.runs("hello")
    pipeline, both, held = controller.pipeline, asyncio.Barrier(2), list[Report]()

    async def report(wish: Report) -> None:
        held.append(wish)
        await both.wait()
        # One step of the loop hands in both: one turn decides about them.
        while held:
            pipeline.post(held.pop())
        await pipeline.settled()

    monkeypatch.setattr(pipeline, "report", report)
    answers = await asyncio.gather(again(api, commands=["two"]), again(api, commands=["three"]))
    (_, run), (status, body) = sorted(answers, key=lambda one: one[0])
    assert (status, body["error"]["code"], body["error"]["field"]) == (409, "overtaken", "run")
    assert run["jobs"][0]["attempts"][0]["starts"]["asked"] == 1
    async with api.get("/v1/runs/hello/submission") as answer:
        commands = (await answer.json())["configuration"]["commands"]
    assert [commands] == [
        wish
        for wish, (status, _) in zip((["two"], ["three"]), answers, strict=True)
        if status == 200
    ]


async def test_a_watcher_is_noted_until_it_leaves(api: API, controller: Controller) -> None:
    await submit(api, name="hello", starts_again=True)
    for seconds, there in ((60, 1), (0, 0)):
        body = {"watcher": "here", "seconds": seconds}
        async with api.post("/v1/runs/hello/watchers", json=body) as answer:
            assert answer.status == 200, await answer.text()
        async with api.get("/v1/runs/hello") as answer:
            (attempt,) = (await answer.json())["jobs"][0]["attempts"]
        starts = attempt["starts"]
        assert (starts["watched_until"] is not None) == bool(there)
        # Its id means nothing to those who read the run.
        assert "watchers" not in starts
    body = {"watcher": "here", "seconds": 61}
    async with api.post("/v1/runs/hello/watchers", json=body) as answer:
        assert (answer.status, (await answer.json())["error"]["field"]) == (400, "seconds")
