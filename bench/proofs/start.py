"""The cost of a container of ours beyond Docker's own: to the first byte, twenty at once, in
memory.

Docker alone: create, attach, start, and the first byte, through docker-py. Ours: from the PUT of a
task on the shim's socket to the first byte of the job from its runner. Both have the same image,
limits and kind of network; the tries take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any

import docker
import psutil

from bench.parts import IMAGE, NETWORK, Parts, running_parts
from bench.proofs._table import conclude
from controller.links.clients import LocalConnection
from fairlead.wire.frames import Decoder
from fairlead.wire.job import JobSpec, SubmitRequest
from fairlead.wire.shim import (
    Event,
    EventType,
    Fence,
    TaskInfo,
    TaskRequest,
    TaskResources,
    TaskStatus,
    TerminateRequest,
)
from runner.client import RunnerUnavailable
from shim.client import ShimClient
from tests.support.waiting import eventually

MOST = 2.0
_FENCE = Fence(1 << 30, 1)
_MEMORY = 64 << 20
_CPU = 1.0
_HELLO = ("/bin/busybox", "echo", "hello")
_SLEEP = ("/bin/busybox", "sh", "-c", "echo hello; sleep 600")
_DEADLINE = 120.0
_RUNNER_PAUSE = 0.005


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--tries", type=int, default=15, help="starts of each kind (default: %(default)s)")
    add("--tasks", type=int, default=20, help="started at once (default: %(default)s)")
    given = parser.parse_args()
    with running_parts("--cpus", str(2 * given.tasks), "--memory", "64GiB") as parts:
        asyncio.run(_prove(parts, given.tries, given.tasks))


async def _prove(parts: Parts, tries: int, count: int) -> None:
    connection = LocalConnection(str(parts.shim.socket))
    raw = RawDocker(parts.docker.url, count)
    ours = Ours(connection)
    try:
        one = await _in_turn(parts, raw, ours, tries)
        raw_many = await raw.many(count, own_networks=False)
        await _settle(parts)
        fair_many = await raw.many(count, own_networks=True)
        await _settle(parts)
        idle = _resident(parts)
        many, loaded = await ours.many(count, lambda: _resident(parts))
    finally:
        await connection.close()
        raw.close()
    _conclude(one, (raw_many, fair_many, many), count, (idle, loaded))


class RawDocker:
    def __init__(self, url: str, threads: int) -> None:
        self._api: Any = docker.APIClient(
            base_url=url, version="auto", timeout=60, max_pool_size=threads + 1
        )
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
        act: Callable[[], object] = self._in_own_network if own_networks else self._one
        await asyncio.gather(*(loop.run_in_executor(self._threads, act) for _ in range(count)))
        seconds = time.perf_counter() - begin
        self.tidy()
        return seconds

    def tidy(self) -> None:
        while self._made:
            self._api.remove_container(self._made.pop(), force=True)
        while self._networks:
            self._api.remove_network(self._networks.pop())

    def _in_own_network(self) -> None:
        name = f"proof-{uuid.uuid4().hex[:12]}"
        self._api.create_network(name, driver="bridge")
        self._networks.append(name)
        self._one(name)

    def close(self) -> None:
        self._threads.shutdown()
        self._api.close()

    def _one(self, network: str = NETWORK) -> tuple[float, float]:
        host = self._api.create_host_config(network_mode=network, mem_limit=_MEMORY)
        host["NanoCpus"] = int(_CPU * 1e9)
        begin = time.perf_counter()
        made = self._api.create_container(IMAGE, list(_HELLO), host_config=host)
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


class Ours:
    def __init__(self, connection: LocalConnection) -> None:
        self._connection = connection

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
        async with aclosing(self._shim.events()) as events:
            # The first line is a heartbeat: from its cursor on no event is missed.
            await anext(events)
            await self._shim.put_task(name, request, fence=_FENCE, incarnation=0)
            task = await _until_running(events, name)
        running = time.perf_counter() - begin
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
        await _retry_until_served(lambda: runner.start(SubmitRequest(job=job)))
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

        async def has_ended() -> bool:
            return (await self._shim.task(name)).status is TaskStatus.TERMINATED

        ended: bool = await eventually(has_ended, _DEADLINE)
        assert ended
        await self._shim.remove_task(name, **fenced)
        await self._shim.release_allocation(name, **fenced)


async def _retry_until_served(act: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(_DEADLINE):
        while True:
            try:
                await act()
                return
            except RunnerUnavailable:
                await asyncio.sleep(_RUNNER_PAUSE)


async def _until_running(events: AsyncIterator[Event], name: str) -> TaskInfo:
    async for event in events:
        task = event.task
        if event.type is not EventType.TASK or task is None or task.id != name:
            continue
        if task.status is TaskStatus.TERMINATED:
            raise RuntimeError(f"the task ended: {task.message}")
        if task.status is TaskStatus.RUNNING:
            return task
    raise RuntimeError("the shim's events ended")


class Figures:
    """Seconds to the end of start (RUNNING), and to the first byte."""

    def __init__(self) -> None:
        self.raw: list[tuple[float, float]] = []
        self.ours: list[tuple[float, float]] = []

    def medians(self, kind: int) -> tuple[float, float]:
        return (
            statistics.median(figures[kind] for figures in self.raw),
            statistics.median(figures[kind] for figures in self.ours),
        )


async def _in_turn(parts: Parts, raw: RawDocker, ours: Ours, tries: int) -> Figures:
    figures = Figures()
    for number in range(tries + 1):
        raw_seconds = await raw.one()
        raw.tidy()
        await _settle(parts)
        our_seconds = await ours.one()
        await _settle(parts)
        if number:  # the first warms caches
            figures.raw.append(raw_seconds)
            figures.ours.append(our_seconds)
    return figures


async def _settle(parts: Parts) -> None:
    await asyncio.to_thread(parts.wait_until_idle)


def _resident(parts: Parts) -> float:
    return float(psutil.Process(parts.shim.pid).memory_info().rss) / (1 << 20)


def _conclude(
    one: Figures,
    at_once: tuple[float, float, float],
    count: int,
    resident: tuple[float, float],
) -> None:
    raw_many, fair_many, many = at_once
    raw_start, our_start = one.medians(0)
    raw_first, our_first = one.medians(1)
    figures = [
        ("Docker alone: create and start", f"{raw_start:.3f} s"),
        ("task: PUT to RUNNING", f"{our_start:.3f} s ({our_start / raw_start:.2f}x)"),
        ("Docker alone: to the first byte", f"{raw_first:.3f} s"),
        ("task: PUT to the job's first byte", f"{our_first:.3f} s ({our_first / raw_first:.2f}x)"),
        (f"Docker alone: {count} at once", f"{raw_many:.2f} s"),
        (f"Docker alone: {count} at once, a network each", f"{fair_many:.2f} s"),
        (f"{count} tasks at once, all have spoken", f"{many:.2f} s ({many / fair_many:.2f}x)"),
        ("shim, idle", f"{resident[0]:.1f} MiB"),
        (f"shim with {count} tasks", f"{resident[1]:.1f} MiB"),
    ]
    broken = []
    if our_first / raw_first > MOST:
        broken.append(f"a start takes {our_first / raw_first:.2f} times Docker's, not {MOST}")
    conclude("container starts", figures, broken)
