"""code-server itself, as a dev environment, opens in a Chromium through the controller with a
user's login, at a host name of its own. There the user opens a file and works in a terminal, also
after a reload, and its service workers work.

code-server is `--program`, or what PATH has: npm brings it (`npm install --global code-server`,
with a compiler and libkrb5-dev), or its bundle.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
from playwright.async_api import Page, async_playwright

from bench.proofs._desk import controller_with_a_node, open_logged_in
from bench.proofs._table import conclude
from tests.support.processes import ControllerProcess
from tests.support.waiting import eventually

NAME = "code"
DOMAIN = "localhost"
"""Browsers take each name below it for the loopback, and for a secure origin."""
_DEADLINE = 60.0
_SCOPES = "navigator.serviceWorker.getRegistrations().then(all => all.map(one => one.scope))"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default=shutil.which("code-server"), metavar="FILE")
    program = parser.parse_args().program
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None or chromium is None:
        raise SystemExit("needs code-server (in PATH, or --program FILE) and Chromium in PATH")
    folder = Path(tempfile.mkdtemp(prefix="fl-code-", dir="/tmp"))
    try:
        with controller_with_a_node(folder) as controller:
            _apply(controller, folder, Path(program))
            figures, broken = asyncio.run(_prove(controller, folder / "work", chromium))
            controller.cli("stop", NAME, "--abort").succeeded()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    conclude("code-server through the controller's proxy", figures, broken)


def _apply(controller: ControllerProcess, folder: Path, program: Path) -> None:
    for name in ("bin", "home", "work"):
        (folder / name).mkdir()
    (folder / "bin/code-server").symlink_to(program.resolve())
    (folder / "work/hello.txt").write_text("hello there\n")
    written = {
        "type": "dev-environment",
        "name": NAME,
        "ide": "code-server",
        "env": {"PATH": f"{folder}/bin:/usr/bin:/bin", "HOME": str(folder / "home")},
        "working_dir": str(folder / "work"),
        "resources": {"cpu": 0.5, "memory": "1GiB"},
    }
    file = folder / "code.yaml"
    file.write_text(json.dumps(written))
    controller.cli("apply", "-d", "-f", file).succeeded()


async def _prove(
    controller: ControllerProcess, work: Path, chromium: str
) -> tuple[list[tuple[str, object]], list[str]]:
    figures, broken = list[tuple[str, object]](), list[str]()
    below, port = f"{controller.url}/services/{NAME}/", urlsplit(controller.url).port
    answers: bool = await eventually(partial(_answers, below, controller.token), _DEADLINE)
    assert answers
    own, begin = f"http://{NAME}.{DOMAIN}:{port}/", time.perf_counter()
    async with _opened(chromium, controller) as page:
        figures.append(("login to workbench", f"{time.perf_counter() - begin:.1f} s"))
        await page.get_by_role("treeitem", name="hello.txt").dblclick()
        await page.wait_for_selector(".view-line:has-text('hello')")
        await _in_a_terminal(page, work / "first")
        await page.reload()  # it opens no file again by itself, with or without a proxy
        await page.get_by_role("treeitem", name="hello.txt").dblclick()
        await page.wait_for_selector(".view-line:has-text('hello')")
        await _in_a_terminal(page, work / "second")
        seconds = time.perf_counter() - begin
        figures.append(("file, terminal, reload, terminal", f"{seconds:.1f} s"))
        scopes = await page.evaluate(_SCOPES)
        place = page.url
    if not place.startswith(own) or own not in scopes:
        broken.append(f"it is at {place}, and its service workers are {scopes}")
    return figures, broken


async def _answers(base: str, token: str) -> bool:
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.request("GET", f"{base}healthz", headers=headers) as answer:
        return answer.status == 200


@asynccontextmanager
async def _opened(chromium: str, controller: ControllerProcess) -> AsyncIterator[Page]:
    """Log in at the dashboard, open the workbench and trust its folder. Raises playwright's
    TimeoutError."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = await browser.new_page()
        page.set_default_timeout(1000 * _DEADLINE)
        await open_logged_in(page, controller, NAME, "/")
        await page.wait_for_selector(".monaco-workbench")
        await page.get_by_role("button", name="Yes, I trust the authors").click()
        yield page
        await browser.close()


async def _in_a_terminal(page: Page, made: Path) -> None:
    """Open a terminal and make a file by a command that is typed there."""
    await asyncio.to_thread(made.unlink, missing_ok=True)
    await page.keyboard.press("Control+Shift+Backquote")
    done: bool = await eventually(partial(_typed, page, made), _DEADLINE, "a terminal that works")
    assert done


async def _typed(page: Page, made: Path) -> bool:
    """Type the command, unless it was run. A terminal that is still opening misses it."""
    if await asyncio.to_thread(made.exists):
        return True
    terminal = page.locator(".xterm-helper-textarea")
    if await terminal.count():
        await terminal.last.focus()
        await page.keyboard.type(f"touch {made}\n")
        await page.wait_for_timeout(1000)
    return False


if __name__ == "__main__":
    main()
