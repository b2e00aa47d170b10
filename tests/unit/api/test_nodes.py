from __future__ import annotations

from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer

from common.links.host_keys import fingerprint
from controller.lifecycle.model import Allocation, NodeCapacity, NodeStatus, Resources
from controller.lifecycle.reports import Placed
from fairlead.model.statuses import AllocationState
from tests.unit.api.asking import LOCAL, added, shape_of, submit
from tests.unit.api.conftest import HOST_KEY, RSA_HOST_KEY, USER_TOKEN, Controller

REMOTE = {"name": "there", "host": "node.example"}


async def test_a_local_node_is_added_and_listed(api: TestClient[Any, Any]) -> None:
    node = await added(api, LOCAL)
    assert (node["name"], node["status"], node["address"]) == (
        "here",
        "connecting",
        "/run/fairlead/shim.sock",
    )
    async with api.get("/v1/nodes") as answer:
        assert (await answer.json())["nodes"] == [node]


async def test_an_unknown_host_key_is_refused_with_all_fingerprints(
    api: TestClient[Any, Any],
) -> None:
    async with api.post("/v1/nodes", json=REMOTE) as answer:
        assert await shape_of(answer) == (422, "host_key_unknown", "accept_host_key")
        text = await answer.text()
    assert f"--accept-host-key {fingerprint(HOST_KEY)}" in text
    assert f"{fingerprint(RSA_HOST_KEY)} (RSA)" in text


async def test_another_host_key_than_the_accepted_is_refused_with_all_fingerprints(
    api: TestClient[Any, Any],
) -> None:
    async with api.post("/v1/nodes", json={**REMOTE, "accept_host_key": "SHA256:xyz"}) as answer:
        assert await shape_of(answer) == (422, "host_key_mismatch", "accept_host_key")
        text = await answer.text()
    assert f"{fingerprint(HOST_KEY)} (ED25519)" in text
    assert f"{fingerprint(RSA_HOST_KEY)} (RSA)" in text
    assert "SHA256:xyz" in text


@pytest.mark.parametrize("key", [HOST_KEY, RSA_HOST_KEY])
async def test_the_key_with_the_accepted_fingerprint_is_pinned(
    api: TestClient[Any, Any], controller: Controller, key: str
) -> None:
    node = await added(api, {**REMOTE, "accept_host_key": fingerprint(key)})
    assert node["host_key_fingerprint"] == fingerprint(key)
    assert controller.pipeline.nodes[node["id"]].address.host_key == key


@pytest.mark.parametrize(
    "change", [{"host_key": RSA_HOST_KEY}, {"accept_host_key": fingerprint(RSA_HOST_KEY)}]
)
async def test_another_host_key_is_pinned_and_nothing_else_changes(
    api: TestClient[Any, Any], controller: Controller, change: dict[str, str]
) -> None:
    node = await added(api, {**REMOTE, "port": 2222, "host_key": HOST_KEY, "user": "tunnel"})
    before = controller.pipeline.nodes[node["id"]]
    async with api.patch("/v1/nodes/there", json=change) as answer:
        assert answer.status == 200, await answer.text()
        shown = await answer.json()
    assert shown["host_key_fingerprint"] == fingerprint(RSA_HOST_KEY)
    pinned = msgspec.structs.replace(before.address, host_key=RSA_HOST_KEY)
    after = controller.pipeline.nodes[node["id"]]
    assert after.history[-1].what == "another host key was pinned"
    changed = msgspec.structs.replace(before, address=pinned, history=after.history)
    assert after == changed


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"accept_host_key": "SHA256:xyz"}, (422, "host_key_mismatch", "accept_host_key")),
        ({"accept_host_key": "md5:1"}, (400, "invalid", "accept_host_key")),
        ({"host_key": "not a key"}, (400, "invalid", "host_key")),
        (
            {"host_key": HOST_KEY, "accept_host_key": "SHA256:x"},
            (400, "invalid", "accept_host_key"),
        ),
    ],
)
async def test_a_wrong_host_key_leaves_the_pinned_one(
    api: TestClient[Any, Any], change: dict[str, str], told: tuple[int, str, str]
) -> None:
    await added(api, {**REMOTE, "host_key": HOST_KEY})
    async with api.patch("/v1/nodes/there", json={**change, "attributes": {"a": "b"}}) as answer:
        assert await shape_of(answer) == told
    async with api.get("/v1/nodes/there") as answer:
        node = await answer.json()
    assert (node["host_key_fingerprint"], node["attributes"]) == (fingerprint(HOST_KEY), {})


async def test_a_node_on_the_controllers_machine_has_no_host_key(
    api: TestClient[Any, Any],
) -> None:
    await added(api, LOCAL)
    async with api.patch("/v1/nodes/here", json={"host_key": HOST_KEY}) as answer:
        assert await shape_of(answer) == (400, "invalid", "host_key")


async def test_a_given_host_key_is_pinned_without_asking_the_host(
    api: TestClient[Any, Any],
) -> None:
    body = {"name": "away", "host": "nobody.example", "host_key": f"{HOST_KEY} a comment"}
    node = await added(api, body)
    assert node["host_key_fingerprint"] == fingerprint(HOST_KEY)


async def test_a_host_that_does_not_answer_is_said(api: TestClient[Any, Any]) -> None:
    async with api.post("/v1/nodes", json={"name": "x", "host": "nobody.example"}) as answer:
        assert await shape_of(answer) == (503, "node_unreachable", "host")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "No"}, "name"),
        ({"name": "n"}, "host"),
        ({"name": "n", "host": "h", "local_socket": "/s"}, "host"),
        ({"name": "n", "local_socket": "relative"}, "local_socket"),
        ({"name": "n", "host": "h", "socket": "relative"}, "socket"),
        ({"name": "n", "host": "-oProxyCommand=x"}, "host"),
        ({"name": "n", "host": "a..b"}, "host"),
        ({"name": "n", "host": "h", "user": "a b"}, "user"),
        ({"name": "n", "host": "a" * 300}, "host"),
        ({"name": "n", "host": "a b"}, "host"),
        ({"name": "n", "host": "h", "port": 0}, "port"),
        ({"name": "n", "host": "h", "host_key": "not a key"}, "host_key"),
        ({"name": "n", "host": "h", "accept_host_key": "md5:1"}, "accept_host_key"),
        (
            {"name": "n", "host": "h", "host_key": HOST_KEY, "accept_host_key": "SHA256:x"},
            "accept_host_key",
        ),
    ],
)
async def test_a_wrong_node_is_refused_by_its_field(
    api: TestClient[Any, Any], body: dict[str, Any], field: str
) -> None:
    async with api.post("/v1/nodes", json=body) as answer:
        assert await shape_of(answer) == (400, "invalid", field)


async def test_a_nodes_name_is_unique(api: TestClient[Any, Any]) -> None:
    await added(api, LOCAL)
    async with api.post("/v1/nodes", json=LOCAL) as answer:
        assert await shape_of(answer) == (409, "conflict", "name")


async def test_a_drained_node_says_why_until_it_is_resumed(api: TestClient[Any, Any]) -> None:
    await added(api, LOCAL)
    async with api.post("/v1/nodes/here/drain", json={"reason": "new disk"}) as answer:
        node = await answer.json()
    assert (node["draining"], node["drain_reason"]) == (True, "new disk")
    async with api.post("/v1/nodes/here/resume") as answer:
        node = await answer.json()
    assert (node["draining"], node["drain_reason"]) == (False, None)


async def test_a_recall_ends_with_the_drain_that_an_admin_ends(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    node = await added(api, LOCAL)
    pipeline = controller.pipeline
    recalled = msgspec.structs.replace(pipeline.nodes[node["id"]], draining=True, recalled_at=5.0)
    await pipeline.save_node(recalled, node["id"])
    for verb in ("resume", "drain", "resume"):
        async with api.post(f"/v1/nodes/here/{verb}", json={}) as answer:
            assert answer.status == 200
        # Else the drain would end the jobs at once: the recall's time is over.
        found = pipeline.nodes[node["id"]]
        assert (found.recalled_at, found.ended_recall) == (None, 5.0)


@pytest.mark.parametrize("verb", ["drain", "cordon"])
async def test_a_reason_without_end_is_refused(api: TestClient[Any, Any], verb: str) -> None:
    await added(api, LOCAL)
    async with api.post(f"/v1/nodes/here/{verb}", json={"reason": "x" * 501}) as answer:
        assert await shape_of(answer) == (400, "invalid", "reason")


async def test_a_connected_node_was_seen_just_now_and_a_lost_one_when_it_was_heard_last(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    node = await added(api, LOCAL)
    stored = controller.pipeline.nodes[node["id"]]
    seen = []
    for status in (NodeStatus.CONNECTED, NodeStatus.LOST):
        changed = msgspec.structs.replace(stored, status=status, last_seen_at=5.0)
        await controller.pipeline.save_node(changed, node["id"])
        async with api.get("/v1/nodes/here") as answer:
            seen.append((await answer.json())["last_seen_at"])
    assert seen[0] >= node["created_at"]
    assert seen[1] == "1970-01-01T00:00:05.000Z"


async def test_a_node_with_jobs_is_not_removed(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    node = await added(api, LOCAL)
    run = await submit(api, name="busy")
    job = run["jobs"][0]
    allocation = Allocation(
        id="a1",
        run_id=run["id"],
        job_id=job["id"],
        node_id=node["id"],
        state=AllocationState.HELD,
        resources=Resources(cpu=2.0, memory=512),
        created_at=0.0,
    )
    attempt_id = job["attempts"][0]["id"]
    placed = Placed(run_id=run["id"], attempt_id=attempt_id, allocation=allocation)
    await controller.pipeline.report(placed)
    async with api.delete("/v1/nodes/here") as answer:
        assert await shape_of(answer) == (409, "node_busy", "node")
        assert "busy" in await answer.text()
    async with api.get("/v1/nodes/here") as answer:
        shown = await answer.json()
    assert (shown["cpu_allocated"], shown["memory_allocated"], shown["runs"]) == (
        2.0,
        512,
        ["busy"],
    )
    async with api.get("/v1/runs/busy") as answer:
        assert (await answer.json())["jobs"][0]["attempts"][0]["node"] == "here"


async def test_a_removed_node_is_gone(api: TestClient[Any, Any]) -> None:
    await added(api, LOCAL)
    async with api.delete("/v1/nodes/here") as answer:
        assert answer.status == 200
    async with api.get("/v1/nodes/here") as answer:
        assert await shape_of(answer) == (404, "not_found", "node")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/nodes"),
        ("POST", "/v1/nodes/here/drain"),
        ("POST", "/v1/nodes/here/resume"),
        ("POST", "/v1/nodes/here/gpus/GPU-0/clear"),
        ("DELETE", "/v1/nodes/here"),
    ],
)
async def test_only_an_admin_changes_nodes(server: TestServer, method: str, path: str) -> None:
    headers = {"Authorization": f"Bearer {USER_TOKEN}"}
    body = LOCAL if path == "/v1/nodes" else {}
    async with (
        TestClient(server) as client,
        client.request(method, path, json=body, headers=headers) as answer,
    ):
        assert await shape_of(answer) == (403, "forbidden", None)


async def test_the_node_key_is_the_controllers(api: TestClient[Any, Any]) -> None:
    async with api.get("/v1/node-key") as answer:
        assert await answer.json() == {"public_key": "ssh-ed25519 AAAA"}


async def test_a_run_that_no_node_could_ever_hold_is_refused(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    node = await added(api, LOCAL)
    big = {"type": "task", "commands": ["x"], "resources": {"cpu": 64}}
    async with api.post("/v1/runs", json={"configuration": big}) as answer:
        assert answer.status == 201
    small = msgspec.structs.replace(
        controller.pipeline.nodes[node["id"]],
        status=NodeStatus.CONNECTED,
        capacity=NodeCapacity(cpu=4.0, memory=1 << 40),
    )
    await controller.pipeline.save_node(small, small.id)
    async with api.post("/v1/runs", json={"configuration": big}) as answer:
        assert await shape_of(answer) == (422, "cannot_fit", "resources")
        assert "64 CPU" in await answer.text()
