"""An admin lets a node look at itself; the controller hands on what it says."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import TestClient

from fairlead.wire.node import Finding, FindingLevel
from shim.client import ShimError
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


@pytest.mark.parametrize(
    ("level", "cordoned"), [(FindingLevel.WARNING, False), (FindingLevel.ERROR, True)]
)
async def test_an_examination_without_an_error_uncordons_a_node_that_could_start_no_job(
    api: TestClient[Any, Any],
    controller: Controller,
    node: FakeConnection,
    level: FindingLevel,
    cordoned: bool,
) -> None:
    (known,) = controller.pipeline.nodes.values()
    broken = msgspec.structs.replace(
        known, cordoned=True, cordon_reason="3 jobs", failed_starts=("a", "b", "c")
    )
    controller.pipeline.set_node(broken, known.id)
    node.shim.findings = (Finding(check="disk", level=level, message="it is slow"),)
    async with api.get(DOCTOR) as answer:
        assert answer.status == 200
    assert controller.pipeline.nodes[known.id].cordoned is cordoned
