"""The dashboard over a controller without nodes, and browsers that are logged in to it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from controller.api.app import make_app
from controller.web.app import Dashboard, session_key
from tests.unit.api.conftest import ADMIN_TOKEN, USER_TOKEN, Controller, controller

__all__ = ["controller"]

CONFIGURATION = {
    "type": "task",
    "name": "train",
    "commands": ["true"],
    "env": {"NCCL_DEBUG": "INFO", "API_TOKEN": "hidden-value"},
}


class Browser:
    """Follows no redirect, and sends what a page of the dashboard sends."""

    def __init__(self, client: TestClient[Any, Any]) -> None:
        self.client = client
        self.page_token = ""

    async def log_in(self, token: str) -> ClientResponse:
        form = await self.form("/dashboard/login")
        answer = await self.client.post(
            "/dashboard/login", data={**form, "token": token}, allow_redirects=False
        )
        page = await self.open("/dashboard/runs")
        found = re.search(r'name="fairlead-page" content="([^"]+)"', await page.text())
        self.page_token = found.group(1) if found else ""
        return answer

    async def form(self, path: str) -> dict[str, str]:
        """Return what the form at this path sends, beside what a person fills in."""
        page = await (await self.open(path)).text()
        found = re.search(r'name="asked" value="([^"]+)"', page)
        return {"asked": found.group(1)} if found else {}

    async def stream(self, *topics: str) -> ClientResponse:
        return await self.client.get(
            "/dashboard/stream",
            params=[("topic", topic) for topic in topics],
            headers={"X-Fairlead-Page": self.page_token},
        )

    async def open(self, path: str, **headers: str) -> ClientResponse:
        sent = {"Accept": "text/html", **headers}
        return await self.client.get(path, headers=sent, allow_redirects=False)

    async def fragment(self, path: str, target: str) -> str:
        headers = {"HX-Request": "true", "HX-Target": target, "X-Fairlead-Page": self.page_token}
        answer = await self.client.get(path, headers=headers)
        assert answer.status == 200, await answer.text()
        return await answer.text()

    async def act(self, path: str, **form: str) -> ClientResponse:
        headers = {"HX-Request": "true", "X-Fairlead-Page": self.page_token}
        return await self.client.post(path, headers=headers, data=form, allow_redirects=False)


@pytest.fixture
async def site(controller: Controller) -> AsyncIterator[TestServer]:
    dashboard = Dashboard(controller.service, session_key(b"secret of the tests"), lambda: 0.0)
    started = TestServer(make_app(controller.service, mounts=(dashboard.mount,)))
    await started.start_server()
    yield started
    await started.close()


@pytest.fixture
async def stranger(site: TestServer) -> AsyncIterator[Browser]:
    """A browser that did not log in."""
    async with TestClient(site) as client:
        yield Browser(client)


@pytest.fixture
async def admin(site: TestServer) -> AsyncIterator[Browser]:
    async with TestClient(site) as client:
        browser = Browser(client)
        await browser.log_in(ADMIN_TOKEN)
        yield browser


@pytest.fixture
async def ada(site: TestServer) -> AsyncIterator[Browser]:
    """A user who is no admin."""
    async with TestClient(site) as client:
        browser = Browser(client)
        await browser.log_in(USER_TOKEN)
        yield browser


async def submit(browser: Browser, token: str = ADMIN_TOKEN, **more: object) -> dict[str, Any]:
    body = msgspec.json.encode({"configuration": {**CONFIGURATION, **more}})
    answer = await browser.client.post(
        "/v1/runs", data=body, headers={"Authorization": f"Bearer {token}"}
    )
    assert answer.status == 201, await answer.text()
    made: dict[str, Any] = await answer.json()
    return made
