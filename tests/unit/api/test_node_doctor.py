"""An admin lets a node look at itself; the controller hands on what it says."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from shim.client import ShimError
from shim.schemas import Finding, FindingLevel
from tests.doubles.node import FakeConnection
from tests.unit.api.asking import LOCAL, added
from tests.unit.api.conftest import Controller

DOCTOR = "/v1/nodes/here/doctor"


@pytest.fixture
async def node(api: TestClient[Any, Any], controller: Controller) -> FakeConnection:
    connection = FakeConnection()
    controller.connections[(await added(api, LOCAL))["id"]] = connection
    return connection


async def test_the_nodes_findings_are_handed_on(
    api: TestClient[Any, Any], node: FakeConnection
) -> None:
    finding = Finding(check="disk", level=FindingLevel.ERROR, message="full", fix="empty it")
    node.shim.findings = (finding,)
    async with api.get(DOCTOR) as answer:
        assert answer.status == 200
        assert (await answer.json())["findings"] == [
            {"check": "disk", "level": "error", "message": "full", "fix": "empty it"}
        ]


async def test_an_older_shim_is_told_as_such(
    api: TestClient[Any, Any], node: FakeConnection
) -> None:
    node.shim.refusal = ShimError("not_found", "no such route", 404)
    async with api.get(DOCTOR) as answer:
        assert answer.status == 503
        assert "too old" in (await answer.json())["error"]["message"]
