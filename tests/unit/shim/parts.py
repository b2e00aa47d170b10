"""A node in memory: the machine outlives the shim, so a test can kill the shim and start it."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fairlead.wire.node import GpuInfo
from fairlead.wire.shim import (
    Event,
    Fence,
    NetworkMode,
    TaskInfo,
    TaskRequest,
    TaskResources,
    TaskStatus,
)
from shim.daemon import Daemon, Identity, disk_threads
from shim.engines.base import ContainerSpec, Engine
from shim.gpus import Gpus
from shim.node.ledger import Capacity
from shim.settings import Settings
from shim.state.events import EventLog
from shim.state.fencing import Caller
from shim.state.records import TaskRecord
from shim.tasks import stopping
from tests.doubles.engines import MemoryEngine, MemoryHost
from tests.doubles.gpus import NoGpus
from tests.doubles.records import MemoryRecords, books_in_memory
from tests.support.waiting import LONG

RUN = "run-1"
CALLER = Caller(RUN, Fence(1, 1), 0)
CAPACITY = Capacity(cpu=4.0, memory=8 << 30, disk=100 << 30)
DEADLINE = LONG
GPU = GpuInfo(uuid="GPU-a", index=0, name="H100", memory=80 << 30, compute_capability="9.0")
CONTAINER = ContainerSpec(
    task_id="t",
    run_id="r",
    allocation_id="a",
    image="sha256:1",
    record="{}",
    job_folder="/job",
    run_folder="/run",
    network_mode=NetworkMode.HOST,
    hostname="h",
    cpu=1.0,
    memory=1 << 20,
    shm_size=1 << 20,
)
"""In the network of its node."""


def request(**changes: Any) -> TaskRequest:
    base = TaskRequest(
        run_id=RUN,
        run_name="fair-wind",
        allocation_id="place-1",
        image="busybox",
        resources=TaskResources(cpu=1.0, memory=1 << 30),
    )
    return msgspec.structs.replace(base, **changes)


def settings(folder: Path) -> Settings:
    return Settings(data=folder / "data", socket=folder / "run" / "shim.sock", gid=-1)


class Node:
    """The parts that survive a crash of the shim: the host's containers and the records."""

    def __init__(self, folder: Path) -> None:
        self.settings = settings(folder)
        self.settings.data.mkdir(parents=True, exist_ok=True)
        self.host = MemoryHost()
        self.books = books_in_memory()
        self.gpus: Gpus = NoGpus()
        self.blocks: int | None = None

    @property
    def task_records(self) -> dict[str, TaskRecord]:
        assert isinstance(self.books.tasks, MemoryRecords)
        return self.books.tasks.kept

    @asynccontextmanager
    async def shim(self, engine: Engine | None = None) -> AsyncIterator[Daemon]:
        threads = disk_threads()
        daemon = await self._open(engine or MemoryEngine(self.host), threads)
        try:
            yield daemon
        finally:
            await daemon.close()
            threads.shutdown()

    async def _open(self, engine: Engine, threads: ThreadPoolExecutor) -> Daemon:
        identity = await Identity.load(self.settings, threads)
        return await Daemon.open(
            self.settings,
            engine,
            self.gpus,
            CAPACITY,
            identity,
            threads,
            self.books,
            self.blocks,
        )


async def until_event(events: EventLog, wanted: Callable[[Event], bool]) -> Event:
    async with asyncio.timeout(DEADLINE):
        async for event in events.follow(f"{events.epoch}.0"):
            if wanted(event):
                return event
    raise AssertionError("the events ended")


async def until(daemon: Daemon, task_id: str, status: TaskStatus) -> TaskInfo:
    """The task's state once it has reached `status`."""
    if daemon.supervisor.info(task_id).status is status:
        return daemon.supervisor.info(task_id)
    event = await until_event(
        daemon.events,
        lambda e: e.task is not None and e.task.id == task_id and e.task.status is status,
    )
    assert event.task is not None
    return event.task


async def put(daemon: Daemon, task_id: str = "t1", **changes: Any) -> None:
    await daemon.supervisor.put(task_id, request(**changes), CALLER)


def listen(path: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    server.listen()
    return server


def stop_the_clock_until_a_signal(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no grace pass before a container gets its signal, however late a busy machine is."""
    now = time.time
    clock = SimpleNamespace(time=lambda: now() if node.host.log else 0.0)
    monkeypatch.setattr(stopping, "time", clock)
