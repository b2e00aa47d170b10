"""What a tab costs that follows a chatty job: `./dev bench dashboard --follow`.

A controller, a shim with the process engine, and Chromium without a screen. The figures are CPU
time and no time on a clock, so other load of the machine changes them little.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

import psutil
from playwright.async_api import Page, async_playwright

from examples import demo
from fairlead import Client

CHROMIUM = "/usr/bin/chromium"
PER_PAUSE, PAUSE = 35, 0.1
CHATTY = f"""\
import itertools, time
began = time.monotonic()
for number in itertools.count(1):
    print(f"\\033[32m{{number}}\\033[0m of a job that prints 350 lines a second", flush=True)
    if number % {PER_PAUSE} == 0:
        time.sleep(max(0.0, began + number / {PER_PAUSE} * {PAUSE} - time.monotonic()))
"""
LAST_LINE = """() => Number(
    [...document.querySelectorAll("[data-log-part=view] .log-number")].at(-1)?.dataset.number ?? 0
)"""


def measure(seconds: float) -> None:
    """Print the rows of the table."""
    engine = demo.Engine("process", None, "for the bench")
    with (
        tempfile.TemporaryDirectory(prefix="fairlead-bench-") as folder,
        demo.started(engine, Path(folder)) as (socket, env),
    ):
        demo.fairlead("node", "add", "here", "--local", str(socket), env=env)
        url, token = env["FAIRLEAD_URL"], Path(env["FAIRLEAD_TOKEN_FILE"]).read_text().strip()
        task = {"type": "task", "name": "chatty", "commands": [f"exec python3 -c '{CHATTY}'"]}
        with Client(url, token) as client:
            run = client.submit(task)
            try:
                asyncio.run(_follow(url, token, seconds))
            finally:
                run.stop(abort=True).wait(check=False)


async def _follow(url: str, token: str, seconds: float) -> None:
    async with async_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu"]
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        page = await browser.new_page()
        await page.goto(f"{url}/dashboard/login")
        await page.fill("#token", token)
        await page.click("button")
        await page.locator("#rows").wait_for()
        await page.goto(f"{url}/dashboard/runs/chatty")
        await page.wait_for_function(f"({LAST_LINE})() > {PER_PAUSE}", timeout=120_000)
        await _report(page, seconds)
        await browser.close()


async def _report(page: Page, seconds: float) -> None:
    lines, before, began = await page.evaluate(LAST_LINE), _cpu(), time.monotonic()
    await asyncio.sleep(seconds)
    took = time.monotonic() - began
    used = {pid: cpu - before.get(pid, 0.0) for pid, cpu in _cpu().items()}
    lines = await page.evaluate(LAST_LINE) - lines
    tab, every = max(used.values()) / took, sum(used.values()) / took
    name = f"a tab that follows {lines / took:.0f} lines/s: of one core (all of Chromium)"
    print(f"| {name} | {100 * tab:.1f} ({100 * every:.1f}) % | ≤ 15 % |", flush=True)


def _cpu() -> dict[int, float]:
    """Return the seconds of CPU of each of Chromium's processes; the busiest is the tab's."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        try:
            if "--type=" in " ".join(process.cmdline()) or process.name().startswith("chromium"):
                found[process.pid] = sum(process.cpu_times()[:2])
        except psutil.NoSuchProcess:
            continue
    return found
