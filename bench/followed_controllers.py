"""What watches and dashboards cost the leader, when they are at it and when they are at a follower.

Runs are suspended and resumed by turns, at a steady pace, through the leader. Meanwhile each watch
reads the lines of one run, and each dashboard is told of changes and fetches the rows of its page
again.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import cycle

import aiohttp
import msgspec

from bench.runner_start import cpu_seconds
from tests.support.processes import ControllerProcess

WATCHES = 100
DASHBOARDS = 20
RUNS = 20
CHANGES_PER_SECOND = 5.0
SECONDS = 20.0
NO_LIMIT = aiohttp.ClientTimeout(total=None)


class Counts(msgspec.Struct):
    lines: int = 0
    fragments: int = 0


def tell(leader: ControllerProcess, follower: ControllerProcess, token: str, run: object) -> None:
    """Print the CPU that the leader and a follower use without readers, and with them at each."""
    asyncio.run(_tell(leader, follower, token, run))


async def _tell(
    leader: ControllerProcess, follower: ControllerProcess, token: str, run: object
) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(leader.url, headers=headers) as session:
        ids = [await _submitted(session, run, number) for number in range(RUNS)]
        for where, watches, dashboards, asked in (
            ("no readers", 0, 0, leader),
            (f"{WATCHES} watches at the leader", WATCHES, 0, leader),
            (f"{WATCHES} watches at a follower", WATCHES, 0, follower),
            (f"{DASHBOARDS} dashboards at the leader", 0, DASHBOARDS, leader),
            (f"{DASHBOARDS} dashboards at a follower", 0, DASHBOARDS, follower),
        ):
            counts, login = Counts(), await login_of(asked.url, token)
            async with AsyncExitStack() as stack:
                for number in range(watches):
                    await _begin(stack, _watch(asked, token, ids[number % RUNS], counts))
                for _ in range(dashboards):
                    await _begin(stack, asyncio.create_task(dashboard(asked.url, login, counts)))
                await asyncio.sleep(2.0)
                counts.lines = counts.fragments = 0
                before = [cpu_seconds(one.daemon.pid) for one in (leader, follower)]
                changes = await _change(session, cycle(ids))
                after = [cpu_seconds(one.daemon.pid) for one in (leader, follower)]
            used = [100 * (b - a) / SECONDS for a, b in zip(before, after, strict=True)]
            print(
                f"{where}: {used[0]:.1f} % of a core at the leader, {used[1]:.1f} % at the "
                f"follower; {changes} changes, {counts.lines} lines, {counts.fragments} "
                f"fragments in {SECONDS:.0f} s; load {os.getloadavg()[0]:.1f}",
                flush=True,
            )


async def _submitted(session: aiohttp.ClientSession, run: object, number: int) -> str:
    body = {"configuration": run, "name": f"followed-{number}"}
    async with session.post("/v1/runs", json=body) as answer:
        answer.raise_for_status()
        return str((await answer.json())["id"])


async def _begin(stack: AsyncExitStack, reader: asyncio.Task[None]) -> None:
    async def end() -> None:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)

    stack.push_async_callback(end)
    # One after the other: what is measured is not their beginning.
    await asyncio.sleep(0.02)


async def _change(session: aiohttp.ClientSession, ids: Iterator[str]) -> int:
    """Change one run after the other; return how many changes there were."""
    began, made, suspended = time.monotonic(), 0, set[str]()
    while (now := time.monotonic() - began) < SECONDS:
        if now < made / CHANGES_PER_SECOND:
            await asyncio.sleep(made / CHANGES_PER_SECOND - now)
        one = next(ids)
        action = "resume" if one in suspended else "suspend"
        suspended ^= {one}
        async with session.post(f"/v1/runs/{one}/{action}", json={}) as answer:
            answer.raise_for_status()
        made += 1
    for one in suspended:
        async with session.post(f"/v1/runs/{one}/resume", json={}) as answer:
            answer.raise_for_status()
    return made


def _watch(asked: ControllerProcess, token: str, run: str, counts: Counts) -> asyncio.Task[None]:
    async def watch() -> None:
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            aiohttp.ClientSession(asked.url, headers=headers, timeout=NO_LIMIT) as session,
            session.get(f"/v1/runs/{run}/watch") as answer,
        ):
            answer.raise_for_status()
            async for _ in answer.content:
                counts.lines += 1

    return asyncio.create_task(watch())


class Login(msgspec.Struct):
    """That of one browser, which all its open pages share: logins are limited."""

    jar: aiohttp.CookieJar
    page: str


async def login_of(url: str, token: str) -> Login:
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(url, cookie_jar=jar, timeout=NO_LIMIT) as session:
        return Login(jar, await logged_in(session, token))


async def dashboard(url: str, login: Login, counts: Counts) -> None:
    """Be an open page: fetch its rows again at each change, until cancelled."""
    async with aiohttp.ClientSession(url, cookie_jar=login.jar, timeout=NO_LIMIT) as session:
        page = {"X-Fairlead-Page": login.page}
        part = {**page, "HX-Request": "true", "HX-Target": "rows"}
        async with session.get("/dashboard/stream?topic=any", headers=page) as stream:
            stream.raise_for_status()
            async for line in stream.content:
                if line.startswith(b"event: changed"):
                    async with session.get("/dashboard/runs", headers=part) as rows:
                        rows.raise_for_status()
                        await rows.read()
                    counts.fragments += 1


async def logged_in(session: aiohttp.ClientSession, token: str) -> str:
    """Return the token of a page."""
    headers = {"Accept": "text/html"}
    async with session.get("/dashboard/login", headers=headers) as answer:
        asked = re.search(r'name="asked" value="([^"]+)"', await answer.text())
    assert asked is not None
    form = {"asked": asked[1], "token": token}
    async with session.post("/dashboard/login", data=form, headers=headers) as answer:
        found = re.search(r'name="fairlead-page" content="([^"]+)"', await answer.text())
    assert found is not None, f"the login was answered {answer.status}"
    return found[1]
