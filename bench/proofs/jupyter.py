"""JupyterLab itself, as a dev environment, opens through the controller with a user's login and
runs cells; without the login neither its pages nor its kernels are reached. Where there is a
Chromium, its user logs in at the dashboard and runs a cell of a notebook, too.

JupyterLab comes from pip into an environment of its own, unless `--venv` names one that has it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
from playwright.async_api import Page, async_playwright

from bench.proofs._desk import controller_with_a_node, open_logged_in
from bench.proofs._table import conclude
from tests.support.processes import ControllerProcess
from tests.support.waiting import eventually

NAME = "notes"
MAX_CELL_SECONDS = 0.5
_DEADLINE = 120.0
_NOTEBOOK: dict[str, Any] = {
    "cells": [
        {"cell_type": "code", "id": "one", "source": "print(42 * 42)", "outputs": []}
        | {"metadata": {}, "execution_count": None}
    ],
    "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, metavar="FOLDER")
    parser.add_argument("--cells", type=int, default=50, metavar="N")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fl-lab-", dir="/tmp"))
    try:
        venv = given.venv or _with_jupyterlab(folder / "venv")
        with controller_with_a_node(folder) as controller:
            figures, broken = asyncio.run(_prove(controller, folder, venv, given.cells))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    conclude("JupyterLab through the controller's proxy", figures, broken)


def _with_jupyterlab(venv: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run([venv / "bin/pip", "install", "--quiet", "jupyterlab"], check=True)
    return venv


async def _prove(
    controller: ControllerProcess, folder: Path, venv: Path, cells: int
) -> tuple[list[tuple[str, object]], list[str]]:
    begin = time.perf_counter()
    _apply(controller, folder, venv)
    base, broken = f"{controller.url}/services/{NAME}", list[str]()
    async with aiohttp.ClientSession(
        cookie_jar=aiohttp.CookieJar(unsafe=True),
        headers={"Authorization": f"Bearer {controller.token}"},
    ) as program:
        asked = partial(_version, program, base)
        version: str | None = await eventually(asked, _DEADLINE)
        opened = time.perf_counter() - begin
        broken += await _strangers(base)
        async with program.get(f"{base}/lab") as answer:
            page = await answer.text()
        if answer.status != 200 or "JupyterLab" not in page:
            broken.append(f"with a token: {answer.status}, and no page of JupyterLab")
        seconds, wrong = await _run_cells(program, base, cells)
    in_chromium = await _in_chromium(controller)
    slow = [f"a cell takes {median(seconds):.3f} s"] if median(seconds) > MAX_CELL_SECONDS else []
    controller.cli("stop", NAME, "--abort").succeeded()
    figures: list[tuple[str, object]] = [
        ("JupyterLab's server", version),
        ("`apply` to its first answer", f"{opened:.1f} s"),
        ("cells run", cells),
        ("a cell, median", f"{1000 * median(seconds):.1f} ms"),
        ("in Chromium: login, page and cell", in_chromium),
    ]
    return figures, broken + wrong + slow


async def _in_chromium(controller: ControllerProcess) -> str:
    """Log in at the dashboard and run a notebook's cell; return how long it took. Raises
    playwright's TimeoutError."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        return "not tried: there is none here"
    begin, notebook = time.perf_counter(), f"/services/{NAME}/lab/tree/cell.ipynb"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = await browser.new_page()
        await open_logged_in(page, controller, NAME, notebook)
        await page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]")
        ran: bool = await eventually(partial(_ran_in, page), _DEADLINE, "the cell's output")
        assert ran
        await browser.close()
    return f"{time.perf_counter() - begin:.1f} s"


async def _ran_in(page: Page) -> bool:
    """Run the cell, unless it has. A notebook that is still being drawn misses the key."""
    if "1764" in "".join(await page.locator(".jp-OutputArea-output").all_text_contents()):
        return True
    await page.locator(".jp-Notebook .cm-content").first.click()
    await page.keyboard.press("Control+Enter")
    await page.wait_for_timeout(500)
    return False


def _apply(controller: ControllerProcess, folder: Path, venv: Path) -> None:
    written = {
        "type": "dev-environment",
        "name": NAME,
        "ide": "jupyter",
        "env": {"PATH": f"{venv}/bin:/usr/bin:/bin"},
        "working_dir": str(folder / "work"),
        "resources": {"cpu": 0.5, "memory": "256MiB"},
    }
    (folder / "work").mkdir()
    (folder / "work/cell.ipynb").write_text(json.dumps(_NOTEBOOK))
    file = folder / "notes.yaml"
    file.write_text(json.dumps(written))
    controller.cli("apply", "-d", "-f", file).succeeded()


async def _version(program: aiohttp.ClientSession, base: str) -> str | None:
    async with program.get(f"{base}/api") as answer:
        return (await answer.json())["version"] if answer.status == 200 else None


async def _strangers(base: str) -> list[str]:
    """Return what somebody without a login reaches."""
    reached = []
    async with aiohttp.ClientSession() as stranger:
        for path in ("/lab", "/api/kernels", "/api/kernels/1/channels"):
            async with stranger.get(base + path) as answer:
                if answer.status != 401:
                    reached.append(f"without a login {path} answers {answer.status}")
    return reached


async def _run_cells(
    program: aiohttp.ClientSession, base: str, cells: int
) -> tuple[list[float], list[str]]:
    cookies = {cookie.key: cookie.value for cookie in program.cookie_jar}
    headers = {"X-XSRFToken": cookies.get("_xsrf", "")}
    async with program.post(f"{base}/api/kernels", json={}, headers=headers) as answer:
        kernel = (await answer.json())["id"]
    seconds, wrong = [], []
    async with program.ws_connect(f"{base}/api/kernels/{kernel}/channels") as channels:
        for number in range(cells):
            begin = time.perf_counter()
            printed = await _run_cell(channels, f"print({number} * {number})")
            seconds.append(time.perf_counter() - begin)
            if printed != f"{number * number}\n":
                wrong.append(f"cell {number} printed {printed!r}")
    return seconds, wrong


async def _run_cell(channels: aiohttp.ClientWebSocketResponse, code: str) -> str:
    """Run one cell; return what it printed."""
    message = uuid.uuid4().hex
    await channels.send_json(_execute(message, code))
    printed = ""
    async with asyncio.timeout(_DEADLINE):
        while True:
            came = json.loads(await channels.receive_str())
            if came["parent_header"].get("msg_id") != message:
                continue
            if came["msg_type"] == "stream":
                printed += came["content"]["text"]
            elif came["msg_type"] == "status" and came["content"]["execution_state"] == "idle":
                return printed


def _execute(message: str, code: str) -> dict[str, Any]:
    return {
        "channel": "shell",
        "header": {"msg_id": message, "msg_type": "execute_request", "version": "5.3"}
        | {"session": "proof", "username": "", "date": "2026-01-01T00:00:00Z"},
        "parent_header": {},
        "metadata": {},
        "content": {"code": code, "silent": False, "store_history": True}
        | {"user_expressions": {}, "allow_stdin": False, "stop_on_error": True},
        "buffers": [],
    }


if __name__ == "__main__":
    main()
