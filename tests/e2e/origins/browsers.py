"""Stock browsers, driven alike: Chromium by playwright, Firefox by its own WebDriver BiDi."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from playwright.async_api import Page as PlaywrightPage
from playwright.async_api import async_playwright
from websockets.asyncio.client import ClientConnection, connect

from tests.e2e.origins.bed import Certificate
from tests.support.waiting import LONG, eventually

CHROMIUM, FIREFOX = "/usr/bin/chromium", "/usr/bin/firefox-esr"
NAMES = (
    "fairlead.test",
    *(
        f"{name}.{domain}"
        for name in ("evil", "notes")
        for domain in ("fairlead.test", "apps.test")
    ),
    "evil.shared.test",
    "notes.shared.test",
)
_DEADLINE = LONG


class Tab(Protocol):
    """One tab."""

    async def go(self, url: str) -> None:
        """Go to an address as one who types it; return when what it led to is loaded."""

    async def set_off(self, url: str) -> None:
        """Go there and do not wait until it is loaded."""

    async def do(self, script: str) -> Any:
        """Return the value of an expression, awaited, in the page; as JSON holds it."""


Open = Callable[[Path, Certificate], AbstractAsyncContextManager[Tab]]


class _ChromiumTab:
    def __init__(self, page: PlaywrightPage) -> None:
        self._page = page

    async def go(self, url: str) -> None:
        await self._page.goto(url)

    async def set_off(self, url: str) -> None:
        await self._page.goto(url, wait_until="commit")

    async def do(self, script: str) -> Any:
        return await self._page.evaluate(script)


@contextlib.asynccontextmanager
async def chromium(folder: Path, certificate: Certificate) -> AsyncIterator[Tab]:
    """A new profile, without what playwright switches off. Its network error reports are sent at
    once, not after a minute."""
    process, said = await _started(
        folder,
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-component-update",
        "--disable-popup-blocking",
        "--short-reporting-delay",
        "--remote-debugging-port=0",
        f"--user-data-dir={folder}",
        "--host-resolver-rules=MAP *.test 127.0.0.1",
        f"--ignore-certificate-errors-spki-list={certificate.pin}",
        "about:blank",
    )
    try:
        address = await _address(process, said, r"DevTools listening on (ws://\S+)")
        async with async_playwright() as playwright:
            browser = await playwright.chromium.connect_over_cdp(address, timeout=1000 * _DEADLINE)
            page = browser.contexts[0].pages[0]
            page.set_default_timeout(1000 * _DEADLINE)
            yield _ChromiumTab(page)
            await browser.close()
    finally:
        await _ended(process)


class _FirefoxTab:
    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._tab = ""

    async def begin(self) -> None:
        await self._ask("session.new", {"capabilities": {"alwaysMatch": _CAPABILITIES}})
        tree = await self._ask("browsingContext.getTree", {})
        self._tab = tree["contexts"][0]["context"]

    async def go(self, url: str) -> None:
        await self._ask("browsingContext.navigate", {"context": self._tab, "url": url, **_LOADED})

    async def set_off(self, url: str) -> None:
        told = {"context": self._tab, "url": url, "wait": "none"}
        await self._ask("browsingContext.navigate", told)

    async def do(self, script: str) -> Any:
        said = {
            "expression": f"(async () => JSON.stringify(await ({script})) ?? null)()",
            "target": {"context": self._tab},
            "awaitPromise": True,
            "userActivation": True,
        }
        answer = await self._ask("script.evaluate", said)
        if answer["type"] == "exception":
            raise AssertionError(answer["exceptionDetails"]["text"])
        return json.loads(answer["result"].get("value", "null"))

    async def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        async with asyncio.timeout(_DEADLINE):
            while True:
                answer = json.loads(await self._socket.recv())
                if answer.get("id") != number:
                    continue
                if answer["type"] == "error":
                    raise AssertionError(f"{method}: {answer['message']}")
                result: dict[str, Any] = answer["result"]
                return result


_CAPABILITIES = {"acceptInsecureCerts": True}
_LOADED = {"wait": "complete"}


@contextlib.asynccontextmanager
async def firefox(folder: Path, certificate: Certificate) -> AsyncIterator[Tab]:
    """A new profile."""
    await asyncio.to_thread(folder.mkdir)
    preferences = {
        "network.dns.localDomains": ",".join(NAMES),
        "dom.disable_open_during_load": False,
    }
    lines = [
        f"user_pref({json.dumps(name)}, {json.dumps(one)});" for name, one in preferences.items()
    ]
    await asyncio.to_thread((folder / "user.js").write_text, "\n".join(lines))
    options = ("--headless", "--no-remote", "--profile", str(folder), "--remote-debugging-port=0")
    process, said = await _started(folder, FIREFOX, *options)
    try:
        address = await _address(process, said, r"WebDriver BiDi listening on (ws://\S+)")
        # By default it has 10 s to begin, and 20 s to answer a ping: a busy one needs more.
        async with connect(
            f"{address}/session",
            max_size=1 << 26,
            proxy=None,
            open_timeout=_DEADLINE,
            ping_interval=None,
        ) as socket:
            tab = _FirefoxTab(socket)
            await tab.begin()
            yield tab
    finally:
        await _ended(process)


async def _started(folder: Path, *argv: str) -> tuple[asyncio.subprocess.Process, Path]:
    """Start a browser; return it and the file of what it says. Nobody would read a pipe to its end,
    and a browser that has filled one stands still (pipe(7))."""
    said = folder.with_suffix(".log")
    with await asyncio.to_thread(said.open, "wb") as log:
        process = await asyncio.create_subprocess_exec(
            *argv, stdout=asyncio.subprocess.DEVNULL, stderr=log
        )
    return process, said


async def _address(process: asyncio.subprocess.Process, said: Path, sign: str) -> str:
    def address() -> str:
        found = re.search(sign, said.read_text(errors="replace"))
        assert found is not None or process.returncode is None, "it ended before it listened"
        return found[1] if found is not None else ""

    return await eventually(address)


async def _ended(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    await process.wait()
