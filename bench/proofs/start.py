"""The cost of a container of ours beyond Docker's own: to the first byte, twenty at once, in
memory.

Docker alone: create, attach, start, and the first byte, through docker-py. Ours: from the PUT of a
task on the shim's socket to the first byte of the job from its runner. Both have the same image,
limits and job; the tries take turns. At once, each task is of a run of its own and so apart from
the others, as Docker's containers are with a network each.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any

import docker
import msgspec
import psutil

from bench import report
from bench.parts import IMAGE, NETWORK, Crun, Parts, add_options, running_parts
from bench.proofs._table import conclude
from controller.links.clients import LocalConnection
from fairlead.wire.frames import Decoder
from fairlead.wire.job import JobSpec, SubmitRequest
from fairlead.wire.shim import (
    Fence,
    TaskInfo,
    TaskRequest,
    TaskResources,
    TaskStatus,
    TerminateRequest,
)
from shim.client import ShimClient
from shim.settings import NetworkKind

MOST = 2.0
MAX_AT_ONCE = 0.8
"""Of the time of Docker's containers with a network each; for networks of the shim's own."""
_FENCE = Fence(1 << 30, 1)
_MEMORY = 64 << 20
_CPU = 1.0
_HELLO = ("/bin/busybox", "echo", "hello")
_SLEEP = ("/bin/busybox", "sh", "-c", "echo hello; sleep 600")
_DEADLINE = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--tries", type=int, default=15, help="starts of each kind (default: %(default)s)")
    add("--tasks", type=int, default=20, help="started at once (default: %(default)s)")
    add("--rounds", type=int, default=3, help="of starts at once (default: %(default)s)")
    add_options(parser)
    given = parser.parse_args()
    machine = report.machine()
    options = ("--cpus", str(2 * given.tasks), "--memory", "64GiB")
    with running_parts(*options, networks=given.networks, crun=given.crun) as parts:
        # It would take these tasks for strays, and store each.
        parts.controller.stop()
        measured = asyncio.run(_measured(parts, given))
        _conclude(measured, given, f"{machine}; {report.engine(parts.docker)}")


class Many(msgspec.Struct, frozen=True, kw_only=True):
    """One round of starts at once: seconds until all have written something. `idle` and `loaded`:
    MiB of the shim before, and while its tasks run."""

    raw: float
    raw_apart: float
    ours: float
    idle: float
    loaded: float


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of `one` start by Docker and by us, in turns, and the rounds of many at once."""

    raw: list[tuple[float, float]]
    ours: list[tuple[float, float]]
    many: list[Many]


async def _measured(parts: Parts, given: argparse.Namespace) -> Measured:
    connection = LocalConnection(str(parts.shim.socket))
    raw = RawDocker(parts, given.tasks)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = TaskEvents(connection.shim)
            following = group.create_task(tasks.follow())
            await tasks.opened.wait()
            ours = Ours(connection, tasks)
            raw_ones, our_ones = await _in_turn(parts, raw, ours, given.tries)
            many = [await _round(parts, raw, ours, given.tasks) for _ in range(given.rounds)]
            following.cancel()
    finally:
        await connection.close()
        raw.close()
    return Measured(raw=raw_ones, ours=our_ones, many=many)


class RawDocker:
    def __init__(self, parts: Parts, threads: int) -> None:
        self._api: Any = docker.APIClient(
            base_url=parts.docker.url, version="auto", timeout=60, max_pool_size=threads + 1
        )
        self._runtime = "crun" if parts.crun is Crun.BOTH else None
        self._threads = ThreadPoolExecutor(threads)
        self._made: list[str] = []
        self._networks: list[str] = []

    async def one(self) -> tuple[float, float]:
        """Return the seconds to the end of start, and to the first byte."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._one)

    async def many(self, count: int, *, own_networks: bool) -> float:
        """Return the seconds until all have written something."""
        loop = asyncio.get_running_loop()
        begin = time.perf_counter()
        act: Callable[[], object] = self._in_own_network if own_networks else self._in_one_network
        await asyncio.gather(*(loop.run_in_executor(self._threads, act) for _ in range(count)))
        seconds = time.perf_counter() - begin
        await asyncio.to_thread(self.tidy)
        return seconds

    def tidy(self) -> None:
        while self._made:
            self._api.remove_container(self._made.pop(), force=True)
        while self._networks:
            self._api.remove_network(self._networks.pop())

    def _in_one_network(self) -> None:
        self._one(argv=_SLEEP)

    def _in_own_network(self) -> None:
        name = f"proof-{uuid.uuid4().hex[:12]}"
        self._api.create_network(name, driver="bridge")
        self._networks.append(name)
        self._one(name, _SLEEP)

    def close(self) -> None:
        self._threads.shutdown()
        self._api.close()

    def _one(self, network: str = NETWORK, argv: tuple[str, ...] = _HELLO) -> tuple[float, float]:
        host = self._api.create_host_config(
            network_mode=network, mem_limit=_MEMORY, runtime=self._runtime
        )
        host["NanoCpus"] = int(_CPU * 1e9)
        begin = time.perf_counter()
        made = self._api.create_container(IMAGE, list(argv), host_config=host)
        # Before the start, after which the container may end at once.
        output = self._api.attach(made["Id"], stream=True, logs=True)
        self._api.start(made["Id"])
        started = time.perf_counter() - begin
        first = next(iter(output))
        total = time.perf_counter() - begin
        if first.strip() != b"hello":
            raise RuntimeError(f"docker said {first!r}")
        self._made.append(made["Id"])
        return started, total


class TaskEvents:
    """What the shim's one stream of events tells of tasks, as a controller hears it."""

    def __init__(self, shim: ShimClient) -> None:
        self._shim = shim
        self._infos: dict[str, TaskInfo] = {}
        self._changed: dict[str, asyncio.Event] = {}
        self.opened = asyncio.Event()

    async def follow(self) -> None:
        async with aclosing(self._shim.events()) as events:
            # The first line is a heartbeat: from its cursor on no event is missed.
            async for event in events:
                self.opened.set()
                if event.task is not None:
                    self._infos[event.task.id] = event.task
                    self._change_of(event.task.id).set()
        raise RuntimeError("the shim's events ended")

    async def until(self, name: str, holds: Callable[[TaskInfo], bool]) -> TaskInfo:
        """Return the task once this holds of it. Raises RuntimeError if it ends before."""
        changed = self._change_of(name)
        async with asyncio.timeout(_DEADLINE):
            while (task := self._infos.get(name)) is None or not holds(task):
                if task is not None and task.status is TaskStatus.TERMINATED:
                    raise RuntimeError(f"the task ended: {task.message}")
                changed.clear()
                await changed.wait()
        return task

    def _change_of(self, name: str) -> asyncio.Event:
        return self._changed.setdefault(name, asyncio.Event())


class Ours:
    def __init__(self, connection: LocalConnection, tasks: TaskEvents) -> None:
        self._connection = connection
        self._tasks = tasks

    @property
    def _shim(self) -> ShimClient:
        return self._connection.shim

    async def one(self) -> tuple[float, float]:
        """Return the seconds to RUNNING, and to the first byte of the job."""
        name = uuid.uuid4().hex
        figures = await self._start(name, _HELLO)
        await self._end(name)
        return figures

    async def many(self, count: int, measure: Callable[[], float]) -> tuple[float, float]:
        """Return the seconds until all have written something, and `measure` while they run."""
        names = [uuid.uuid4().hex for _ in range(count)]
        begin = time.perf_counter()
        await asyncio.gather(*(self._start(name, _SLEEP) for name in names))
        seconds = time.perf_counter() - begin
        measured = measure()
        await asyncio.gather(*(self._end(name) for name in names))
        return seconds, measured

    async def _start(self, name: str, argv: tuple[str, ...]) -> tuple[float, float]:
        request = TaskRequest(
            run_id=name,
            run_name="proof",
            allocation_id=name,
            image=IMAGE,
            resources=TaskResources(cpu=_CPU, memory=_MEMORY),
            hostname="proof",
        )
        begin = time.perf_counter()
        await self._shim.put_task(name, request, fence=_FENCE, incarnation=0)
        await self._tasks.until(name, lambda task: task.status is TaskStatus.RUNNING)
        running = time.perf_counter() - begin
        task = await self._tasks.until(name, lambda task: bool(task.runner_listens))
        await self._first_byte(name, task.runner_socket, argv)
        return running, time.perf_counter() - begin

    async def _first_byte(self, name: str, socket: str, argv: tuple[str, ...]) -> None:
        runner = self._connection.runner(socket)
        job = JobSpec(
            run_id=name,
            run_name="proof",
            job_id=name,
            attempt_id=name,
            group="job",
            cookie=0,
            index=0,
            job_count=1,
            group_job_count=1,
            entrypoint=argv,
        )
        await runner.start(SubmitRequest(job=job))
        decoder = Decoder()
        async with aclosing(runner.follow_logs(0)) as pieces:
            async for piece in pieces:
                if any(frame.payload for frame in decoder.feed(piece)):
                    return
        raise RuntimeError("the job said nothing")

    async def _end(self, name: str) -> None:
        order = TerminateRequest(grace=0.0, reason="aborted_by_user")
        fenced: dict[str, Any] = {"run_id": name, "fence": _FENCE}
        await self._shim.terminate(name, order, **fenced)
        await self._tasks.until(name, lambda task: task.status is TaskStatus.TERMINATED)
        await self._shim.remove_task(name, **fenced)
        await self._shim.release_allocation(name, **fenced)


async def _in_turn(
    parts: Parts, raw: RawDocker, ours: Ours, tries: int
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    raw_ones, our_ones = [], []
    for number in range(tries + 1):
        raw_seconds = await raw.one()
        raw.tidy()
        await _settle(parts)
        our_seconds = await ours.one()
        await _settle(parts)
        if number:  # the first warms caches
            raw_ones.append(raw_seconds)
            our_ones.append(our_seconds)
    return raw_ones, our_ones


async def _round(parts: Parts, raw: RawDocker, ours: Ours, count: int) -> Many:
    shared = await raw.many(count, own_networks=False)
    await _settle(parts)
    apart = await raw.many(count, own_networks=True)
    await _settle(parts)
    idle = _resident(parts)
    seconds, loaded = await ours.many(count, lambda: _resident(parts))
    await _settle(parts)
    return Many(raw=shared, raw_apart=apart, ours=seconds, idle=idle, loaded=loaded)


async def _settle(parts: Parts) -> None:
    await asyncio.to_thread(parts.wait_until_idle)


def _resident(parts: Parts) -> float:
    return float(psutil.Process(parts.shim.pid).memory_info().rss) / (1 << 20)


def _conclude(measured: Measured, given: argparse.Namespace, machine: str) -> None:
    (raw_start, raw_first), (our_start, our_first) = map(_medians, (measured.raw, measured.ours))
    count = given.tasks
    apart = [one.ours / one.raw_apart for one in measured.many]
    shared = [one.ours / one.raw for one in measured.many]
    figures = [
        ("machine", machine),
        ("Docker alone: create and start", f"{raw_start:.3f} s"),
        ("task: PUT to RUNNING", f"{our_start:.3f} s ({our_start / raw_start:.2f}x)"),
        ("Docker alone: to the first byte", f"{raw_first:.3f} s"),
        ("task: PUT to the job's first byte", f"{our_first:.3f} s ({our_first / raw_first:.2f}x)"),
        (f"Docker alone: {count} at once", _listed(one.raw for one in measured.many)),
        (
            f"Docker alone: {count} at once, a network each",
            _listed(one.raw_apart for one in measured.many),
        ),
        (f"{count} tasks at once, all have spoken", _listed(one.ours for one in measured.many)),
        ("... in times of Docker's with a network each", _listed(apart, "x")),
        ("... in times of Docker's in one network", _listed(shared, "x")),
        ("shim, idle", f"{measured.many[0].idle:.1f} MiB"),
        (f"shim with {count} tasks", f"{measured.many[-1].loaded:.1f} MiB"),
    ]
    broken = []
    if our_first / raw_first > MOST:
        broken.append(f"a start takes {our_first / raw_first:.2f} times Docker's, not {MOST}")
    if given.networks is NetworkKind.AGENT and (most := statistics.median(apart)) > MAX_AT_ONCE:
        broken.append(f"{count} at once take {most:.2f} times Docker's, not {MAX_AT_ONCE}")
    conclude("container starts", figures, broken)


def _medians(ones: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the medians of both: to the end of start, to the first byte."""
    starts, firsts = zip(*ones, strict=True)
    return statistics.median(starts), statistics.median(firsts)


def _listed(figures: Iterable[float], unit: str = " s") -> str:
    found = list(figures)
    each = ", ".join(f"{figure:.2f}" for figure in found)
    return f"{statistics.median(found):.2f}{unit} ({each})"
