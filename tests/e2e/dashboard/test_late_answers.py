"""The dashboard in Chromium when an answer comes after the reader has gone on."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import pytest
from aiohttp.test_utils import TestServer
from playwright.async_api import Browser, Page, Route, WebSocketRoute, expect

from tests.e2e.dashboard.conftest import LIVE, PATIENCE, visit
from tests.e2e.dashboard.test_browser import CHANGED, TASK, address_of, submit
from tests.support.waiting import LONG
from tests.unit.api.conftest import Controller
from tests.unit.store.samples import submission
from tests.unit.web.test_jobs import a_sweep

pytestmark = pytest.mark.e2e

T = TypeVar("T")

WINDOWS, SEARCHES, FOLLOWED = "**/logs/window*", "**/logs/search*", "**/logs/ws*"
AT_END = "view => view.scrollHeight - view.scrollTop - view.clientHeight < 40"
ROW = 10
"""Bytes of a line of the log."""
SUBMIT_TWICE = """(form) => [1, 2].map(() =>
    form.dispatchEvent(new SubmitEvent("submit", { bubbles: true, cancelable: true })))"""
"""Whether a click would send the form: no driver clicks on a page that is about to be left."""
TWO_QUESTIONS = """() => {
    document.getElementById("act-stop").click();
    document.querySelector("#confirm button[value=yes]").click();
    document.getElementById("act-suspend").click();
}"""
"""In one go, as quick clicks are heard by a page that is busy."""
TWO_PAGES = """async (script) => {
    const { Hub } = await import(script);
    const pages = [[], []].map((told) => ({ told, postMessage: (one) => told.push(one) }));
    const streams = [];
    window.fetch = async () => {
        const { readable, writable } = new TransformStream();
        const writer = writable.getWriter();
        const bytes = new TextEncoder();
        streams.push((name, said) =>
            writer.write(bytes.encode(`event: ${name}\\ndata: ${JSON.stringify(said)}\\n\\n`)));
        return { ok: true, body: readable };
    };
    const hub = new Hub();
    const heard = async (page, many) => {
        while (page.told.length < many) await new Promise((done) => setTimeout(done));
    };
    hub.follow(pages[0], { follow: { one: "a-1" }, token: "t" });
    streams[0]("hello", { version: "v", mark: "a-1", now: 1, broken: {} });
    await heard(pages[0], 1);
    hub.follow(pages[1], { follow: { two: "a-1" }, token: "t" });
    streams[0]("beat", { mark: "a-9", now: 2 });
    await heard(pages[0], 2);
    hub.close();
    return pages[1].told;
}"""
"""What the second page is told before its stream begins."""
SCROLL_AND_DRAW = """(view) => {
    view.scrollTop = 0;
    window.drawNow();
    return view.scrollTop;
}"""
DRAW_AND_SCROLL = """(view) => {
    window.drawNow();
    view.scrollTop -= 300;
}"""
"""As a browser does whose reader went up before it drew: it moves the view from where it is now."""
DRAW_BY_HAND = """
    const later = window.setTimeout;
    window.setTimeout = (act, wait, ...rest) => {
        if (!String(act).includes("drawQueued")) return later(act, wait, ...rest);
        window.drawNow = act;
        return 1;
    };
"""
"""What is drawn some time after a frame came is drawn when the test says so."""


ASK_BY_HAND = """
    const each = window.setInterval, began = Date.now();
    window.late = 0;
    Date.now = () => began + window.late;
    window.setInterval = (act, wait, ...rest) => {
        if (!String(act).includes("isAnswered")) return each(act, wait, ...rest);
        window.askNow = act;
        return each(() => 0, 1000000);
    };
"""
"""A log asks whether the controller is there when the test says so, and so late."""


async def taken(queue: asyncio.Queue[T]) -> T:
    """Return what comes next; the limit is for a test that fails."""
    async with asyncio.timeout(LONG):
        return await queue.get()


class Held:
    """The answers to some requests of a page, each of which waits until the test gives it."""

    def __init__(self) -> None:
        self._routes: asyncio.Queue[Route] = asyncio.Queue()
        self._is_over = False

    async def __call__(self, route: Route) -> None:
        if self._is_over:
            await route.abort()
        else:
            self._routes.put_nowait(route)

    async def end(self) -> None:
        """Refuse the requests that the test has not taken, such as those that a page makes from
        time to time: playwright waits for the answer to each that it was told to hold."""
        self._is_over = True
        while not self._routes.empty():
            await self._routes.get_nowait().abort()

    async def next(self, part: str = "") -> Route:
        route = await taken(self._routes)
        assert part in route.request.url
        return route


async def give(
    page: Page, route: Route, answer: dict[str, Any] | None = None, status: int = 200
) -> None:
    """Answer, and return when the page's scripts have the answer."""
    async with page.expect_event("requestfinished", lambda one: one == route.request):
        if answer is None:
            await route.continue_()
        else:
            await route.fulfill(json=answer, status=status)
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
    """The log on the page of a run with ten jobs, of which the one with the number 7 failed; the
    test answers for the controller."""

    def __init__(self, page: Page, address: str, windows: Held, searches: Held) -> None:
        self.page = page
        self.address = address
        self.windows, self.searches = windows, searches
        self.sockets: asyncio.Queue[WebSocketRoute] = asyncio.Queue()
        self.asked: asyncio.Queue[str | bytes] = asyncio.Queue()
        """What the page says to those that follow for it."""
        self.may_connect = asyncio.Event()
        self.may_connect.set()
        self.view, self.rows = page.locator(".log-view"), page.locator(".log-row")
        self.here = page.locator(".log-here .log-text")

    def part(self, name: str) -> Any:
        return self.page.locator(f"[data-log-part={name}]")

    async def open(self) -> Route:
        """Return the request for the end of the first job's log."""
        await self.page.route(WINDOWS, self.windows)
        await self.page.route(SEARCHES, self.searches)
        await self.page.route_web_socket(FOLLOWED, self._follow)
        await self.page.add_init_script(DRAW_BY_HAND)
        await self.page.goto(f"{self.address}/dashboard/runs/sweep")
        return await self.windows.next("attempt=of-0-attempt-0")

    async def _follow(self, socket: WebSocketRoute) -> None:
        socket.on_message(self.asked.put_nowait)
        self.sockets.put_nowait(socket)
        await self.may_connect.wait()

    async def choose(self, job: int) -> Route:
        await self.part("choice").select_option(f"of-{job}-attempt-0")
        return await self.windows.next(f"attempt=of-{job}-attempt-0")


MakeHeld = Callable[[], Held]


@pytest.fixture
async def held(chromium: Browser) -> AsyncIterator[MakeHeld]:
    """It needs the browser to be there until the end of what it made."""
    made: list[Held] = []

    def make() -> Held:
        made.append(Held())
        return made[-1]

    yield make
    for one in made:
        await one.end()


@pytest.fixture
async def log(chromium: Browser, controller: Controller, site: TestServer, held: MakeHeld) -> Log:
    await controller.store.commit(submission(a_sweep(10)))
    page = await visit(chromium, controller, address_of(site), "admin")
    return Log(page, address_of(site), held(), held())


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

    time, nothing = log.part("time"), window("second", lines=0, log_end=1000)
    await time.fill("2999-01-01T10:00:00")
    await give(page, await log.windows.next("at=2999"), nothing)
    end = await log.windows.next()
    await time.fill("2998-01-01T10:00:00")
    late = await log.windows.next("at=2998")
    await time.fill("2020-01-01T10:00:00")
    early = await log.windows.next("at=2020")
    await give(page, end, window("second"))
    await give(page, late, nothing)
    await give(page, early, window("second", 20, 80))
    await expect(log.here).to_have_text("second 20")
    await expect(status).to_have_text("")
    await give(page, await log.windows.next("before=200"), window("second", 0, 20, 1000))
    first = await log.choose(0)
    await give(page, first, window("first"))

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

    late = await log.choose(0)
    await give(page, await log.choose(1), window("second"))
    await give(page, late, {"error": {"message": "the node is away"}}, status=503)
    await expect(status).to_have_text("")


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
    socket = await taken(log.sockets)
    await expect(log.rows.last).to_have_text("line 219")
    assert await log.view.evaluate(AT_END)

    socket.send(json.dumps(frame("line", 220)))
    await page.wait_for_function("!!window.drawNow")
    await page.evaluate("drawNow()")
    await place.evaluate("one => { one.value = 7; one.dispatchEvent(new Event('input')); }")
    await expect(follow).not_to_be_checked()
    # The browser tells of the scroll of a drawing with its next picture, maybe only now.
    await log.view.evaluate("view => view.dispatchEvent(new Event('scroll'))")
    await place.evaluate("one => one.dispatchEvent(new Event('change'))")
    await give(page, await log.windows.next("near=7"), window("line", log_end=2210))

    await follow.check()
    await give(page, await log.windows.next(), window("line", 121))
    socket = await taken(log.sockets)
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

    await place.evaluate("one => { one.value = 7; one.dispatchEvent(new Event('input')); }")
    await place.dispatch_event("pointerup")  # where it was taken: no change
    await log.view.evaluate("view => view.dispatchEvent(new Event('scroll'))")
    await expect(place).not_to_have_value("7")


async def test_a_log_whose_controller_says_nothing_any_more_goes_on_at_another_one(
    log: Log,
) -> None:
    page, asked = log.page, log.asked
    await page.add_init_script(ASK_BY_HAND)
    await give(page, await log.open(), window("line"))
    socket = await taken(log.sockets)
    await taken(asked)  # at once, so that its controller is known to answer

    async def draws(number: int, by: WebSocketRoute) -> None:
        by.send(json.dumps(frame("line", number)))
        await page.wait_for_function("!!window.drawNow")
        await page.evaluate("drawNow(); delete window.drawNow")
        await expect(log.rows.last).to_have_text(f"line {number}")

    async def asks(late: int) -> None:
        await page.evaluate(f"window.late = {late}; askNow()")

    await draws(100, socket)
    # One of an earlier version answers no question.
    await asks(0)
    await taken(asked)
    await asks(16_000)
    await taken(asked)
    socket.send("{}")
    await draws(101, socket)

    await asks(20_000)
    await taken(asked)
    await asks(34_000)
    await taken(asked)
    assert log.sockets.empty()
    log.may_connect.clear()
    await asks(36_000)
    await expect(log.part("status")).to_have_text("The connection was lost; trying again.")
    # The kernel of the next one takes the connection, and its process hangs.
    await taken(log.sockets)
    await asks(50_000)
    assert log.sockets.empty()
    await asks(52_000)
    log.may_connect.set()
    again = await taken(log.sockets)
    assert f"offset={102 * ROW}&" in again.url
    # This one is of an earlier version again, unlike the first, which has answered.
    await taken(asked)
    await asks(60_000)
    await taken(asked)
    await asks(70_000)
    await taken(asked)
    await draws(102, again)
    assert log.sockets.empty()
    await expect(log.rows).to_have_count(103)
    await expect(log.part("status")).to_have_text("")


async def test_a_reader_who_goes_up_while_rows_are_drawn_stays_there(log: Log) -> None:
    page = log.page
    await give(page, await log.open(), window("line"))
    socket = await taken(log.sockets)
    more = "".join(f"line {number}\n" for number in range(100, 200))
    socket.send(json.dumps({**frame("line", 100), "end": 200 * ROW, "text": more}))
    await page.wait_for_function("!!window.drawNow")
    await log.view.evaluate(DRAW_AND_SCROLL)
    await expect(log.part("follow")).not_to_be_checked()
    await expect(log.rows.last).to_have_text("line 199")
    assert not await log.view.evaluate(AT_END)


async def test_a_list_shows_what_the_reader_chose_last(log: Log, held: MakeHeld) -> None:
    """Whatever was asked for before a choice comes after it."""
    page, parts, rows = log.page, held(), log.page.locator("#jobs a[id^=job-]")
    await give(page, await log.open(), window("line"))
    await page.locator(LIVE).wait_for()
    await page.route(lambda url: url.partition("?")[0].endswith("/runs/sweep"), parts)

    await page.evaluate(CHANGED)
    refresh = await parts.next("sweep")
    await page.locator(".states a", has_text="failed").click()
    await give(page, await parts.next("sweep?state=failed"))
    await expect(rows).to_have_text(["main/7"])
    await give(page, refresh)
    await expect(page).to_have_url(re.compile("state=failed"))
    await give(page, await parts.next("state=failed"))  # what changed is asked for again
    await expect(rows).to_have_text(["main/7"])

    await page.locator(".states a", has_text="running").click()
    running = await parts.next("sweep?state=running")
    await page.get_by_label("Find").evaluate(
        "one => { one.focus(); one.value = 'node-3'; one.form.requestSubmit(); }"
    )
    await give(page, running)
    await give(page, await parts.next("state=running"))
    await expect(rows).to_have_text(["main/3"])

    await page.locator(".states a", has_text="failed").click()
    failed = await parts.next("state=failed")
    await page.get_by_role("button", name="Abort").last.click()
    await give(page, failed)
    await page.route("**/job-3/abort", lambda route: route.fulfill(status=204))
    async with page.expect_request("**/job-3/abort"):
        await page.get_by_role("button", name="Yes").click()
    await give(page, await parts.next("state=failed"))  # now that its button may go
    await expect(rows).to_have_count(0)


async def test_a_filter_of_the_runs_outlives_a_refresh_that_was_asked_for_before(
    chromium: Browser, controller: Controller, site: TestServer, held: MakeHeld
) -> None:
    await controller.store.commit(submission(a_sweep(2)))
    page, parts = await visit(chromium, controller, address_of(site), "admin"), held()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    rows = page.locator("#rows a[data-row]")
    await expect(rows).to_have_text(["sweep"])
    await page.route(lambda url: url.partition("?")[0].endswith("/dashboard/runs"), parts)
    await page.evaluate("document.getElementById('rows').dispatchEvent(new CustomEvent('changed'))")
    refresh = await parts.next()
    await page.get_by_label("Band").select_option("batch")
    await give(page, await parts.next("band=batch"))
    await expect(rows).to_have_count(0)
    await give(page, refresh)
    await expect(rows).to_have_count(0)
    assert faults == []


async def test_each_question_and_each_click_is_acted_on_once(
    chromium: Browser, controller: Controller, site: TestServer, held: MakeHeld
) -> None:
    run_id = await submit(controller, "train")
    page, posts = await visit(chromium, controller, address_of(site), "admin"), held()
    await page.goto(f"{address_of(site)}/dashboard/runs/{run_id}")
    await page.locator(LIVE).wait_for()
    await page.route(lambda url: "/actions/" in url or url.endswith(("/scale", "/logout")), posts)

    await page.evaluate(TWO_QUESTIONS)
    await expect(page.locator("#confirm")).to_contain_text("Suspend train?")
    stop = await posts.next("/actions/stop")
    await page.get_by_role("button", name="Cancel").click()
    await stop.fulfill(status=204)

    wanted = page.locator("#scale-main")
    await wanted.fill("3")
    await page.get_by_role("button", name="Scale").click()
    await page.get_by_role("button", name="Yes").click()
    scale = await posts.next("/scale")
    await wanted.fill("5")
    await give(page, scale)  # and the page shows 3 jobs, or 1, when it is refreshed
    await page.evaluate(CHANGED)
    await expect(page.locator("a[id^=job-]")).to_have_count(3)
    await expect(wanted).to_have_value("5")

    sent: list[str] = []
    page.on("request", lambda one: sent.append(one.url) if one.method == "POST" else None)
    await page.get_by_role("button", name="Log out").evaluate(
        "one => { one.click(); one.click(); }"
    )
    await give(page, await posts.next("/logout"), {})
    assert len(sent) == 1


async def test_a_link_logs_in_once_also_when_it_is_clicked_twice_or_follows_another(
    chromium: Browser, controller: Controller, site: TestServer
) -> None:
    token = next(one for one in controller.service.accounts.gate.tokens if one.user == "admin")
    code = controller.service.accounts.login_links.make(token).code
    page = await chromium.new_page()
    page.set_default_timeout(PATIENCE)
    await page.goto(f"{address_of(site)}/dashboard/enter#an-old-one")
    await expect(page.locator("#who.refusal")).to_be_visible()
    assert await page.locator("#enter").evaluate(SUBMIT_TWICE) == [True, False]
    await page.goto(f"{address_of(site)}/dashboard/enter#{code}")
    await page.get_by_role("button", name="Log in").click()
    await page.locator(LIVE).wait_for()
    await page.context.close()


async def test_a_terminal_and_plots_are_those_that_were_asked_for_last(
    chromium: Browser, controller: Controller, site: TestServer, held: MakeHeld
) -> None:
    run_id = await submit(controller, "train", like={**TASK, "ssh": "embedded"})
    page = await visit(chromium, controller, address_of(site), "admin")
    sockets: asyncio.Queue[WebSocketRoute] = asyncio.Queue()
    may_connect, sizes = asyncio.Event(), asyncio.Queue[str | bytes]()

    async def connect(socket: WebSocketRoute) -> None:
        socket.on_message(sizes.put_nowait)
        socket.on_close(lambda _code, _reason: None)  # the test tells the page of it
        sockets.put_nowait(socket)
        await may_connect.wait()

    histories = held()
    await page.route("**/metrics/history*", histories)
    await page.route_web_socket("**/terminal*", connect)
    await page.goto(f"{address_of(site)}/dashboard/runs/{run_id}")
    await page.locator(LIVE).wait_for()
    form, screen = page.locator("[data-terminal-part=form]"), page.locator(".xterm-screen")
    status, close = page.locator("#terminal [role=status]"), page.locator("#terminal [type=button]")

    span, told = page.locator("[data-plots-part=span]"), page.locator("#plots [role=status]")
    await span.scroll_into_view_if_needed()
    hour = await histories.next("seconds=3600")
    async with page.expect_event("requestfailed", lambda one: one == hour.request):
        await span.select_option("900")
    await hour.abort()
    await give(page, await histories.next("seconds=900"), {"jobs": [], "until": None})
    await expect(told).to_have_text("Nothing was measured in this time.")

    await form.evaluate("one => { one.requestSubmit(); one.requestSubmit(); }")
    first = await taken(sockets)
    await expect(status).to_have_text("Connecting \N{HORIZONTAL ELLIPSIS}")
    await expect(screen).to_have_count(1)
    assert sockets.empty()
    width = await screen.evaluate("one => one.clientWidth")
    await page.set_viewport_size({"width": 640, "height": 720})
    await page.wait_for_function(
        "width => document.querySelector('.xterm-screen').clientWidth < width", arg=width
    )
    await page.locator("[data-log-part=search]").focus()
    may_connect.set()
    await expect(status).to_contain_text("Connected")
    size = await taken(sizes)
    assert set(json.loads(size)) == {"columns", "rows"}
    await expect(page.locator("[data-log-part=search]")).to_be_focused()

    await page.locator("[data-terminal-part=open]").click()
    await taken(sockets)
    await expect(status).to_contain_text("Connected")
    await first.close()
    await page.evaluate("new Promise((done) => setTimeout(done))")
    await expect(status).to_contain_text("Connected")
    await close.focus()
    await close.click()
    await expect(status).to_have_text("The connection was closed.")
    await expect(page.locator("[data-terminal-part=open]")).to_be_focused()


async def test_a_page_that_waits_for_a_stream_of_its_own_misses_no_change(
    chromium: Browser, controller: Controller, site: TestServer
) -> None:
    """A beat of the stream that other pages have says nothing of this page's run."""
    page = await visit(chromium, controller, address_of(site), "admin")
    script = await page.evaluate("document.querySelector('script[src*=worker]').src")
    told = await page.evaluate(TWO_PAGES, script.replace("worker", "stream"))
    assert told == [{"state": "live", "now": 2}]
