"""What the dashboard costs with many runs and many open pages: `./dev bench dashboard`.

A real controller over a database with many ended runs. One page is open in Chromium; the others do
what a page does: hold a stream, and ask for the rows again when it names their topic.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import quantiles
from typing import Any

import aiohttp
import psutil
import uvloop
from msgspec.structs import replace
from playwright.async_api import Page, Response, async_playwright

from bench import followed_log, report
from controller.lifecycle.model import Band, RunState
from controller.store.base import Changes
from controller.store.sql import SqlStore
from controller.store.sqlite import SqliteDatabase
from fairlead.model.statuses import AllocationState, AttemptStatus, RunStatus
from tests.support.processes import ControllerProcess
from tests.unit.store.samples import a_run, submission

CHROMIUM = "/usr/bin/chromium"
MIB = 1 << 20
_BATCH = 500
_DAY = 86400.0
_ENDS = (RunStatus.DONE, RunStatus.FAILED, RunStatus.TERMINATED, RunStatus.DONE)
LISTS = {
    "all": "",
    "status terminated": "?status=terminated",
    "band batch": "?band=batch",
    "user u7": "?user=u7",
    "name *n-77*": "?text=n-77",
    "live": "?status=live",
}
WATCH = """() => {
    window.seen = {};
    new MutationObserver(() => {
        for (const link of document.querySelectorAll("#rows a[data-row]")) {
            window.seen[link.textContent] ??= Date.now();
        }
    }).observe(document.querySelector("main"), {childList: true, subtree: true});
}"""

LIVE = """() => {
    const look = () => {
        const shown = document.getElementById("connection");
        if (shown?.dataset.state === "live") window.live ??= performance.now();
    };
    const options = {subtree: true, childList: true, attributes: true};
    new MutationObserver(look).observe(document, options);
}"""
"""Notes when a page is live, in milliseconds since the click that led to it."""


# -- the database -------------------------------------------------------------------------------


def ended_run(number: int, now: float) -> RunState:
    """A run of the last day with two attempts, ended in one of three ways."""
    at = now - _DAY + number
    state = a_run(
        f"run{number:06}",
        name=f"train-{number}",
        user=f"u{number % 20}",
        status=_ENDS[number % len(_ENDS)],
        submitted_at=at,
    )
    policy = replace(state.run.policy, band=(Band.INTERACTIVE, Band.BATCH)[number % 50 == 0])
    run = replace(state.run, policy=policy, finished_at=at + 60, parent_id=None, suspended=False)
    (job,) = state.jobs
    attempts = tuple(
        replace(one, status=AttemptStatus.FAILED, finished_at=at + 50) for one in job.attempts
    )
    places = tuple(
        replace(one, state=AllocationState.RELEASED, released_at=at + 50)
        for one in state.allocations
    )
    return replace(state, run=run, jobs=(replace(job, attempts=attempts),), allocations=places)


def run_of_jobs(jobs: int, now: float) -> RunState:
    """An ended run with that number of jobs, each with two attempts."""
    state = ended_run(0, now)
    (job,) = state.jobs
    (first, second), places = job.attempts, state.allocations
    every, held = [], []
    for cookie in range(jobs):
        mark = f"-{cookie}"
        attempts = tuple(
            replace(one, id=one.id + mark, job_id=job.id + mark, allocation_id=place.id + mark)
            for one, place in zip((first, second), places, strict=True)
        )
        every.append(replace(job, id=job.id + mark, cookie=cookie, index=cookie, attempts=attempts))
        held += [replace(one, id=one.id + mark, job_id=job.id + mark) for one in places]
    run = replace(state.run, id="large", name="large", submitted_at=now)
    return replace(state, run=run, jobs=tuple(every), allocations=tuple(held))


async def fill(folder: Path, many: int, jobs: int) -> None:
    store = SqlStore(SqliteDatabase(folder))
    await store.open()
    now = time.time()
    for begin in range(0, many, _BATCH):
        states = [ended_run(one, now) for one in range(begin, min(begin + _BATCH, many))]
        runs: Changes = submission(*states)
        await store.commit(runs)
    await store.commit(submission(run_of_jobs(jobs, now)))
    await store.close()


# -- pages --------------------------------------------------------------------------------------


class Opened:
    """A browser that has logged in, without a screen."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url
        self.page_token = ""

    async def log_in(self, token: str) -> None:
        async with self.session.get(f"{self.url}/dashboard/login") as page:
            asked = re.search(r'name="asked" value="([^"]+)"', await page.text())
        assert asked is not None
        form = {"token": token, "asked": asked[1]}
        async with self.session.post(f"{self.url}/dashboard/login", data=form) as answer:
            found = re.search(r'name="fairlead-page" content="([^"]+)"', await answer.text())
        assert found is not None
        self.page_token = found[1]

    async def rows(self, query: str) -> float:
        """Ask for the rows and return the seconds that it took."""
        headers = {"HX-Request": "true", "HX-Target": "rows", "X-Fairlead-Page": self.page_token}
        begin = time.perf_counter()
        address = f"{self.url}/dashboard/runs{query}"
        async with self.session.get(address, headers=headers) as answer:
            await answer.read()
            assert answer.status == 200, await answer.text()
        return time.perf_counter() - begin

    async def follow(self) -> None:
        """Do what an open page does, for ever."""
        headers = {"X-Fairlead-Page": self.page_token}
        quiet = aiohttp.ClientTimeout(total=None)
        address = f"{self.url}/dashboard/stream?topic=any"
        async with self.session.get(address, timeout=quiet, headers=headers) as stream:
            async for line in stream.content:
                if line == b"event: changed\n":
                    await self.rows("")


@contextlib.asynccontextmanager
async def opened(url: str, token: str) -> AsyncIterator[Opened]:
    jar = aiohttp.CookieJar(unsafe=True)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(cookie_jar=jar, connector=connector) as session:
        browser = Opened(session, url)
        await browser.log_in(token)
        yield browser


@contextlib.asynccontextmanager
async def in_chromium(controller: ControllerProcess) -> AsyncIterator[tuple[Page, list[int]]]:
    """Give the page of runs, and the bytes of each answer that opened it."""
    async with async_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu"]
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        context = await browser.new_context()
        page = await context.new_page()
        await page.goto(f"{controller.url}/dashboard/login")
        await page.fill("#token", controller.token)
        await page.click("button")
        await page.locator("#rows").wait_for()
        # As of a reader who never was here.
        context = await browser.new_context(storage_state=await context.storage_state())
        fresh = await context.new_page()
        answers: list[Response] = []
        fresh.on("response", lambda answer: answers.append(answer))
        await fresh.goto(f"{controller.url}/dashboard/runs")
        await fresh.locator('#connection[data-state="live"]').wait_for()
        await page.close()
        done = [one for one in answers if "/dashboard/stream" not in one.url]
        sizes = [await one.request.sizes() for one in done]
        yield fresh, [one["responseBodySize"] + one["responseHeadersSize"] for one in sizes]
        await browser.close()


async def submit(browser: Opened, token: str, name: str) -> None:
    body = {"configuration": {"type": "task", "name": name, "commands": ["true"]}}
    headers = {"Authorization": f"Bearer {token}"}
    async with browser.session.post(f"{browser.url}/v1/runs", json=body, headers=headers) as answer:
        assert answer.status == 201, await answer.text()


async def on_screen(
    page: Page, browser: Opened, token: str, changes: range, pause: float
) -> list[float]:
    """Submit a run for each change, and return the seconds until the page showed it: those of the
    request are among them."""
    began = {}
    await page.evaluate(WATCH)
    for number in changes:
        began[f"new-{number}"] = time.time()
        await submit(browser, token, f"new-{number}")
        await asyncio.sleep(pause)
    await page.get_by_role("link", name=f"new-{changes[-1]}", exact=True).wait_for()
    seen: dict[str, float] = await page.evaluate("window.seen")
    return [seen[name] / 1000 - at for name, at in began.items()]


async def held(page: Page) -> dict[str, float]:
    """Return what the page holds after its rubbish is collected."""
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable")
    await session.send("HeapProfiler.collectGarbage")
    await session.send("HeapProfiler.collectGarbage")
    metrics: dict[str, Any] = await session.send("Performance.getMetrics")
    found = {one["name"]: one["value"] for one in metrics["metrics"]}
    await session.detach()
    return {name: found[name] for name in ("JSHeapUsedSize", "Nodes", "JSEventListeners")}


# -- the table ----------------------------------------------------------------------------------


def _row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


async def _lists(browser: Opened, tries: int) -> None:
    for name, query in LISTS.items():
        begin = f"{query}&" if query else "?"
        await browser.rows(query)
        # Each has an address of its own, so that none shares the rows of the one before.
        cuts = quantiles([await browser.rows(f"{begin}try={at}") for at in range(tries)], n=20)
        p50, p95 = 1000 * cuts[9], 1000 * cuts[18]
        _row(f"Runs, {name}: p50 (p95)", f"{p50:.1f} ({p95:.1f}) ms", "≤ 30 ms")


async def _measure(controller: ControllerProcess, given: argparse.Namespace) -> None:
    token, process = controller.token, psutil.Process(controller.pid)
    async with contextlib.AsyncExitStack() as stack:
        browser = await stack.enter_async_context(opened(controller.url, token))
        await _lists(browser, given.tries)
        before = process.memory_info().rss
        page, sizes = await stack.enter_async_context(in_chromium(controller))
        _row("first page, compressed in all", f"{sum(sizes) / 1024:.0f} KiB", "≤ 150 KiB")
        group = await stack.enter_async_context(asyncio.TaskGroup())
        tasks = [group.create_task(browser.follow()) for _ in range(given.pages - 1)]
        took = await on_screen(page, browser, token, range(given.changes), given.pause)
        cuts = quantiles(took, n=100)
        p50, p99 = 1000 * cuts[49], 1000 * cuts[98]
        name = f"change → on screen with {given.pages} open pages: p50 (p99)"
        _row(name, f"{p50:.0f} ({p99:.0f}) ms", "≤ 250 ms")
        more = (process.memory_info().rss - before) / MIB
        _row(f"controller with {given.pages} open pages", f"+ {more:.1f} MiB", "≤ 20 MiB")
        await _run_of_jobs(page, controller.url, given)
        await _day(page, browser, token, given)
        for task in tasks:
            task.cancel()


async def until_live(page: Page, url: str, name: str, tries: int) -> list[float]:
    """Return the milliseconds from the click on a run's name until its page was live."""
    await page.add_init_script(f"({LIVE})()")
    took = []
    for _ in range(tries):
        await page.goto(f"{url}/dashboard/runs?text={name}")
        await page.locator('#connection[data-state="live"]').wait_for()
        await page.get_by_role("link", name=name, exact=True).click()
        await page.wait_for_url("**/dashboard/runs/*")
        await page.locator('#connection[data-state="live"]').wait_for()
        took.append(float(await page.evaluate("window.live")))
    return took


async def _run_of_jobs(page: Page, url: str, given: argparse.Namespace) -> None:
    fresh = await page.context.new_page()
    cuts = quantiles(await until_live(fresh, url, "large", given.tries), n=20)
    await fresh.close()
    name = f"a run with {given.jobs} jobs, from the click until it is live: p50 (p95)"
    _row(name, f"{cuts[9]:.0f} ({cuts[18]:.0f}) ms", "≤ 300 ms")


async def _day(page: Page, browser: Opened, token: str, given: argparse.Namespace) -> None:
    """Show as many changes as a busy day has, one after the other."""
    first = await held(page)
    begin = given.changes
    await on_screen(page, browser, token, range(begin, begin + given.day), 0.05)
    last = await held(page)
    grown = ", ".join(f"{name} {last[name] - first[name]:+.0f}" for name in first)
    _row(f"a page after {given.day} more changes", grown, "does not grow with them")


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench dashboard", description=__doc__)
    add = parser.add_argument
    add("--runs", type=int, default=10_000, metavar="N", help="in the database")
    add("--pages", type=int, default=50, metavar="N", help="open at once")
    add("--tries", type=int, default=100, metavar="N", help="of each list")
    add("--changes", type=int, default=100, metavar="N", help="whose way to the screen is timed")
    add("--pause", type=float, default=0.5, metavar="N", help="seconds between them")
    add("--jobs", type=int, default=300, metavar="N", help="of the run that is opened")
    add(
        "--follow",
        type=float,
        nargs="?",
        const=20.0,
        metavar="SECONDS",
        help="only what a tab costs that follows a job's log for so long",
    )
    add("--day", type=int, default=300, metavar="N", help="changes that a page lives through")
    given = parser.parse_args()
    machine = report.machine()
    if given.follow is not None:
        print(f"`./dev bench dashboard --follow` ({machine}):\n")
        print("| | | promised |\n|---|---:|---:|", flush=True)
        followed_log.measure(given.follow)
        return
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as name:
        controller = ControllerProcess(Path(name) / "controller")
        controller.start()
        controller.stop()
        asyncio.run(fill(controller.data, given.runs, given.jobs))
        controller.start()
        try:
            print(f"`./dev bench dashboard`, {given.runs} runs ({machine}):\n")
            print("| | | promised |\n|---|---:|---:|")
            uvloop.run(_measure(controller, given))
        finally:
            controller.close()


if __name__ == "__main__":
    main()
