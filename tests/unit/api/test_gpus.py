"""An admin clears a broken GPU; the node itself knows which are."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from fairlead.wire.node import GpuInfo
from shim.client import ShimError, ShimUnavailable
from tests.doubles.node import FakeConnection
from tests.doubles.shim import node_info
from tests.unit.api.asking import LOCAL, added, shape_of
from tests.unit.api.conftest import Controller

CLEAR = "/v1/nodes/here/gpus/GPU-0/clear"


@pytest.fixture
async def node(api: TestClient[Any, Any], controller: Controller) -> FakeConnection:
    connection = FakeConnection()
    connection.shim.info = node_info(gpus=(GpuInfo(uuid="GPU-0", index=0, name="H100", memory=1),))
    controller.connections[(await added(api, LOCAL))["id"]] = connection
    return connection


async def test_a_cleared_gpu_is_shown_as_its_node_has_it_now(
    api: TestClient[Any, Any], node: FakeConnection
) -> None:
    async with api.post(CLEAR) as answer:
        assert answer.status == 200
        (gpu,) = (await answer.json())["gpus"]
    assert (gpu["uuid"], gpu["healthy"], gpu["message"]) == ("GPU-0", True, None)
    assert node.shim.asked == [("clear_gpu", "GPU-0")]


async def test_a_gpu_that_its_node_has_forgotten_is_forgotten(
    api: TestClient[Any, Any], node: FakeConnection
) -> None:
    """It was taken out: one word is enough, and the node is fit."""
    node.shim.info = node_info(gpus=())
    async with api.post(CLEAR) as answer:
        assert answer.status == 200
        said = await answer.json()
    assert (said["gpus"], said["unfit"]) == ([], None)
    async with api.get("/v1/nodes/here") as answer:
        said = await answer.json()
    assert (said["gpus"], said["unfit"]) == ([], None)
    assert node.shim.asked == [("clear_gpu", "GPU-0")]


@pytest.mark.parametrize(
    ("refusal", "shape"),
    [
        (ShimError("not_found", "there is no cordoned GPU", 404), (404, "not_found", "gpu")),
        (ShimError("storage", "the disk is full", 507), (503, "unavailable", None)),
        (ShimUnavailable("gone"), (503, "unavailable", None)),
    ],
)
async def test_why_a_gpu_was_not_cleared_is_said(
    api: TestClient[Any, Any],
    node: FakeConnection,
    refusal: Exception,
    shape: tuple[int, str, str | None],
) -> None:
    node.shim.refusal = refusal
    async with api.post(CLEAR) as answer:
        assert await shape_of(answer) == shape
