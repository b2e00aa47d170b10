"""Fleets, and what an admin does with nodes beside adding them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer

from controller.disk import Disk
from controller.lifecycle.model import NodeStatus, QuarantinedTask
from controller.lifecycle.reports import NodeGone, StopRequested
from controller.store.base import FULL_BYTES, Peer, Sight
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AllocationState
from tests.unit.api.asking import LOCAL, added, hold, shape_of, submit
from tests.unit.api.conftest import USER_TOKEN, Controller


async def test_a_cordoned_node_says_why_until_it_is_uncordoned(api: TestClient[Any, Any]) -> None:
    await added(api, LOCAL)
    async with api.post("/v1/nodes/here/cordon", json={"reason": "noisy"}) as answer:
        node = await answer.json()
    assert (node["cordoned"], node["cordon_reason"], node["draining"]) == (True, "noisy", False)
    async with api.post("/v1/nodes/here/uncordon") as answer:
        node = await answer.json()
    assert (node["cordoned"], node["cordon_reason"]) == (False, None)


async def test_a_drains_deadline_is_counted_from_now_and_gone_with_the_drain(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    node = await added(api, LOCAL)
    created = controller.pipeline.nodes[node["id"]].created_at
    async with api.post("/v1/nodes/here/drain", json={"deadline": 3600}) as answer:
        assert (await answer.json())["drain_deadline"] is not None
    deadline = controller.pipeline.nodes[node["id"]].drain_deadline
    assert deadline is not None
    assert deadline >= created + 3600
    async with api.post("/v1/nodes/here/resume") as answer:
        assert (await answer.json())["drain_deadline"] is None


async def test_a_drains_deadline_is_not_before_now(api: TestClient[Any, Any]) -> None:
    await added(api, LOCAL)
    async with api.post("/v1/nodes/here/drain", json={"deadline": -1}) as answer:
        assert await shape_of(answer) == (400, "invalid", "deadline")


async def test_attributes_and_fleet_of_a_node_change(api: TestClient[Any, Any]) -> None:
    await added(api, {**LOCAL, "attributes": {"rack": "r1", "zone": "a"}})
    async with api.post("/v1/fleets", json={"name": "big", "placement": "rack"}) as answer:
        assert answer.status == 201
    change = {"fleet": "big", "attributes": {"rack": "r2", "zone": None}}
    async with api.patch("/v1/nodes/here", json=change) as answer:
        node = await answer.json()
    assert (node["fleet"], node["attributes"]) == ("big", {"rack": "r2"})
    async with api.get("/v1/fleets") as answer:
        fleets = {fleet["name"]: fleet for fleet in (await answer.json())["fleets"]}
    assert fleets["big"] == {
        "name": "big",
        "placement": "rack",
        "attributes": {},
        "nodes": ["here"],
        "machines": None,
        "images": [],
    }
    assert fleets["default"]["nodes"] == []


@pytest.mark.parametrize(
    ("method", "path", "body", "refusal"),
    [
        ("POST", "/v1/nodes", {**LOCAL, "fleet": "none"}, (400, "invalid", "fleet")),
        (
            "POST",
            "/v1/nodes",
            {**LOCAL, "attributes": {"cpu": "x"}},
            (400, "invalid", "attributes"),
        ),
        ("POST", "/v1/nodes", {**LOCAL, "attributes": {"-": "x"}}, (400, "invalid", "attributes")),
        ("POST", "/v1/nodes", {**LOCAL, "attributes": {"a": ""}}, (400, "invalid", "attributes")),
        ("POST", "/v1/fleets", {"name": "Big"}, (400, "invalid", "name")),
        ("POST", "/v1/fleets", {"name": "default"}, (409, "conflict", "name")),
        ("POST", "/v1/fleets", {"name": "big", "placement": "?"}, (400, "invalid", "placement")),
        ("PATCH", "/v1/fleets/none", {}, (404, "not_found", "fleet")),
        ("DELETE", "/v1/fleets/default", None, (409, "conflict", "fleet")),
    ],
)
async def test_a_wrong_fleet_or_attribute_is_refused_by_its_field(
    api: TestClient[Any, Any],
    method: str,
    path: str,
    body: Any,
    refusal: tuple[int, str, str],
) -> None:
    async with api.request(method, path, json=body) as answer:
        assert await shape_of(answer) == refusal


async def test_a_fleet_with_nodes_is_not_removed(api: TestClient[Any, Any]) -> None:
    async with api.post("/v1/fleets", json={"name": "big"}) as answer:
        assert answer.status == 201
    await added(api, {**LOCAL, "fleet": "big"})
    async with api.delete("/v1/fleets/big") as answer:
        assert await shape_of(answer) == (409, "fleet_not_empty", "fleet")
        assert "here" in await answer.text()


async def test_a_lost_node_is_removed_with_its_jobs_and_their_places_are_free(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    node = await added(api, LOCAL)
    run = await submit(api, name="busy")
    await hold(controller, run, node["id"])
    async with api.delete("/v1/nodes/here", params={"lost": "true"}) as answer:
        assert answer.status == 200
    state = controller.pipeline.runs[run["id"]]
    assert [place.state for place in state.allocations] == [AllocationState.RELEASED]
    first = state.jobs[0].attempts[0]
    assert (first.reason, first.cleanup_unknown) == (Reason.INSTANCE_UNREACHABLE, False)
    assert node["id"] not in controller.pipeline.nodes


async def test_a_connected_node_is_not_lost(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    node = controller.pipeline.nodes[(await added(api, LOCAL))["id"]]
    await controller.pipeline.save_node(
        msgspec.structs.replace(node, status=NodeStatus.CONNECTED), node.id
    )
    async with api.delete("/v1/nodes/here", params={"lost": "true"}) as answer:
        assert await shape_of(answer) == (409, "node_connected", "lost")


async def test_a_node_with_places_of_ended_runs_is_removed_as_lost_only(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    node = await added(api, LOCAL)
    run = await submit(api, name="over")
    await hold(controller, run, node["id"])
    await controller.pipeline.report(StopRequested(run_id=run["id"], abort=True, by="admin"))
    await controller.pipeline.report(
        NodeGone(
            run_id=run["id"],
            node_id=node["id"],
            reason=Reason.INSTANCE_UNREACHABLE,
            message="silent",
        )
    )
    async with api.get("/v1/nodes/here") as answer:
        assert (await answer.json())["ended_runs"] == ["over"]
    async with api.delete("/v1/nodes/here") as answer:
        assert await shape_of(answer) == (409, "node_busy", "node")
        assert "--lost" in await answer.text()
    async with api.delete("/v1/nodes/here", params={"lost": "true"}) as answer:
        assert answer.status == 200


async def test_a_task_in_quarantine_is_listed_and_marked_for_its_end(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    node = controller.pipeline.nodes[(await added(api, LOCAL))["id"]]
    task = QuarantinedTask(
        id="t1", run_id="r", run_name="lonely", allocation_id="p", status="running", submitted_at=0
    )
    await controller.pipeline.save_node(msgspec.structs.replace(node, quarantine=(task,)), node.id)
    async with api.get("/v1/nodes/here/tasks") as answer:
        (shown,) = (await answer.json())["tasks"]
    assert (shown["id"], shown["run_name"], shown["stopping"]) == ("t1", "lonely", False)
    async with api.delete("/v1/nodes/here") as answer:
        assert await shape_of(answer) == (409, "node_busy", "node")
    async with api.delete("/v1/nodes/here/tasks/t2") as answer:
        assert await shape_of(answer) == (404, "not_found", "task")
    async with api.delete("/v1/nodes/here/tasks/t1") as answer:
        assert (await answer.json())["quarantined"] == 1
    assert controller.pipeline.nodes[node.id].quarantine[0].stopping


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/nodes/here/cordon"),
        ("POST", "/v1/nodes/here/uncordon"),
        ("PATCH", "/v1/nodes/here"),
        ("DELETE", "/v1/nodes/here/tasks/t1"),
        ("POST", "/v1/fleets"),
        ("PATCH", "/v1/fleets/big"),
        ("DELETE", "/v1/fleets/big"),
    ],
)
async def test_only_an_admin_changes_fleets_and_nodes(
    server: TestServer, method: str, path: str
) -> None:
    headers = {"Authorization": f"Bearer {USER_TOKEN}"}
    body = {"name": "big"} if (method, path) == ("POST", "/v1/fleets") else {}
    async with (
        TestClient(server) as client,
        client.request(method, path, json=body, headers=headers) as answer,
    ):
        assert await shape_of(answer) == (403, "forbidden", None)


async def test_a_user_sees_nodes_without_the_names_of_others_runs(
    api: TestClient[Any, Any], server: TestServer, controller: Controller
) -> None:
    node = await added(api, LOCAL)
    await hold(controller, await submit(api, name="secret"), node["id"])
    async with api.get("/v1/nodes/here") as answer:
        assert (await answer.json())["runs"] == ["secret"]
    headers = {"Authorization": f"Bearer {USER_TOKEN}"}
    async with TestClient(server, headers=headers) as ada:
        for path in ("/v1/nodes/here", "/v1/nodes"):
            async with ada.get(path) as answer:
                text = await answer.text()
            assert ("a run of admin" in text, "secret" in text) == (True, False)
        async with ada.get("/v1/nodes/here/tasks") as answer:
            assert (await shape_of(answer))[:2] == (403, "forbidden")
        body = {"configuration": {"type": "task", "commands": ["true"]}, "name": "secret"}
        async with ada.post("/v1/runs", json=body) as answer:
            assert await shape_of(answer) == (409, "name_taken", "name")
            assert "a live run of admin is named secret already; give another" in (
                await answer.text()
            )


def a_peer(name: str, seen_at: float, *, leads: bool = False) -> Peer:
    return Peer(
        id=name,
        url=f"http://{name}",
        version="1.2",
        keys="k",
        started_at=0.0,
        seen_at=seen_at,
        leads=leads,
    )


async def test_controllers_that_share_the_database_are_listed(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    async with api.get("/v1/controllers") as answer:
        assert await answer.json() == {"controllers": []}
    peers = (a_peer("a", 99.0, leads=True), a_peer("b", 98.0), a_peer("c", 9.0))
    controller.store.plant_sight(Sight(now=100.0, peers=peers, may_lead=False))
    async with api.get("/v1/controllers") as answer:
        listed = (await answer.json())["controllers"]
    assert [(one["url"], one["status"]) for one in listed] == [
        *(("http://a", "leads"), ("http://b", "waits"), ("http://c", "gone"))
    ]


async def test_of_a_controller_that_was_started_again_the_earlier_starts_are_not_listed(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    rows = ("a", 1.0), ("b", 2.0), ("a", 3.0), ("b", 99.0), ("c", 4.0)
    peers = [
        msgspec.structs.replace(a_peer(name, seen_at), id=str(number))
        for number, (name, seen_at) in enumerate(rows)
    ]
    controller.store.plant_sight(Sight(now=100.0, peers=tuple(peers), may_lead=False))
    async with api.get("/v1/controllers") as answer:
        listed = (await answer.json())["controllers"]
    assert [(one["id"], one["status"]) for one in listed] == [
        *(("2", "gone"), ("3", "waits"), ("4", "gone"))
    ]


async def test_how_much_room_the_disks_of_controllers_have_is_listed(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    free = (None, FULL_BYTES, FULL_BYTES - 1)
    peers = [msgspec.structs.replace(a_peer("a", 99.0), free=amount) for amount in free]
    controller.store.plant_sight(Sight(now=100.0, peers=tuple(peers), may_lead=False))
    async with api.get("/v1/controllers") as answer:
        listed = (await answer.json())["controllers"]
    assert [(one["disk_free_bytes"], one["is_disk_full"]) for one in listed] == [
        *((None, False), (FULL_BYTES, False), (FULL_BYTES - 1, True))
    ]


async def test_the_health_says_that_the_disk_is_full(
    api: TestClient[Any, Any], controller: Controller, tmp_path: Path
) -> None:
    disk = controller.service.disk = Disk(tmp_path)
    for free, said in ((None, "ok"), (FULL_BYTES, "ok"), (FULL_BYTES - 1, "full")):
        disk.free = free
        async with api.get("/v1/health") as answer:
            assert (answer.status, (await answer.json())["disk"]) == (200, said)


async def test_a_leader_whose_lease_has_run_out_is_not_listed_as_leading(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    peers = (a_peer("a", 94.5, leads=True), a_peer("b", 99.0))
    controller.store.plant_sight(Sight(now=100.0, peers=peers, may_lead=True))
    async with api.get("/v1/controllers") as answer:
        listed = (await answer.json())["controllers"]
    assert [one["status"] for one in listed] == ["gone", "waits"]
