"""What the dashboard's pages ask, answered at a follower for a browser that logged in anywhere."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import msgspec
import pytest

from controller.forwarding import watch_reads
from tests.unit.api.conftest import ADMIN_TOKEN, USER_TOKEN
from tests.unit.forwarding.test_reads import TO_THE_LEADER, bearer
from tests.unit.forwarding.watching import LIMIT, WatchBed


class Browser:
    """Logged in at the leader; asks the follower."""

    def __init__(self, watched: WatchBed, session: aiohttp.ClientSession) -> None:
        self.session = session
        self.leader = watched.leading.url
        self.follower = str(watched.bed.follower.make_url("")).rstrip("/")
        self.page: dict[str, str] = {}
        self.mark = ""

    async def log_in(self, token: str) -> None:
        asked = re.search(r'name="asked" value="([^"]+)"', await self._document("/dashboard/login"))
        assert asked is not None
        form = {"asked": asked.group(1), "token": token}
        async with self.session.post(f"{self.leader}/dashboard/login", data=form) as answer:
            assert answer.status == 200
        await self.open("/dashboard/runs")

    async def open(self, path: str) -> None:
        text = await self._document(path)
        found = re.search(r'name="fairlead-page" content="([^"]+)"', text)
        mark = re.search(r"[0-9a-f]{8}-[0-9]+", text)
        assert found is not None
        assert mark is not None
        self.page, self.mark = {"X-Fairlead-Page": found.group(1)}, mark.group(0)

    async def _document(self, path: str) -> str:
        headers = {"Accept": "text/html"}
        async with self.session.get(self.leader + path, headers=headers) as answer:
            return await answer.text()

    def get(self, path: str, at: str | None = None, **headers: str) -> Any:
        more = {**self.page, **headers}
        return self.session.get((at or self.follower) + path, headers=more, timeout=LIMIT)

    async def status(self, path: str, **headers: str) -> int:
        async with self.get(path, **headers) as answer:
            return int(answer.status)


@pytest.fixture
async def browser(watched: WatchBed) -> AsyncIterator[Browser]:
    jar = aiohttp.CookieJar(unsafe=True)  # else it keeps none of an address
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        made = Browser(watched, session)
        await made.log_in(USER_TOKEN)
        yield made


async def told(stream: aiohttp.ClientResponse) -> tuple[str, Mapping[str, Any]]:
    event, data, *_ = (await stream.content.readuntil(b"\n\n")).decode().split("\n")
    return event.removeprefix("event: "), msgspec.json.decode(data.removeprefix("data: "))


async def test_a_follower_tells_pages_what_changed_since_their_document(
    watched: WatchBed, browser: Browser
) -> None:
    async with browser.get(f"/dashboard/stream?topic=any:{browser.mark}") as stream:
        event, hello = await told(stream)
        assert (event, hello["mark"], hello["broken"]) == ("hello", browser.mark, {"Nodes": 0})
        run = await watched.bed.submit("live")
        event, changed = await told(stream)
        assert (event, changed["topic"]) == ("changed", "any")
        # The same stream at the leader says the same, and a mark of one counts at the other.
        async with browser.get(
            f"/dashboard/stream?topic={run}:{browser.mark}", browser.leader
        ) as there:
            assert (await told(there))[0] == "hello"
            assert (await told(there))[1]["topic"] == run
    async with browser.get(f"/dashboard/stream?topic={run}:{browser.mark}") as stream:
        assert (await told(stream))[0] == "hello"
        assert (await told(stream))[1]["topic"] == run
    assert watched.leading.feeds == 1


async def test_after_a_takeover_all_of_a_page_may_have_changed(
    watched: WatchBed, browser: Browser
) -> None:
    async with browser.get(f"/dashboard/stream?topic=any:{browser.mark}") as stream:
        assert (await told(stream))[0] == "hello"
        await watched.leading.stop()
        watched.leading.service.started = "another0"
        await watched.leading.start()
        event, changed = await told(stream)
        assert (event, changed["topic"]) == ("changed", "any")
        assert changed["mark"].startswith("another0-")


async def test_the_api_of_pages_is_answered_for_their_login(
    watched: WatchBed, browser: Browser
) -> None:
    await watched.bed.submit("mine")
    await watched.bed.submit("of-admin", ADMIN_TOKEN)
    for path in (
        "/v1/runs",
        "/v1/runs/mine",
        "/v1/runs/of-admin",
        "/v1/events",
        "/v1/runs?limit=x",
    ):
        async with (
            browser.get("/dashboard/api" + path) as here,
            browser.get("/dashboard/api" + path, browser.leader) as there,
        ):
            assert (here.status, await here.read()) == (there.status, await there.read())
            for name in ("Cache-Control", "Content-Security-Policy", "Content-Type"):
                assert here.headers[name] == there.headers[name]
    async with browser.get("/dashboard/api/v1/runs/mine/watch") as watch:
        assert b'"name":"mine"' in await watch.content.readline()


async def test_a_cookie_alone_a_token_or_another_site_opens_nothing(
    watched: WatchBed, browser: Browser
) -> None:
    page, browser.page = browser.page, {}
    for headers in ({}, {"X-Fairlead-Page": "a.b"}, bearer(USER_TOKEN)):
        assert await browser.status("/dashboard/api/v1/runs", **headers) == 403
        assert await browser.status("/dashboard/stream", **headers) == TO_THE_LEADER
    browser.page = page
    assert await browser.status("/dashboard/api/v1/runs") == 200
    for origin in ("https://page.example", "null"):
        assert await browser.status("/dashboard/api/v1/runs", Origin=origin) == TO_THE_LEADER
    assert await browser.status("/dashboard/runs") == TO_THE_LEADER
    browser.session.cookie_jar.clear()
    assert await browser.status("/dashboard/api/v1/runs") == 401


async def test_logging_out_ends_what_a_login_opened_at_a_follower(
    watched: WatchBed, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_reads, "JUDGED_SECONDS", 0.0)
    cookies = {one.key: one.value for one in browser.session.cookie_jar}
    async with browser.get(f"/dashboard/stream?topic=any:{browser.mark}") as stream:
        assert (await told(stream))[0] == "hello"
        headers = {**browser.page, "HX-Request": "true"}
        async with browser.session.post(
            f"{browser.leader}/dashboard/logout", headers=headers
        ) as answer:
            assert answer.status == 204
        await watched.bed.submit("live")
        assert await stream.read() == b""
    browser.session.cookie_jar.update_cookies(cookies)
    assert await browser.status("/dashboard/api/v1/runs") == 401
