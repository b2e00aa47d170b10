"""The dashboard in Chromium when an answer comes after the reader has gone on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestServer
from playwright.async_api import Browser, Page, Route, WebSocketRoute, expect

from tests.e2e.dashboard.conftest import LIVE, visit
from tests.support.waiting import LONG
from tests.unit.api.conftest import Controller
from tests.unit.store.samples import submission
from tests.unit.web.test_jobs import a_sweep

pytestmark = pytest.mark.e2e

WINDOWS, SEARCHES, FOLLOWED = "**/logs/window*", "**/logs/search*", "**/logs/ws*"
AT_END = "view => view.scrollHeight - view.scrollTop - view.clientHeight < 40"
ROW = 10
"""Bytes of a line of the log."""
SCROLL_AND_DRAW = """(view) => {
    view.scrollTop = 0;
    window.drawNow();
    return view.scrollTop;
}"""
DRAW_BY_HAND = """
    const later = window.setTimeout;
    window.setTimeout = (act, wait, ...rest) => {
        if (!String(act).includes("drawQueued")) return later(act, wait, ...rest);
        window.drawNow = act;
        return 1;
    };
"""
"""What is drawn some time after a frame came is drawn when the test says so."""


class Held:
    """The answers to some requests of a page, each of which waits until the test gives it."""

    def __init__(self) -> None:
        self._routes: asyncio.Queue[Route] = asyncio.Queue()

    async def __call__(self, route: Route) -> None:
        await self._routes.put(route)

    async def next(self, part: str = "") -> Route:
        async with asyncio.timeout(LONG):
            route = await self._routes.get()
        assert part in route.request.url
        return route


async def give(page: Page, route: Route, answer: dict[str, Any] | None = None) -> None:
    """Answer, and return when the page's scripts have the answer."""
    async with page.expect_event("requestfinished", lambda one: one == route.request):
        if answer is None:
            await route.continue_()
        else:
            await route.fulfill(json=answer)
    await page.evaluate("new Promise((done) => setTimeout(done))")


def window(
    word: str, first: int = 0, lines: int = 100, log_end: int | None = None
) -> dict[str, Any]:
    """Lines of a log, as the API answers with them."""
    start, end = first * ROW, (first + lines) * ROW
    rows = [
        {
            "offset": number * ROW,
            "end": (number + 1) * ROW,
            "at": "2026-11-28T10:00:00Z",
            "stream": "stdout",
            "text": f"{word} {number}",
            "starts": True,
            "ends": True,
        }
        for number in range(first, first + lines)
    ]
    whole = end if log_end is None else log_end
    return {
        "start": start,
        "end": end,
        "log_end": whole,
        "first_line": first + 1,
        "style": "",
        "rows": rows,
    }


def frame(word: str, number: int) -> dict[str, Any]:
    return {
        "offset": number * ROW,
        "end": (number + 1) * ROW,
        "at": "2026-11-28T10:00:00Z",
        "stream": "stdout",
        "text": f"{word} {number}\n",
    }


class Log:
    """The log on the page of a run with two running jobs; the test answers for the controller."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.windows, self.searches = Held(), Held()
        self.sockets: asyncio.Queue[WebSocketRoute] = asyncio.Queue()
        self.view, self.rows = page.locator(".log-view"), page.locator(".log-row")
        self.here = page.locator(".log-here .log-text")

    def part(self, name: str) -> Any:
        return self.page.locator(f"[data-log-part={name}]")

    async def open(self) -> Route:
        """Return the request for the end of the first job's log."""
        await self.page.route(WINDOWS, self.windows)
        await self.page.route(SEARCHES, self.searches)
        await self.page.route_web_socket(FOLLOWED, self.sockets.put_nowait)
        await self.page.add_init_script(DRAW_BY_HAND)
        await self.page.goto(f"{self.address}/dashboard/runs/sweep")
        return await self.windows.next("attempt=of-0-attempt-0")

    async def choose(self, job: int) -> Route:
        await self.part("choice").select_option(f"of-{job}-attempt-0")
        return await self.windows.next(f"attempt=of-{job}-attempt-0")


@pytest.fixture
async def log(chromium: Browser, controller: Controller, site: TestServer) -> AsyncIterator[Log]:
    await controller.store.commit(submission(a_sweep(2)))
    address = str(site.make_url("")).rstrip("/")
    page = await visit(chromium, controller, address, "admin")
    yield Log(page, address)
    await page.unroute_all(behavior="ignoreErrors")


async def test_a_late_part_of_another_log_changes_nothing_in_the_one_that_is_shown(
    log: Log,
) -> None:
    page, status = log.page, log.part("status")
    first = await log.open()
    second = await log.choose(1)
    await give(page, second, window("second"))
    await give(page, first, window("first", log_end=10**6))
    await expect(log.rows.last).to_have_text("second 99")
    await log.part("end").click()
    await give(page, await log.windows.next(), window("second"))
    await expect(log.part("place")).to_have_attribute("max", "1000")

    await log.part("time").fill("2026-11-28T10:00:00")
    timed = await log.windows.next("at=")
    first = await log.choose(0)
    await give(page, timed, window("second", lines=0, log_end=1000))
    await expect(log.part("follow")).to_be_checked()
    await give(page, first, window("first"))
    await expect(status).to_have_text("")

    await log.part("search").fill("first 3")
    await log.part("search").press("Enter")
    found = {"matches": [{"offset": 5000}], "searched_to": 9000, "log_end": 9000}
    await give(page, await log.searches.next(), found)
    match = await log.windows.next("near=5000")
    second = await log.choose(1)
    await give(page, match, window("first", 490, log_end=9000))
    await expect(log.part("follow")).to_be_checked()
    await give(page, second, window("second"))
    await expect(log.rows.last).to_have_text("second 99")


async def test_a_reader_who_goes_elsewhere_in_a_log_stays_there(log: Log) -> None:
    page, follow = log.page, log.part("follow")
    await give(page, await log.open(), window("line", 900, log_end=10_000))
    await log.part("start").click()
    await give(page, await log.windows.next("offset=0"), window("line", lines=20, log_end=10_000))
    late = await log.windows.next("offset=200")
    await log.part("end").click()
    await give(page, await log.windows.next(), window("line", 980, 20, log_end=10_000))
    above = await log.windows.next("before=9800")  # although rows of the part before are awaited
    await give(page, late, window("line", 20, 20, log_end=10_000))
    await give(page, above, window("line", 880, log_end=10_000))
    await expect(log.rows.last).to_have_text("line 999")
    await expect(log.rows.first).to_have_text("line 880")

    await log.part("search").fill("line 500")
    await log.part("search").press("Enter")
    found = {"matches": [{"offset": 5000}], "searched_to": 10_000, "log_end": 10_000}
    await give(page, await log.searches.next(), found)
    await give(page, await log.windows.next("near=5000"), window("line", 500, log_end=10_000))
    above = await log.windows.next("before=5000")
    await expect(log.here).to_have_text("line 500")
    await log.view.evaluate("view => view.scrollTop = view.scrollHeight / 2")
    await give(page, above, window("line", 400, log_end=10_000))
    await give(page, await log.windows.next("offset=6000"), window("line", 600, log_end=10_000))
    await expect(log.rows.first).to_have_text("line 400")
    await expect(log.here).not_to_be_in_viewport()

    await log.part("search").fill("nowhere yet")
    await log.part("search").press("Enter")
    search = await log.searches.next()
    await log.part("start").click()
    await give(page, await log.windows.next("offset=0"), window("line", log_end=10_000))
    await give(page, search, found)
    await expect(log.part("count")).to_have_text("1")
    await expect(log.rows.first).to_have_text("line 0")
    await expect(follow).not_to_be_checked()


async def test_a_log_is_followed_until_the_reader_goes_up(log: Log) -> None:
    page, follow, place = log.page, log.part("follow"), log.part("place")
    await give(page, await log.open(), window("line", 140, 60))
    above = await log.windows.next("before=1400")
    await give(page, above, window("line", 40, 100, log_end=2200))  # the job goes on to print
    await give(page, await log.windows.next("offset=2000"), window("line", 200, 20))
    socket = await log.sockets.get()
    await expect(log.rows.last).to_have_text("line 219")
    assert await log.view.evaluate(AT_END)

    socket.send(json.dumps(frame("line", 220)))
    await page.wait_for_function("!!window.drawNow")
    await page.evaluate("drawNow()")
    await place.evaluate("one => { one.value = 7; one.dispatchEvent(new Event('input')); }")
    await expect(follow).not_to_be_checked()
    await place.evaluate("one => one.dispatchEvent(new Event('change'))")
    await give(page, await log.windows.next("near=7"), window("line", log_end=2210))

    await follow.check()
    await give(page, await log.windows.next(), window("line", 121))
    socket = await log.sockets.get()
    await page.evaluate("delete window.drawNow")
    socket.send(json.dumps(frame("line", 221)))
    await page.wait_for_function("!!window.drawNow")
    assert await log.view.evaluate(SCROLL_AND_DRAW) == 0
    await expect(follow).not_to_be_checked()
    await give(page, await log.windows.next("before=1210"), window("line", 21, log_end=2210))

    await follow.check()
    await give(page, await log.windows.next(), window("line", 162, 60))
    above = await log.windows.next("before=1620")
    await log.view.evaluate("view => view.scrollTop = 300")
    await expect(follow).not_to_be_checked()  # although it is not connected yet
    await give(page, above, window("line", 62, log_end=2220))
    assert log.sockets.empty()
