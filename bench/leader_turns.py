"""What 100 `logs -f` and 20 dashboards at followers cost the turns of the leader.

Jobs print lines, and runs are submitted at the leader and stopped again at a steady pace: each is a
turn. Short slices without readers and with them come by turns, so that what else goes on at the
machine meets both; a p99 takes the submissions of all slices. Before each slice are some seconds
without turns: what the leader does then, as it collects the logs of the jobs, is no part of a turn.
The readers are in a process of their own; nobody asks the leader but who submits. All share the
cores of one machine, so the time of a turn also has the load that readers, followers and PostgreSQL
make there. The leader's CPU has not. With `--apart`, the leader, its sessions of PostgreSQL, the
server's own processes and who submits have one core and take it before all else on this machine,
and the rest has the others, as if each had a machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean, quantiles

import aiohttp
import msgspec
import psutil

from bench.followed_controllers import NO_LIMIT, Counts, Login, dashboard, login_of
from bench.runner_start import cpu_seconds
from tests.support.processes import ControllerProcess, ShimProcess, run_cli
from tests.support.waiting import eventually, wait_until

LOGS = 100
DASHBOARDS = 20
JOBS = 20
LINES_PER_SECOND = 10
SUBMISSIONS_PER_SECOND = 20.0
"""Each is two turns: the run is stopped again."""
SECONDS, IDLE_SECONDS = 10.0, 5.0
"""Of a slice, and before it."""
_PROGRAM = f"""\
import itertools, time
for number in itertools.count():
    print("line", number, "of a job that is followed", flush=True)
    time.sleep({1 / LINES_PER_SECOND})
"""
_PRINTING = {
    "type": "task",
    "commands": [f"exec {sys.executable} -c '{_PROGRAM}'"],
    "resources": {"cpu": 0.1, "memory": "64MiB"},
}
_RUN = {"type": "task", "commands": ["true"], "resources": {"cpu": 400}}
"""It waits for a node: the machine measures no starts."""
_PATIENCE = 120.0


class _Side(msgspec.Struct):
    """What was measured without readers, or with them. `times`: of the submissions, in seconds.
    `cpu`: seconds of the leader for the turns. `waits`: those in which its loop was ready and had
    no core. `idle`: seconds of its CPU in a second without turns, of each slice. `others`: those of
    the followers, with the turns."""

    times: list[float] = []
    cpu: float = 0.0
    waits: float = 0.0
    idle: list[float] = []
    others: float = 0.0
    load: float = 0.0

    def add(self, other: _Side) -> None:
        self.times += other.times
        self.cpu += other.cpu
        self.waits += other.waits
        self.idle += other.idle
        self.others += other.others
        self.load = max(self.load, other.load)

    @property
    def per_turn(self) -> float:
        """Milliseconds of the leader's CPU."""
        return 1000 * self.cpu / (2 * len(self.times))

    @property
    def waited_per_turn(self) -> float:
        """Milliseconds in which the leader's loop was ready and had no core."""
        return 1000 * self.waits / (2 * len(self.times))

    def percentile(self, percent: int) -> float:
        """Milliseconds of a submission."""
        return 1000 * quantiles(self.times, n=100)[percent - 1]

    def __str__(self) -> str:
        return (
            f"{len(self.times)} submissions, p50 {self.percentile(50):.1f} ms, p90 "
            f"{self.percentile(90):.1f} ms, p99 {self.percentile(99):.1f} ms; CPU of the leader "
            f"{self.per_turn:.2f} ms a turn, and {100 * mean(self.idle):.1f} % of a core without "
            f"turns; its loop waits for a core {self.waited_per_turn:.2f} ms a turn; CPU of its "
            f"followers {self.others:.1f} s; load {self.load:.1f}"
        )


class Apart:
    """Lets the leader's part of this machine have its first core, before all else that wants it,
    and the rest the others. Root may do that.

    `postgres`: the pid of the server, at which controllers are connected by TCP.
    """

    def __init__(self, leader: int, others: Sequence[int], postgres: int) -> None:
        self._leader = leader
        self._others = others
        self._postgres = postgres
        first, *rest = sorted(os.sched_getaffinity(0))
        assert rest, "there is one core"
        self._first, self._rest = {first}, set(rest)

    def place(self, *others: int) -> None:
        """Place all that has come since the last time; these processes are among the others."""
        # Of each session the server has a process, with the other end's port.
        ports = {found.laddr.port for found in psutil.Process(self._leader).net_connections("tcp4")}
        for pid in (os.getpid(), self._leader, self._postgres):
            _place(pid, self._first, is_first=True)
        for session in psutil.Process(self._postgres).children():
            # It may end meanwhile: followers open sessions and leave them.
            with contextlib.suppress(psutil.NoSuchProcess):
                peers = {one.raddr.port for one in session.net_connections("tcp4") if one.raddr}
                is_first = not peers or bool(peers & ports)
                _place(session.pid, self._first if is_first else self._rest, is_first=is_first)
        for pid in (*self._others, *others):
            for one in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
                _place(one.pid, self._rest)


def _place(pid: int, cores: set[int], *, is_first: bool = False) -> None:
    """`is_first`: it takes these cores before all that is not."""
    policy, priority = (os.SCHED_RR, 1) if is_first else (os.SCHED_OTHER, 0)
    # A process that has just ended needs no core. Threads have cores of their own.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), cores)
            # Not nice(2): it weighs only within a session (sched(7), autogroup).
            os.sched_setscheduler(int(thread), policy, os.sched_param(priority))


def _loop_waits(pid: int) -> float:
    """Return the seconds in which the first thread of this process was ready and had no core."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) / 1e9


def tell(
    leader: ControllerProcess,
    followers: Sequence[ControllerProcess],
    node: ShimProcess,
    rounds: int,
    apart: Apart | None = None,
) -> None:
    """Print what a turn takes and costs without readers and with them, in so many slices each."""
    env = {"FAIRLEAD_URL": leader.url, "FAIRLEAD_TOKEN": leader.token}
    run_cli("node", "add", "printing", "--local", node.socket, env=env).succeeded()
    jobs = asyncio.run(_printing(leader))
    sides = {False: _Side(), True: _Side()}
    names = {False: "without readers", True: f"{LOGS} logs, {DASHBOARDS} dashboards at followers"}
    with _readers(followers, leader.token, jobs) as readers:
        for number in range(rounds):
            # What grows with time, as the database does, meets each side as often first as last.
            for are_there in (False, True) if number % 2 == 0 else (True, False):
                with readers.reading() if are_there else contextlib.nullcontext():
                    if apart is not None:
                        apart.place(readers.pid)
                    slice_ = asyncio.run(_measured(leader, followers))
                print(f"{number + 1}. {names[are_there]}: {slice_}", flush=True)
                sides[are_there].add(slice_)
    for are_there, side in sides.items():
        print(f"{names[are_there]}: {side}")
    print(_compared(sides[False], sides[True]), flush=True)


def _compared(without: _Side, with_readers: _Side) -> str:
    times = [
        f"p{percent} {with_readers.percentile(percent) / without.percentile(percent):.2f}"
        for percent in (50, 90, 99)
    ]
    cpu = with_readers.per_turn / without.per_turn
    return f"with readers, times that without: {', '.join(times)}; CPU of a turn {cpu:.2f}"


async def _printing(leader: ControllerProcess) -> list[str]:
    """Return the names of the jobs that print, once all run."""
    headers = {"Authorization": f"Bearer {leader.token}"}
    names = [f"printing-{number}" for number in range(JOBS)]
    async with aiohttp.ClientSession(leader.url, headers=headers) as session:
        for name in names:
            async with session.post(
                "/v1/runs", json={"configuration": _PRINTING, "name": name}
            ) as got:
                got.raise_for_status()
        for name in names:
            async with session.get(f"/v1/runs/{name}/watch") as lines:
                async for line in lines.content:
                    run = msgspec.json.decode(line)["run"]
                    if run is not None and run["status"] == "running":
                        break
    return names


async def _measured(leader: ControllerProcess, followers: Sequence[ControllerProcess]) -> _Side:
    headers = {"Authorization": f"Bearer {leader.token}"}
    async with aiohttp.ClientSession(leader.url, headers=headers) as session:
        await _submitted_and_stopped(session)
        idle = cpu_seconds(leader.pid)
        await asyncio.sleep(IDLE_SECONDS)
        before, waited = _cpu(leader, followers), _loop_waits(leader.pid)
        idle = (before[0] - idle) / IDLE_SECONDS
        began, times = time.monotonic(), list[float]()
        while (now := time.monotonic() - began) < SECONDS:
            if (due := len(times) / SUBMISSIONS_PER_SECOND) > now:
                await asyncio.sleep(due - now)
            times.append(await _submitted_and_stopped(session))
        after, took = _cpu(leader, followers), time.monotonic() - began
    of_turns, waits = after[0] - before[0] - took * idle, _loop_waits(leader.pid) - waited
    return _Side(times, of_turns, waits, [idle], after[1] - before[1], os.getloadavg()[0])


def _cpu(leader: ControllerProcess, followers: Sequence[ControllerProcess]) -> tuple[float, float]:
    return cpu_seconds(leader.pid), sum(cpu_seconds(one.pid) for one in followers)


async def _submitted_and_stopped(session: aiohttp.ClientSession) -> float:
    """Return the seconds of the submission."""
    key, began = uuid.uuid4().hex, time.monotonic()
    body = {"configuration": _RUN, "name": f"t-{key[:12]}", "client_key": key}
    async with session.post("/v1/runs", json=body) as answer:
        answer.raise_for_status()
        run = (await answer.json())["id"]
    took = time.monotonic() - began
    async with session.post(f"/v1/runs/{run}/stop", json={}) as answer:
        answer.raise_for_status()
    return took


class _Readers:
    """Their process, which does one thing after the other."""

    def __init__(self, pid: int, pipe: Connection) -> None:
        self.pid = pid
        self._pipe = pipe

    @contextmanager
    def reading(self) -> Iterator[None]:
        """All read within this block."""
        self._ask("begin")
        yield
        lines, fragments = self._ask("end")
        assert lines, "nobody got a piece of a log"
        assert fragments, "no dashboard was told of a change"

    def _ask(self, what: str) -> tuple[int, int]:
        self._pipe.send(what)
        wait_until(self._pipe.poll, timeout=_PATIENCE, what=f"the readers to {what}")
        answer: tuple[int, int] = self._pipe.recv()
        return answer


@contextmanager
def _readers(
    followers: Sequence[ControllerProcess], token: str, jobs: Sequence[str]
) -> Iterator[_Readers]:
    # A fork would have this process's threads and loop.
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    urls = [one.url for one in followers]
    process = context.Process(target=_read, args=(urls, token, list(jobs), there), daemon=True)
    process.start()
    # The end of the readers is the end of the pipe then, and nobody waits for ever.
    there.close()
    try:
        assert process.pid is not None
        yield _Readers(process.pid, here)
    finally:
        process.terminate()
        process.join()


def _read(urls: Sequence[str], token: str, jobs: Sequence[str], pipe: Connection) -> None:
    asyncio.run(_read_on(urls, token, jobs, pipe))


async def _read_on(urls: Sequence[str], token: str, jobs: Sequence[str], pipe: Connection) -> None:
    counts, tasks = Counts(), list[asyncio.Task[None]]()
    login = await login_of(urls[0], token)
    while True:
        if await asyncio.to_thread(pipe.recv) == "begin":
            counts = Counts()
            tasks = await _begun(urls, token, jobs, login, counts)
        else:
            for task in tasks:
                if task.done():
                    task.result()
                    raise AssertionError("a reader has ended")
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        pipe.send((counts.lines, counts.fragments))


async def _begun(
    urls: Sequence[str], token: str, jobs: Sequence[str], login: Login, counts: Counts
) -> list[asyncio.Task[None]]:
    """Return all readers, each with a first piece of its log."""
    tasks = []
    for number in range(LOGS):
        url, job = urls[number % len(urls)], jobs[number % len(jobs)]
        tasks.append(asyncio.create_task(_follow(url, token, job, counts)))
        # One after the other: what is measured is not their beginning.
        await asyncio.sleep(0.02)
    for number in range(DASHBOARDS):
        tasks.append(asyncio.create_task(dashboard(urls[number % len(urls)], login, counts)))
        await asyncio.sleep(0.02)
    await eventually(lambda: counts.lines >= LOGS, _PATIENCE, "the first lines")
    return tasks


async def _follow(url: str, token: str, job: str, counts: Counts) -> None:
    """Follow a log as `fairlead logs -f` does."""
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(url, headers=headers, timeout=NO_LIMIT) as session,
        session.ws_connect(f"/v1/runs/{job}/logs/ws") as stream,
    ):
        async for _ in stream:
            counts.lines += 1
