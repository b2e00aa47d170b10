"""Services over REST: what is shown, what changes in place, and what comes back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import TestClient

from controller.clock import iso
from controller.web.pages.services import without_requests
from fairlead.cli.commands.services.deployments import requests_of
from fairlead.documents.services import ReplicaView
from tests.unit.api.conftest import Controller

SERVICE = {"type": "service", "image": "busybox", "commands": ["serve"], "port": 80}


async def submit(api: TestClient[Any, Any], **more: Any) -> None:
    body = {"configuration": {**SERVICE, **more}, "name": "web"}
    async with api.post("/v1/runs", json=body) as response:
        assert response.status == 201, await response.text()


async def deploy(
    api: TestClient[Any, Any], *, only_ask: bool = False, **more: Any
) -> tuple[int, dict[str, Any]]:
    body = {"configuration": {**SERVICE, **more}, "only_ask": only_ask}
    async with api.post("/v1/services/web/deployments", json=body) as response:
        return response.status, await response.json()


async def test_a_service_is_shown_with_its_replicas_and_why_they_get_no_requests(
    api: TestClient[Any, Any],
) -> None:
    await submit(api, replicas=2)
    async with api.get("/v1/services/web") as response:
        shown = await response.json()

    assert (shown["name"], shown["path"], shown["deployment"]) == ("web", "/services/web/", 0)
    assert [group["wanted"] for group in shown["groups"]] == [2]
    assert len(shown["replicas"]) == 2
    assert "it is submitted" in shown["replicas"][0]["not_ready"]
    assert [one["state"] for one in shown["deployments"]] == ["rolling"]


async def test_a_replica_of_several_nodes_is_shown_once(api: TestClient[Any, Any]) -> None:
    await submit(api, replicas=2, nodes=2, share_nodes=True)
    async with api.get("/v1/services/web") as response:
        shown = await response.json()

    assert [group["nodes"] for group in shown["groups"]] == [2]
    assert [one["replica"] for one in shown["replicas"]] == [0, 1]
    assert [one["nodes"] for one in shown["replicas"]] == [[], []]


async def test_an_ejected_replica_is_shown_until_it_gets_requests_again(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    await submit(api, replicas=2)
    (state,) = controller.pipeline.runs.values()
    began = controller.traffic.now()
    controller.traffic.ejected(state.jobs[0].attempts[0].id, 30.0)
    async with api.get("/v1/services/web") as response:
        shown = await response.json()
    until = shown["replicas"][0]["ejected_until"]
    assert iso(began + 30.0) <= until <= iso(controller.traffic.now() + 30.0)
    assert shown["replicas"][1]["ejected_until"] is None
    first = msgspec.convert({**shown["replicas"][0], "not_ready": None}, ReplicaView)
    told = f"ejected until {until}: it answered with errors alone"
    assert (requests_of(first), without_requests(first)) == (told, told)


async def test_a_service_shows_the_requests_that_the_proxy_counted(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    await submit(api)
    run_id = next(iter(controller.pipeline.runs))
    controller.traffic.begin(run_id, "main", "a1")
    async with api.get("/v1/services/web") as response:
        shown = await response.json()

    assert [group["in_flight"] for group in shown["groups"]] == [1]


async def test_a_sleeping_service_says_that_it_sleeps(api: TestClient[Any, Any]) -> None:
    await submit(api, replicas="0..2", scaling={"metric": "rps", "target": 1})
    async with api.get("/v1/runs?name=web") as response:
        shown = (await response.json())["runs"][0]

    assert (shown["status"], shown["pending_reason"]) == (
        "pending",
        "it sleeps without replicas; a request wakes it",
    )


async def test_a_change_is_shown_field_by_field_before_it_is_made(
    api: TestClient[Any, Any],
) -> None:
    await submit(api)
    _, asked = await deploy(api, only_ask=True, commands=["serve --fast"], replicas=3)
    assert {one["field"] for one in asked["changes"]} == {"commands", "replicas"}
    assert asked["service"]["deployment"] == 0

    status, made = await deploy(api, commands=["serve --fast"], replicas=3)
    assert (status, made["service"]["deployment"]) == (200, 1)
    assert [one["state"] for one in made["service"]["deployments"]] == ["replaced", "rolling"]


async def test_a_file_that_changes_nothing_makes_no_deployment(api: TestClient[Any, Any]) -> None:
    await submit(api)
    _, made = await deploy(api)

    assert (made["changes"], made["service"]["deployment"]) == ([], 0)


async def test_a_change_of_a_variable_that_is_no_secret_is_shown(
    api: TestClient[Any, Any],
) -> None:
    await submit(api, env={"NCCL_DEBUG": "INFO"})
    _, asked = await deploy(api, only_ask=True, env={"NCCL_DEBUG": "WARN"})
    assert asked["changes"] == [{"field": "env.NCCL_DEBUG", "before": "INFO", "after": "WARN"}]


async def test_a_value_that_an_earlier_version_hid_is_no_change(
    api: TestClient[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr("fairlead.configuration.secrecy.may_be_secret", lambda *_: True)
        await submit(api, env={"NCCL_DEBUG": "INFO"})
    _, same = await deploy(api, only_ask=True, env={"NCCL_DEBUG": "INFO"})
    _, other = await deploy(api, only_ask=True, env={"NCCL_DEBUG": "WARN"})
    assert same["changes"] == []
    assert [one["field"] for one in other["changes"]] == ["group main: env.NCCL_DEBUG"]


async def test_other_values_of_variables_are_a_change_and_are_not_shown(
    api: TestClient[Any, Any],
) -> None:
    await submit(api, env={"A_KEY": "one", "B": "kept"})
    _, asked = await deploy(api, only_ask=True, env={"A_KEY": "canary", "B": "kept"})

    assert asked["changes"] == [
        {"field": "group main: env.A_KEY", "before": "(not shown)", "after": "(another value)"}
    ]
    assert "canary" not in str(asked)
    _, both = await deploy(
        api, only_ask=True, env={"A_KEY": "canary", "B": "kept", "C": "new"}, auth=False
    )
    fields = [one["field"] for one in both["changes"]]
    assert fields.count("group main: env.A_KEY") == 1
    assert [field for field in fields if field.endswith("env.C")] == ["env.C"]


async def test_what_cannot_change_in_place_is_refused_with_its_field(
    api: TestClient[Any, Any],
) -> None:
    await submit(api)
    status, answer = await deploy(api, band="batch")

    assert status == 409
    assert (answer["error"]["code"], answer["error"]["field"]) == ("not_in_place", "band")


async def test_without_an_earlier_deployment_there_is_nothing_to_go_back_to(
    api: TestClient[Any, Any],
) -> None:
    await submit(api)
    async with api.post("/v1/services/web/rollback", json={}) as response:
        answer = await response.json()

    assert response.status == 404
    assert "no earlier deployment that was rolled out" in answer["error"]["message"]


async def test_a_task_is_no_service(api: TestClient[Any, Any]) -> None:
    body = {"configuration": {"type": "task", "commands": ["true"]}, "name": "web"}
    async with api.post("/v1/runs", json=body) as response:
        assert response.status == 201
    async with api.get("/v1/services/web") as response:
        assert response.status == 409
