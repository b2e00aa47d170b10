"""A booted node tells its address by a token that works once, and learns nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml
from aiohttp.test_utils import TestClient, TestServer

from controller.api.machines.join import make_join_runner
from controller.clock import SystemClock, system_chance
from controller.lifecycle.model import NodeStatus
from controller.service.machines.registrations import Announcement, RegistrationService
from controller.service.machines.user_data import JoinPoint
from tests.unit.api.conftest import Controller
from tests.unit.api.test_registrations import expire

POINT = JoinPoint(host="127.0.0.1", port=8701, certificate="ab" * 32)


@pytest.fixture
def registrations(controller: Controller) -> RegistrationService:
    chance = system_chance()
    nodes = controller.service.machines.nodes
    return RegistrationService(nodes, controller.pipeline, SystemClock(), chance, "ssh-x A", POINT)


@pytest.fixture
async def join(registrations: RegistrationService) -> AsyncIterator[TestClient[Any, Any]]:
    time = asyncio.get_running_loop().time
    runner = make_join_runner(registrations, time, shutdown_timeout=0.1)
    async with TestClient(TestServer(runner.app)) as client:
        yield client


async def token_of(controller: Controller, registrations: RegistrationService) -> str:
    wish = Announcement(name="gpu-1")
    _, text = await registrations.announce(
        wish, user=controller.service.accounts.gate.users["admin"]
    )
    files = {file["path"]: file["content"] for file in yaml.safe_load(text)["write_files"]}
    return str(json.loads(files["/etc/fairlead/join.json"])["token"])


async def told(join: TestClient[Any, Any], token: str, **more: Any) -> tuple[int, str]:
    body = {"name": "gpu-1", "token": token, "host": "10.0.0.5", **more}
    async with join.post("/join", json=body) as answer:
        return answer.status, await answer.text()


async def test_the_token_registers_the_node_once(
    controller: Controller, registrations: RegistrationService, join: TestClient[Any, Any]
) -> None:
    token = await token_of(controller, registrations)
    answers = await asyncio.gather(told(join, token), told(join, token, host="10.0.0.6"))
    assert sorted(answers) == [(200, ""), (403, "")]
    (node,) = controller.pipeline.nodes.values()
    assert (node.status, node.registration) == (NodeStatus.CONNECTING, None)
    assert await told(join, token) == (403, "")


async def test_the_token_is_stored_hashed(
    controller: Controller, registrations: RegistrationService
) -> None:
    token = await token_of(controller, registrations)
    (node,) = (await controller.store.load()).nodes
    assert node.registration is not None
    assert node.registration.token_digest is not None
    assert token not in repr(node)


@pytest.mark.parametrize(
    "more",
    [
        {"token": "fl_wrong"},
        {"token": ""},
        {"name": "gpu-2"},
        {"host": "-o ProxyCommand=x"},
        {"port": 0},
        {"status": "connected"},
        {"token": None},
    ],
)
async def test_every_refusal_looks_the_same(
    controller: Controller,
    registrations: RegistrationService,
    join: TestClient[Any, Any],
    more: dict[str, Any],
) -> None:
    token = await token_of(controller, registrations)
    body = {"name": "gpu-1", "token": token, "host": "10.0.0.5", **more}
    async with join.post("/join", json=body) as answer:
        assert (answer.status, await answer.text()) == (403, "")
    (node,) = controller.pipeline.nodes.values()
    assert node.status is NodeStatus.EXPECTED


async def test_an_expired_token_and_one_of_an_earlier_announcement_are_refused(
    controller: Controller, registrations: RegistrationService, join: TestClient[Any, Any]
) -> None:
    first = await token_of(controller, registrations)
    second = await token_of(controller, registrations)
    assert (await told(join, first))[0] == 403
    await expire(controller)
    assert (await told(join, second))[0] == 403


async def test_a_peer_that_asks_often_has_to_wait(join: TestClient[Any, Any]) -> None:
    statuses = [(await told(join, "fl_guess"))[0] for _ in range(12)]
    assert statuses == [403] * 10 + [429] * 2
    async with join.get("/v1/nodes") as answer:
        assert answer.status == 404


async def test_a_node_whose_request_comes_too_slowly_may_try_again(
    join: TestClient[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """403 would end its unit for good."""
    monkeypatch.setattr("controller.api.machines.join.BODY_SECONDS", 0.05)

    async def never_whole() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    async with join.post("/join", data=never_whole()) as answer:
        assert answer.status == 503
