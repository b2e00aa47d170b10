"""Reads: how long lists and pages stand still when the leader ends, for those who ask followers.

Three controllers, each in a network namespace of its own, share a PostgreSQL that runs outside of
them. Readers ask each follower for one list or page after the other: the list of runs (`fairlead
ps`), the nodes, why a run waits, and the dashboard's pages. The leader is paused (SIGSTOP), killed
with -9, or its cable is cut. A gap is the longest time between two answers of one kind: at the
follower that leads afterwards, and at the one that follows on. "Nothing ends" is the same without
an end: what the machine's load makes of it.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp

from bench.followed_controllers import logged_in
from bench.proofs._table import conclude
from bench.proofs.takeover import RUN, Crew, Machine, site_of

_LISTS = ("/v1/runs", "/v1/nodes", "/v1/runs/reads-0/explain", "/v1/me")
_PAGES = ("/dashboard/runs", "/dashboard/runs/reads-0", "/dashboard/queue", "/dashboard/nodes")
_RUNS = 20
_PAUSE = 0.02
_BEFORE, _AFTER = 2.0, 8.0
"""Seconds of reads around the end of the leader. A takeover takes less."""
_FOLLOWER, _NEXT_LEADER = "a follower", "the next leader"
_AIMS = {_FOLLOWER: 1.0, _NEXT_LEADER: 2.0}
"""Seconds by which the median gap may be longer than the longest one while nothing ends."""
NOTHING = "nothing ends"
_LIMIT = aiohttp.ClientTimeout(total=30.0)


class Reader:
    """Asks one controller for one path. `answers`: the times of the answers."""

    def __init__(self, session: aiohttp.ClientSession, path: str, headers: Mapping[str, str]):
        self.path = path
        self.answers: list[float] = []
        self.refused: list[str] = []
        self._session = session
        self._headers = headers

    async def go_on(self) -> None:
        """Until cancelled."""
        while True:
            try:
                async with self._session.get(self.path, headers=self._headers) as answer:
                    await answer.read()
                    if answer.status == 200:
                        self.answers.append(time.monotonic())
                    else:
                        self.refused.append(f"{self.path}: {answer.status}")
            except (aiohttp.ClientError, TimeoutError) as error:
                self.refused.append(f"{self.path}: {error!r}")
            await asyncio.sleep(_PAUSE)

    def gap(self, moment: float, until: float) -> float:
        """Return the longest time without an answer since the last one before `moment`."""
        last = max(at for at in self.answers if at <= moment)
        later = [at for at in self.answers if at >= last]
        return max(after - before for before, after in itertools.pairwise([*later, until]))


@asynccontextmanager
async def _reading(crew: Crew, asked: Machine) -> AsyncIterator[list[Reader]]:
    """Read everything at this controller within the block."""
    url, token = asked.controller.url, crew.all[0].controller.token
    jar = aiohttp.CookieJar(unsafe=True)
    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(aiohttp.ClientSession(url, timeout=_LIMIT))
        browser = await stack.enter_async_context(
            aiohttp.ClientSession(url, cookie_jar=jar, timeout=_LIMIT)
        )
        await logged_in(browser, token)
        with_token = {"Authorization": f"Bearer {token}"}
        readers = [Reader(plain, path, with_token) for path in _LISTS]
        readers += [Reader(browser, path, {"Accept": "text/html"}) for path in _PAGES]
        tasks = [asyncio.create_task(reader.go_on()) for reader in readers]
        try:
            yield readers
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _measure(crew: Crew, how: str) -> tuple[dict[str, float], list[str]]:
    """Return the longest gap of each path at each follower, and what was refused."""
    leader = await asyncio.to_thread(crew.leader)
    followers = [one for one in crew.all if one is not leader]
    async with AsyncExitStack() as stack:
        every = [await stack.enter_async_context(_reading(crew, one)) for one in followers]
        readers = [reader for of_one in every for reader in of_one]
        await asyncio.sleep(_BEFORE)
        moment = time.monotonic()
        if how == "paused":
            os.kill(leader.controller.daemon.pid, signal.SIGSTOP)
        elif how != NOTHING:
            await asyncio.to_thread(crew.end, how, leader)
        await asyncio.sleep(_AFTER)
        until = time.monotonic()
    if how != NOTHING:
        # A paused one is killed, too.
        await asyncio.to_thread(crew.start_again, leader)
    leads = await asyncio.to_thread(crew.leader)
    gaps: dict[str, float] = {}
    for one, of_one in zip(followers, every, strict=True):
        for reader in of_one:
            where = f"{_role(one, leads)}: {reader.path}"
            gaps[where] = max(gaps.get(where, 0.0), reader.gap(moment, until))
    return gaps, [one for reader in readers for one in reader.refused]


def _role(machine: Machine, leads: Machine) -> str:
    return _NEXT_LEADER if machine is leads else _FOLLOWER


async def _submit(crew: Crew) -> None:
    client = crew.client()
    for number in range(_RUNS):
        await asyncio.to_thread(client.submit, {"configuration": RUN, "name": f"reads-{number}"})


async def _all(crew: Crew, counts: Mapping[str, int]) -> tuple[list[tuple[str, object]], list[str]]:
    await _submit(crew)
    rows: list[tuple[str, object]] = []
    broken: list[str] = []
    quiet = 0.0
    for how, count in counts.items():
        worst: dict[str, list[float]] = {}
        for _ in range(count):
            gaps, refused = await _measure(crew, how)
            shown = ", ".join(f"{where} {gap:.2f}" for where, gap in gaps.items())
            print(f"{how}: {shown}; load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
            broken += [f"{how}: {one}" for one in refused]
            for path, gap in gaps.items():
                worst.setdefault(path, []).append(gap)
        for path, of_path in worst.items():
            middle = sorted(of_path)[len(of_path) // 2]
            rows.append((f"{how}: {path}, median / most", f"{middle:.2f} / {max(of_path):.2f} s"))
            quiet = max(quiet, max(of_path)) if how == NOTHING else quiet
            aim = quiet + next(more for role, more in _AIMS.items() if path.startswith(role))
            if middle > aim:
                broken.append(f"{how}: {path} stood still for {middle:.2f} s, not {aim:.2f} s")
    return rows, broken


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev prove reads", description=__doc__)
    for how, count in (("pauses", 3), ("kills", 3), ("cuts", 3)):
        parser.add_argument(f"--{how}", type=int, default=count, help="default: %(default)s")
    given = parser.parse_args()
    with site_of("r", "--allow-plain-http") as site:
        counts = {NOTHING: 1, "paused": given.pauses, "killed": given.kills, "cut": given.cuts}
        rows, broken = asyncio.run(_all(site.crew, counts))
    rows.append(("load of the machine at the end", f"{os.getloadavg()[0]:.1f}"))
    conclude("the leader ends: how long reads at followers stand still", rows, broken)
