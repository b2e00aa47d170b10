from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import WSServerHandshakeError
from aiohttp.test_utils import TestClient, TestServer

from controller.api.app import make_app
from controller.api.http.origins import Origins
from controller.commands.serve_options import parse_origin
from fairlead.cli.errors import CliError
from tests.unit.api.asking import error_of, submit
from tests.unit.api.conftest import ADMIN_TOKEN, Controller

LAB = "https://lab.example.com"
EVIL = "https://evil.example.com"
ASKING = {"Access-Control-Request-Method": "POST"}


@pytest.fixture
async def api(controller: Controller) -> AsyncIterator[TestClient[Any, Any]]:
    server = TestServer(make_app(controller.service, origins=Origins([LAB])))
    async with TestClient(server, headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}) as client:
        yield client


def own(api: TestClient[Any, Any]) -> str:
    return str(api.make_url("")).rstrip("/")


async def test_a_page_of_an_allowed_origin_reads_answers_and_refusals(
    api: TestClient[Any, Any],
) -> None:
    for path in ("/v1/runs", "/v1/runs/none"):
        async with api.get(path, headers={"Origin": LAB}) as answer:
            assert answer.headers["Access-Control-Allow-Origin"] == LAB
            assert "Origin" in answer.headers["Vary"]


async def test_a_page_of_an_allowed_origin_may_send_its_token(api: TestClient[Any, Any]) -> None:
    async with api.options("/v1/runs", headers={"Origin": LAB, **ASKING}) as answer:
        assert answer.status == 204
        assert answer.headers["Access-Control-Allow-Origin"] == LAB
        assert "Authorization" in answer.headers["Access-Control-Allow-Headers"]


@pytest.mark.parametrize("origin", [EVIL, "null", LAB + ".evil.example.com"])
async def test_a_page_of_another_origin_gets_no_leave(
    api: TestClient[Any, Any], origin: str
) -> None:
    async with api.get("/v1/runs", headers={"Origin": origin}) as answer:
        assert "Access-Control-Allow-Origin" not in answer.headers
    async with api.options("/v1/runs", headers={"Origin": origin, **ASKING}) as answer:
        assert "Access-Control-Allow-Origin" not in answer.headers
    upgrade = {"Origin": origin, "Connection": "Upgrade", "Upgrade": "websocket"}
    async with api.get("/v1/runs/hello/logs/ws", headers=upgrade) as answer:
        assert await error_of(answer) == (403, "origin_not_allowed", None)
        assert "--allowed-origin" in await answer.text()


async def test_pages_of_the_controller_and_of_allowed_origins_open_websockets(
    api: TestClient[Any, Any],
) -> None:
    await submit(api, name="hello")
    for origin in (own(api), LAB):
        async with api.ws_connect("/v1/runs/hello/logs/ws", origin=origin) as socket:
            await socket.receive_str()
    with pytest.raises(WSServerHandshakeError):
        await api.ws_connect("/v1/runs/hello/logs/ws", origin=EVIL)


def test_an_origin_is_taken_as_browsers_write_it() -> None:
    assert parse_origin("HTTPS://Lab.Example.com/") == LAB
    assert parse_origin("https://lab.example.com:443") == LAB
    assert parse_origin("http://127.0.0.1:8080") == "http://127.0.0.1:8080"
    for wrong in ("lab.example.com", "https://lab.example.com/path", "*"):
        with pytest.raises(CliError, match="is no origin, such as"):
            parse_origin(wrong)
