"""A node is announced before it boots, and becomes a node like any other by its address."""

from __future__ import annotations

from typing import Any

import asyncssh
import msgspec
import pytest
import yaml
from aiohttp.test_utils import TestClient

from common.links.host_keys import fingerprint, public_line
from controller.lifecycle.model import NodeStatus
from tests.unit.api.asking import shape_of
from tests.unit.api.conftest import USER_TOKEN, Controller

ADDRESS = {"host": "10.0.0.5", "port": 2222}


async def announced(api: TestClient[Any, Any], **more: Any) -> dict[str, Any]:
    async with api.post("/v1/user-data", json={"name": "gpu-1", **more}) as answer:
        assert answer.status == 201, await answer.text()
        told: dict[str, Any] = await answer.json()
        return told


def host_key_of(told: dict[str, Any]) -> asyncssh.SSHKey:
    return asyncssh.import_private_key(
        yaml.safe_load(told["user_data"])["ssh_keys"]["ed25519_private"]
    )


async def expire(controller: Controller) -> None:
    (node,) = controller.pipeline.nodes.values()
    assert node.registration is not None
    over = msgspec.structs.replace(node.registration, expires_at=1.0)
    await controller.pipeline.save_node(msgspec.structs.replace(node, registration=over), node.id)


async def test_an_announced_node_is_expected_with_the_host_key_of_its_user_data_pinned(
    api: TestClient[Any, Any],
) -> None:
    told = await announced(api, attributes={"rack": "r1"})
    node, key = told["node"], host_key_of(told)
    assert (node["status"], node["address"], node["attributes"]) == (
        "expected",
        "-",
        {"rack": "r1"},
    )
    assert node["host_key_fingerprint"] == fingerprint(public_line(key))
    assert node["register_until"] > node["created_at"]
    async with api.get("/v1/nodes") as answer:
        assert (await answer.json())["nodes"] == [node]


async def test_the_private_host_key_is_stored_nowhere(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    told = await announced(api)
    secret = yaml.safe_load(told["user_data"])["ssh_keys"]["ed25519_private"].splitlines()[2]
    stored = msgspec.json.encode((await controller.store.load()).nodes).decode()
    assert "expected" in stored
    assert secret not in stored


async def test_a_registered_node_is_connected_to_with_the_pinned_key(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    told = await announced(api)
    for _ in range(2):
        async with api.post("/v1/nodes/gpu-1/register", json=ADDRESS) as answer:
            assert answer.status == 200, await answer.text()
            node = await answer.json()
    assert (node["status"], node["register_until"]) == ("connecting", None)
    (kept,) = controller.pipeline.nodes.values()
    assert (kept.address.host, kept.address.port) == ("10.0.0.5", 2222)
    assert kept.address.host_key == public_line(host_key_of(told))


async def test_a_registered_node_keeps_its_address(api: TestClient[Any, Any]) -> None:
    await announced(api)
    async with api.post("/v1/nodes/gpu-1/register", json=ADDRESS) as answer:
        assert answer.status == 200
    async with api.post("/v1/nodes/gpu-1/register", json={"host": "10.0.0.6"}) as answer:
        assert await shape_of(answer) == (409, "node_registered", "node")


async def test_expired_user_data_registers_nothing(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    await announced(api)
    await expire(controller)
    async with api.post("/v1/nodes/gpu-1/register", json=ADDRESS) as answer:
        assert await shape_of(answer) == (410, "registration_expired", "node")
    assert [node.status for node in controller.pipeline.nodes.values()] == [NodeStatus.EXPECTED]


async def test_a_node_that_is_announced_again_gets_another_key_and_time(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    first = await announced(api)
    await expire(controller)
    second = await announced(api, fleet="default")
    assert first["node"]["id"] == second["node"]["id"]
    assert first["node"]["host_key_fingerprint"] != second["node"]["host_key_fingerprint"]
    async with api.post("/v1/nodes/gpu-1/register", json=ADDRESS) as answer:
        assert answer.status == 200


async def test_a_node_that_exists_is_not_announced(api: TestClient[Any, Any]) -> None:
    body = {"name": "gpu-1", "local_socket": "/run/fairlead/shim.sock"}
    async with api.post("/v1/nodes", json=body) as answer:
        assert answer.status == 201
    async with api.post("/v1/user-data", json={"name": "gpu-1"}) as answer:
        assert await shape_of(answer) == (409, "conflict", "name")


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        ({"name": "GPU 1"}, "name"),
        ({"fleet": "none"}, "fleet"),
        ({"attributes": {"node": "x"}}, "attributes"),
        ({"expires_after": 1}, "expires_after"),
        ({"expires_after": 1e9}, "expires_after"),
        ({"volume_prefixes": ["data"]}, "volume_prefixes"),
        ({"volume_prefixes": ["/a/../b"]}, "volume_prefixes"),
        ({"volume_prefixes": ["/a b"]}, "volume_prefixes"),
        ({"volume_prefixes": ["/a$HOME"]}, "volume_prefixes"),
        ({"registry_mirror": "mirror.example"}, "registry_mirror"),
        ({"registry_mirror": "https://user:password@mirror.example"}, "registry_mirror"),
        ({"provider": "moon"}, "provider"),
    ],
)
async def test_a_wrong_field_is_named_and_announces_nothing(
    api: TestClient[Any, Any], controller: Controller, wish: dict[str, Any], field: str
) -> None:
    async with api.post("/v1/user-data", json={"name": "gpu-1", **wish}) as answer:
        assert await shape_of(answer) == (400, "invalid", field)
    assert not controller.pipeline.nodes


async def test_only_admins_announce_and_register(api: TestClient[Any, Any]) -> None:
    await announced(api)
    as_user = {"Authorization": f"Bearer {USER_TOKEN}"}
    for path, body in (
        ("/v1/user-data", {"name": "gpu-2"}),
        ("/v1/nodes/gpu-1/register", ADDRESS),
    ):
        async with api.post(path, json=body, headers=as_user) as answer:
            assert (await shape_of(answer))[:2] == (403, "forbidden")


async def test_an_expected_node_has_no_host_key_to_change(api: TestClient[Any, Any]) -> None:
    await announced(api)
    async with api.patch("/v1/nodes/gpu-1", json={"accept_host_key": "SHA256:x"}) as answer:
        assert await shape_of(answer) == (400, "invalid", "accept_host_key")
        assert "user-data" in await answer.text()
