"""The dashboard opens services for its user: a code for one browser, at the service's origin."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from common.proxy.browsers.site import Site
from common.tokens import browser_secret, digest
from controller.api.app import make_app
from controller.web.app import Dashboard, session_key
from tests.unit.api.conftest import ADMIN_TOKEN, Controller
from tests.unit.web.conftest import Browser, submit

KEY = session_key(b"secret of the tests")
STATE = "5" * 64


async def opened(browser: Browser, path: str, **headers: str) -> tuple[int, str]:
    answer = await browser.open(f"/dashboard/open/{path}", **headers)
    return answer.status, answer.headers.get("Location", "")


class BehindTls:
    """An admin's browser at a controller whose services have a domain. It keeps cookies itself,
    since the connection of the tests is not encrypted."""

    HEADERS: ClassVar = {"X-Forwarded-Proto": "https", "Host": "fairlead.example"}

    def __init__(self, client: TestClient[Any, Any]) -> None:
        self.client = client
        self.cookie = ""

    async def log_in(self) -> None:
        page = await self.client.get("/dashboard/login", headers=self.HEADERS)
        asked = page.headers["Set-Cookie"].partition(";")[0]
        token = (await page.text()).split('name="asked" value="')[1][:64]
        answer = await self.client.post(
            "/dashboard/login",
            data={"token": ADMIN_TOKEN, "asked": token},
            headers={**self.HEADERS, "Cookie": asked},
            allow_redirects=False,
        )
        self.cookie = answer.headers["Set-Cookie"].partition(";")[0]

    async def place(self, path: str) -> str:
        headers = {**self.HEADERS, "Cookie": self.cookie}
        answer = await self.client.get(
            f"/dashboard/open/{path}", headers=headers, allow_redirects=False
        )
        return answer.headers["Location"]


@pytest.fixture
async def behind_tls(controller: Controller) -> AsyncIterator[BehindTls]:
    site = Site(public_url="https://fairlead.example")
    dashboard = Dashboard(
        controller.service, KEY, lambda: 0.0, site=site, service_domain="svc.example"
    )
    server = TestServer(make_app(controller.service, mounts=(dashboard.mount,)))
    async with TestClient(server, cookie_jar=aiohttp.DummyCookieJar()) as client:
        browser = BehindTls(client)
        await browser.log_in()
        yield browser


async def test_a_link_leads_to_the_service_with_the_dashboards_word(admin: Browser) -> None:
    await submit(admin, type="service", name="api", port=8000)
    status, there = await opened(admin, "api?next=/lab")
    place, here = urlsplit(there), f"http://127.0.0.1:{admin.client.port}"
    query = parse_qs(place.query)
    assert (status, place.hostname, place.path) == (303, "api.localhost", "/.fairlead/login")
    assert (query["from"], query["next"]) == ([here], ["/lab"])
    assert len(query["proof"][0]) == 64


async def test_a_browser_that_asked_gets_a_code_which_the_address_tells_nobody(
    admin: Browser, controller: Controller
) -> None:
    run = await submit(admin, type="service", name="api", port=8000)
    status, there = await opened(admin, f"api?state={STATE}&next=/lab")
    place = urlsplit(there)
    given = parse_qs(place.fragment)
    assert (status, place.hostname, place.path) == (303, "api.localhost", "/.fairlead/enter")
    assert (place.query, given["next"]) == ("", ["/lab"])
    proof = digest(browser_secret(given["code"][0], STATE))
    held = controller.service.accounts.gate.granted(proof, run["id"])
    assert held is not None
    assert held.token.user == "admin"
    assert controller.service.accounts.gate.granted(proof, "another-run") is None


@pytest.mark.parametrize("state", ["x", "5" * 63, "G" * 64])
async def test_a_state_that_no_service_made_is_refused(admin: Browser, state: str) -> None:
    await submit(admin, type="service", name="api", port=8000)
    assert (await opened(admin, f"api?state={state}"))[0] == 400


async def test_a_service_of_another_user_is_as_if_it_were_not_there(
    admin: Browser, ada: Browser
) -> None:
    await submit(admin, type="service", name="api", port=8000)
    theirs = await ada.open(f"/dashboard/open/api?state={STATE}")
    missing = await ada.open(f"/dashboard/open/none?state={STATE}")
    assert theirs.status == missing.status == 404
    texts = [await one.text() for one in (theirs, missing)]
    shown = [re.search("<main.*</main>", text, re.DOTALL) for text in texts]
    assert shown[0] is not None
    assert shown[1] is not None
    assert shown[0][0] == shown[1][0].replace("none", "api")


async def test_no_script_and_no_frame_gets_a_code(admin: Browser) -> None:
    await submit(admin, type="service", name="api", port=8000)
    for dest in ("empty", "iframe", "script"):
        status, there = await opened(admin, f"api?state={STATE}", **{"Sec-Fetch-Dest": dest})
        assert (status, there) == (403, "")


async def test_a_stranger_logs_in_first_and_comes_back(stranger: Browser) -> None:
    path = f"/dashboard/open/api?state={STATE}&next=/"
    first = await stranger.open(path)
    # Firefox may have kept the login's cookie back, so the page asks again, and only once.
    asks = f'http-equiv="refresh" content="0;url={path}&again=1"'.replace("&", "&amp;")
    assert (first.status, asks in await first.text()) == (200, True)
    status, there = await opened(stranger, f"api?state={STATE}&next=/&again=1")
    assert status == 303
    assert there.startswith("/dashboard/login?next=%2Fdashboard%2Fopen%2Fapi%3Fstate%3D")


async def test_with_a_domain_the_service_is_at_its_host_there(behind_tls: BehindTls) -> None:
    await submit(Browser(behind_tls.client), type="service", name="api", port=8000)
    there = urlsplit(await behind_tls.place("api"))
    assert (there.scheme, there.netloc, there.path) == (
        "https",
        "api.svc.example",
        "/.fairlead/login",
    )
    assert parse_qs(there.query)["from"] == ["https://fairlead.example"]
    arrived = urlsplit(await behind_tls.place(f"api?state={STATE}"))
    assert (arrived.netloc, arrived.path) == ("api.svc.example", "/.fairlead/enter")


async def test_an_open_service_needs_no_code(admin: Browser) -> None:
    await submit(admin, type="service", name="api", port=8000, auth=False)
    status, there = await opened(admin, "api")
    assert (status, urlsplit(there).hostname, urlsplit(there).path) == (303, "api.localhost", "/")


@pytest.mark.parametrize("ide", ["jupyter", "code-server"])
async def test_an_ide_in_the_browser_opens_as_a_service_does(admin: Browser, ide: str) -> None:
    await submit(admin, type="dev-environment", name="desk", commands=[], ide=ide)
    status, there = await opened(admin, f"desk?state={STATE}")
    place = urlsplit(there)
    assert (status, place.hostname, place.path) == (303, "desk.localhost", "/.fairlead/enter")


@pytest.mark.parametrize("fields", [{}, {"type": "dev-environment", "commands": [], "ide": "zed"}])
async def test_a_run_without_a_page_is_not_opened(admin: Browser, fields: dict[str, Any]) -> None:
    await submit(admin, **{"name": "train", **fields})
    assert (await opened(admin, "train"))[0] == 404
