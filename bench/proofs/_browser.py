"""A headless Chromium, driven by its DevTools protocol, as far as a proof needs it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.waiting import eventually

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
_DEADLINE = 60.0


def program() -> str | None:
    """Return the path of Chromium; None: there is none here."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


class Page:
    """One tab."""

    def __init__(self, channel: aiohttp.ClientWebSocketResponse) -> None:
        self._channel = channel
        self._ids = itertools.count(1)

    async def go(self, url: str) -> None:
        await self._ask("Page.navigate", url=url)

    async def run(self, script: str) -> Any:
        """Run a script; return its value. A page that is being left gives None."""
        answer = await self._ask("Runtime.evaluate", expression=script, returnByValue=True)
        return answer.get("result", {}).get("result", {}).get("value")

    async def wait_for(self, selector: str) -> None:
        """Wait until the page has such an element. Raises TimeoutError."""
        script = f"!!document.querySelector({json.dumps(selector)})"
        await eventually(lambda: self.run(script), _DEADLINE, selector)

    async def _ask(self, method: str, **given: object) -> dict[str, Any]:
        number = next(self._ids)
        await self._channel.send_json({"id": number, "method": method, "params": given})
        async with asyncio.timeout(_DEADLINE):
            while True:
                answer: dict[str, Any] = await self._channel.receive_json()
                if answer.get("id") == number:
                    return answer


@contextlib.asynccontextmanager
async def page(chromium: str, profile: Path, url: str) -> AsyncIterator[Page]:
    """A browser with one tab that opens `url`."""
    options = (*_OPTIONS, "--remote-debugging-port=0", f"--user-data-dir={profile}", url)
    process = await asyncio.create_subprocess_exec(
        chromium, *options, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        told = profile / "DevToolsActivePort"
        await eventually(lambda: told.exists() and told.read_text(), _DEADLINE, "Chromium")
        port = int(told.read_text().split()[0])
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                tabs = [one for one in await answer.json() if one["type"] == "page"]
            there = tabs[0]["webSocketDebuggerUrl"]
            async with session.ws_connect(there, max_msg_size=0) as channel:
                yield Page(channel)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
