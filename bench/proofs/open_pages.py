"""Pages that stay open leak nothing: 2,000 changes reach a page of runs, of a run and of a
node, and what each holds after its garbage is collected is compared with what it held before.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
import time
from pathlib import Path

import aiohttp
import psutil
from playwright.async_api import Page, async_playwright

from bench.dashboard import CHROMIUM, MIB, Opened, held, opened, submit
from bench.proofs._table import conclude
from tests.support.processes import ControllerProcess

WARM_UP = 300
"""More changes than a page shows events, so that its tables are full at the first look."""
MOST = {"JSHeapUsedSize": 2.0 * MIB, "Nodes": 50.0, "JSEventListeners": 10.0}
MAX_RSS = 32.0
"""What may be there at the second look and not at the first: caches, not a share of each change."""
_QUIET_SECONDS = 2.0


class Watched:
    """A page, and how often it asked for a part of itself."""

    def __init__(self, name: str, page: Page) -> None:
        self.name = name
        self.page = page
        self.asked = 0
        page.on("request", lambda _: self._count())

    def _count(self) -> None:
        self.asked += 1


async def change(browser: Opened, token: str, many: int, pause: float) -> None:
    """Suspend and resume the run by turns; cordon the node with it, and give it work again."""
    headers = {"Authorization": f"Bearer {token}"}
    for number in range(many):
        words = ("resume", "uncordon") if number % 2 else ("suspend", "cordon")
        for address in (f"runs/watched/{words[0]}", f"nodes/here/{words[1]}"):
            url = f"{browser.url}/v1/{address}"
            async with browser.session.post(url, json={}, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
        await asyncio.sleep(pause)
    await asyncio.sleep(_QUIET_SECONDS)  # until the pages have shown the last one


async def _open(stack: contextlib.AsyncExitStack, controller: ControllerProcess) -> list[Watched]:
    playwright = await stack.enter_async_context(async_playwright())
    chromium = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
    stack.push_async_callback(chromium.close)
    context = await chromium.new_context()
    found: list[Watched] = []
    for name in ("runs", "runs/watched", "nodes/here"):
        page = await context.new_page()
        await page.goto(f"{controller.url}/dashboard/{name}")
        if not found:
            await page.fill("#token", controller.token)
            await page.click("button")
        await page.locator('#connection[data-state="live"]').wait_for()
        found.append(Watched(name, page))
    return found


async def _prove(
    controller: ControllerProcess, given: argparse.Namespace
) -> tuple[list[tuple[str, str]], list[str]]:
    process, token = psutil.Process(controller.pid), controller.token
    async with contextlib.AsyncExitStack() as stack:
        browser = await stack.enter_async_context(opened(controller.url, token))
        await submit(browser, token, "watched")
        await _add_node(browser.session, browser.url, token)
        pages = await _open(stack, controller)
        await change(browser, token, WARM_UP, given.pause)
        first = [await held(one.page) for one in pages]
        asked = [one.asked for one in pages]
        rss, begin = process.memory_info().rss, time.monotonic()
        await change(browser, token, given.changes, given.pause)
        took = time.monotonic() - begin
        last = [await held(one.page) for one in pages]
        more = (process.memory_info().rss - rss) / MIB
        figures = [("changes of the run, and of the node", f"{given.changes} in {took:.0f} s")]
        broken = [f"the controller grew by {more:.1f} MiB"] if more > MAX_RSS else []
        for one, before, after, had in zip(pages, first, last, asked, strict=True):
            grown = {name: after[name] - before[name] for name in before}
            growth = ", ".join(f"{name} {before[name]:.0f} {by:+.0f}" for name, by in grown.items())
            figures.append((f"{one.name}, replaced {one.asked - had} times", growth))
            broken += [
                f"{one.name}: {name} {by:+.0f}" for name, by in grown.items() if by > MOST[name]
            ]
        figures.append(("controller", f"{more:+.1f} MiB"))
    return figures, broken


async def _add_node(session: aiohttp.ClientSession, url: str, token: str) -> None:
    body = {"name": "here", "local_socket": "/run/fairlead-proof/none.sock"}
    headers = {"Authorization": f"Bearer {token}"}
    async with session.post(f"{url}/v1/nodes", json=body, headers=headers) as answer:
        assert answer.status == 201, await answer.text()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--changes", type=int, default=1000, metavar="N", help="pushed to the pages"
    )
    parser.add_argument(
        "--pause", type=float, default=0.05, metavar="N", help="seconds between them"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fairlead-pages-") as name:
        controller = ControllerProcess(Path(name) / "controller")
        controller.start()
        try:
            figures, broken = asyncio.run(_prove(controller, given))
        finally:
            controller.close()
    conclude("pages left open", figures, broken)


if __name__ == "__main__":
    main()
