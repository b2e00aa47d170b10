"""The dashboard's pages at a follower: the leader's, for a browser that logged in anywhere."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from controller.replica.answers import PAGES
from controller.web import app
from tests.unit.api.conftest import ADMIN_TOKEN, USER_TOKEN
from tests.unit.forwarding.test_dashboard_reads import Browser, told
from tests.unit.forwarding.test_reads import TO_THE_LEADER, bearer
from tests.unit.forwarding.watching import WatchBed, opened_watch_bed
from tests.unit.replica.test_answers import a_node, make_answers


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[WatchBed]:
    async with opened_watch_bed(tmp_path, make_answers) as made:
        yield made


@pytest.fixture
async def browser(watched: WatchBed) -> AsyncIterator[Browser]:
    jar = aiohttp.CookieJar(unsafe=True)  # else it keeps none of an address
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        made = Browser(watched, session)
        await made.log_in(USER_TOKEN)
        yield made


TARGETS = {
    "/runs": "rows",
    "/runs/live": "overview",
    "/queue": "queue",
    "/nodes": "fleets",
    "/nodes/gpu-1": "node",
    "/events": "rows",
    "/dev-environments": "environments",
    "/cost": "",
}
DOCUMENT = {"Accept": "text/html"}


def comparable(text: str) -> str:
    """Leave out what is another one in each document: its token, its mark, and the time, which the
    line of an attempt shows in seconds."""
    text = re.sub(r'name="fairlead-(page|mark|now)" content="[^"]*"|<body[^>]*>', "", text)
    text = re.sub(r'<svg class="timeline".*?</svg>', "", text)
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "", text)


async def shown(browser: Browser, path: str, at: str, **headers: str) -> tuple[int, str]:
    async with browser.get("/dashboard" + path, at, **headers) as answer:
        return answer.status, comparable(await answer.text())


async def test_each_page_and_its_fragments_are_the_leaders(
    watched: WatchBed, browser: Browser
) -> None:
    bed = watched.bed
    await bed.submit("live")
    await bed.submit("of-admin", ADMIN_TOKEN)
    await bed.stop(await bed.submit("ended"))
    node = a_node("gpu-1")
    await bed.controller.pipeline.save_node(node, node.id)
    for path in (*TARGETS, "/services", "/users", "/runs/of-admin", "/runs/none", "/runs?text=li"):
        page, browser.page = browser.page, {}
        there = await shown(browser, path, browser.leader, **DOCUMENT)
        assert await shown(browser, path, browser.follower, **DOCUMENT) == there, path
        browser.page = page
        target = TARGETS.get(path, "rows")
        part = {"HX-Request": "true", "HX-Target": target}
        there = await shown(browser, path, browser.leader, **part)
        assert await shown(browser, path, browser.follower, **part) == there, path


async def test_a_page_shows_what_was_committed_before_it_was_asked_for(
    watched: WatchBed, browser: Browser
) -> None:
    part = {"HX-Request": "true", "HX-Target": "rows"}
    for number in range(10):
        await watched.bed.submit(f"run-{number}")
        assert f"run-{number}<" in (await shown(browser, "/runs", browser.follower, **part))[1]


async def test_a_page_of_a_follower_is_told_only_what_changed_after_it(
    watched: WatchBed, browser: Browser
) -> None:
    """A mark that is too new would hide a change; one that is too old fetches the page again."""
    async with browser.get("/dashboard/stream?topic=any") as stream:
        assert (await told(stream))[0] == "hello"
        assert (await told(stream))[0] == "changed"
        run = await watched.bed.submit("live")
        assert (await told(stream))[1]["topic"] == "any"
        mark = await mark_of(browser)
        assert mark == f"{watched.feed.started}-{watched.feed.revision}"
        async with browser.get(f"/dashboard/stream?topic={run}:{mark}") as another:
            assert (await told(another))[0] == "hello"
            await watched.bed.stop(run)
            assert (await told(another))[1]["topic"] == run


async def mark_of(browser: Browser) -> str:
    page, browser.page = browser.page, {}
    async with browser.get("/dashboard/runs", **DOCUMENT) as answer:
        found = re.search(r'name="fairlead-mark" content="([^"]*)"', await answer.text())
    browser.page = page
    assert found is not None
    return found.group(1)


async def test_a_login_counts_at_a_follower_as_it_does_at_the_leader(
    watched: WatchBed, browser: Browser
) -> None:
    page, browser.page = browser.page, {}
    # A script of a service on this origin must not read a document, nor ask for a fragment.
    assert await browser.status("/dashboard/runs", **{"Sec-Fetch-Dest": "empty"}) == 403
    assert await browser.status("/dashboard/runs", **{"HX-Request": "true"}) == 403
    assert await browser.status("/dashboard/api/v1/nodes") == 403
    assert await browser.status("/dashboard/runs", Origin="https://page.example") == TO_THE_LEADER
    async with browser.get("/dashboard/runs", **DOCUMENT) as answer:
        assert answer.status == 200
        for name, value in app.HEADERS.items():
            assert answer.headers[name] == value
    browser.page = page
    assert await browser.status("/dashboard/api/v1/nodes") == 200
    assert await browser.status("/dashboard/session") == 204
    assert await browser.status("/dashboard/users", **DOCUMENT) == 403
    headers = {**browser.page, "HX-Request": "true"}
    cookies = {one.key: one.value for one in browser.session.cookie_jar}
    async with browser.session.post(f"{browser.leader}/dashboard/logout", headers=headers) as out:
        assert out.status == 204
    browser.session.cookie_jar.update_cookies(cookies)
    assert await browser.status("/dashboard/session") == 401
    browser.page = {}
    async with browser.session.get(
        f"{browser.follower}/dashboard/runs", headers=DOCUMENT, allow_redirects=False
    ) as answer:
        assert answer.status == 303
        assert answer.headers["Location"].startswith("/dashboard/login")


async def test_a_token_that_was_revoked_closes_the_pages_at_once(
    watched: WatchBed, browser: Browser
) -> None:
    assert await browser.status("/dashboard/session") == 204
    async with watched.bed.leader.delete("/v1/tokens/t2", headers=bearer(ADMIN_TOKEN)) as answer:
        assert answer.status == 200
    assert await browser.status("/dashboard/session") == 401


async def test_all_pages_but_the_log_as_a_file_are_answered() -> None:
    pages = {page.path for page in app.PAGES if page.method == "GET"}
    assert pages - PAGES == {"/runs/{run}/log.txt"}
    assert pages >= PAGES
