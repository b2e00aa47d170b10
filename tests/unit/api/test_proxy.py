"""The proxy of services beside the API, on one listener."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from common.proxy.entry import Proxy, Settings
from common.proxy.view import Service
from controller.api.app import make_app
from controller.proxy.registered import GateAccess, through_runners
from tests.doubles.proxy import NodeHere, NotedTraffic, PlantedServices
from tests.support.replicas import an_app, echo
from tests.unit.api.conftest import ADMIN_TOKEN, USER_TOKEN, Controller
from tests.unit.proxy.bed import replica


@contextlib.asynccontextmanager
async def asking(controller: Controller) -> AsyncIterator[tuple[TestClient[Any, Any], Any]]:
    services = PlantedServices()
    proxy = Proxy(
        services=services,
        traffic=NotedTraffic(),
        access=GateAccess(controller.service.accounts.gate),
        connect=through_runners(NodeHere().connect),
        settings=Settings(domain="svc.example"),
    )
    async with TestClient(TestServer(make_app(controller.service, proxy))) as client:
        yield client, services
    proxy.close()


async def test_services_and_the_api_share_a_listener(controller: Controller) -> None:
    token = {"Authorization": f"Bearer {USER_TOKEN}"}
    async with asking(controller) as (client, services), an_app(echo) as port:
        services.put(Service(run_id="r", name="api", owner="ada", replicas=(replica(port),)))
        own = {**token, "Host": "api.svc.example"}
        async with client.put("/x", data=b"hi", headers=own) as answer:
            assert (answer.status, (await answer.json())["body"]) == (200, "hi")
        async with client.get("/v1/me", headers=own) as answer:
            assert (await answer.json())["path"] == "/v1/me"
        async with client.get("/v1/me", headers=token) as answer:
            assert (await answer.json())["name"] == "ada"


@pytest.mark.parametrize(
    ("token", "status"), [(ADMIN_TOKEN, 200), (USER_TOKEN, 403), ("fl_none", 401)]
)
async def test_the_numbers_for_prometheus_are_an_admins(
    controller: Controller, token: str, status: int
) -> None:
    async with asking(controller) as (client, _):
        headers = {"Authorization": f"Bearer {token}"}
        async with client.get("/metrics", headers=headers) as answer:
            assert answer.status == status
            assert ("fairlead_service_requests" in await answer.text()) is (status == 200)
