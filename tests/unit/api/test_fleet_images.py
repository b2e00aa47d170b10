"""The images of a fleet over the API: what is refused, what is shown, and by which node."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import TestClient

from controller.lifecycle.inventory import NodeImage
from controller.lifecycle.model import NodeCapacity, NodeStatus
from fairlead.wire.engine_abilities import EngineAbility
from tests.unit.api.asking import LOCAL, added, shape_of
from tests.unit.api.conftest import USER_TOKEN, Controller

PATH = "/v1/fleets/default/images"
LOGIN = {"username": "anna", "password": "${{ secrets.REGISTRY }}"}


async def store_secret(api: TestClient[Any, Any], *, shared: bool = True) -> None:
    body = {"value": "canary-1", "shared": shared}
    async with api.put("/v1/secrets/REGISTRY", json=body) as answer:
        assert answer.status < 300


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"images": ["-no image-"]}, "images[0]"),
        ({"images": ["a:1", "https://b/c"]}, "images[1]"),
        ({"images": ["a:1", 3]}, "images[1]"),
        ({"images": ["a:1", "b", "a:1"]}, "images[2]"),
        ({"images": [f"i:{n}" for n in range(33)]}, "images"),
        ({"images": [], "registry_auth": LOGIN}, "registry_auth"),
        ({"images": ["r.example/a", "a"], "registry_auth": LOGIN}, "registry_auth"),
        ({"images": ["a"], "registry_auth": {"username": "anna"}}, "registry_auth.password"),
        (
            {"images": ["a"], "registry_auth": {**LOGIN, "password": "canary-2"}},
            "registry_auth.password",
        ),
        (
            {"images": ["a"], "registry_auth": {**LOGIN, "username": "${{ env.X }}"}},
            "registry_auth.username",
        ),
        ({"images": ["a"], "registry_auth": {**LOGIN, "token": "canary-2"}}, "registry_auth.token"),
    ],
)
async def test_a_wrong_list_is_refused_by_its_field_and_without_its_password(
    api: TestClient[Any, Any], controller: Controller, body: dict[str, Any], field: str
) -> None:
    await store_secret(api)
    async with api.put(PATH, json=body) as answer:
        assert await shape_of(answer) == (400, "invalid_configuration", field)
        assert "canary" not in await answer.text()
    assert controller.pipeline.fleets["default"].images == ()


@pytest.mark.parametrize("stores", [True, False])
async def test_a_password_that_is_not_shared_is_refused(
    api: TestClient[Any, Any], stores: bool
) -> None:
    if stores:
        await store_secret(api, shared=False)
    async with api.put(PATH, json={"images": ["a"], "registry_auth": LOGIN}) as answer:
        assert await shape_of(answer) == (400, "invalid", "registry_auth")


async def test_only_an_admin_says_what_is_pulled_ahead(api: TestClient[Any, Any]) -> None:
    headers = {"Authorization": f"Bearer {USER_TOKEN}"}
    async with api.put(PATH, json={"images": ["a"]}, headers=headers) as answer:
        assert answer.status == 403


async def test_a_fleet_shows_its_images_and_never_its_password(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    await store_secret(api)
    body = {"images": ["r.example/a:1", "r.example/b"], "registry_auth": LOGIN}
    async with api.put(PATH, json=body) as answer:
        shown = await answer.json()
    assert shown["images"] == body["images"]
    assert "secrets.REGISTRY" not in str(shown)
    (stored,) = (await controller.store.load()).fleets
    assert stored.registry_auth is not None
    assert stored.registry_auth.password == LOGIN["password"]
    async with api.put(PATH, json={"images": []}) as answer:
        assert (await answer.json())["images"] == []
    assert controller.pipeline.fleets["default"].registry_auth is None


async def test_a_node_shows_how_far_it_is_with_each_image_of_its_fleet(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    node = await added(api, LOCAL)
    async with api.put(PATH, json={"images": ["a:1", "b:1", "c:1"]}) as answer:
        assert answer.status == 200
    known = (
        NodeImage(image="a:1", state="here", since=1.0),
        NodeImage(image="b:1", state="failed", since=2.0, message="no such image"),
        NodeImage(image="of-an-earlier-list", state="here", since=3.0),
    )
    await _have(controller, node["id"], NodeCapacity(images=known))
    assert await _shown(api) == [
        ("a:1", "here", None),
        ("b:1", "failed", "no such image"),
        ("c:1", "waiting", None),
    ]


@pytest.mark.parametrize(
    ("capacity", "why"),
    [
        (NodeCapacity(engine_lacks=(EngineAbility.IMAGES,)), "its engine has no images"),
        (NodeCapacity(), "older version"),
    ],
)
async def test_a_node_that_is_not_asked_says_why(
    api: TestClient[Any, Any], controller: Controller, capacity: NodeCapacity, why: str
) -> None:
    node = await added(api, LOCAL)
    async with api.put(PATH, json={"images": ["a:1"]}) as answer:
        assert answer.status == 200
    await _have(controller, node["id"], capacity)
    ((image, state, message),) = await _shown(api)
    assert (image, state) == ("a:1", "not asked")
    assert why in (message or "")


async def _have(controller: Controller, node_id: str, capacity: NodeCapacity) -> None:
    node = controller.pipeline.nodes[node_id]
    changed = msgspec.structs.replace(node, capacity=capacity, status=NodeStatus.CONNECTED)
    await controller.pipeline.save_node(changed, node_id)


async def _shown(api: TestClient[Any, Any]) -> list[tuple[str, str, str | None]]:
    async with api.get("/v1/nodes/here") as answer:
        images = (await answer.json())["images"]
    return [(one["image"], one["state"], one["message"]) for one in images]
