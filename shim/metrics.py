"""How busy the node, its tasks and its GPUs are, in one reading.

Nothing here may hold up an answer: what the kernel or the driver does not say is left out.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable
from concurrent.futures import Executor
from pathlib import Path

import msgspec
import psutil

from shim.gpus.base import Vitals
from shim.schemas import GpuInfo, GpuMetrics, NodeMetrics, TaskMetrics
from shim.tasks import Supervisor

_ROOT = Path("/sys/fs/cgroup")
_V1_CPU, _V1_MEMORY = "cpuacct", "memory"


class Cgroup:
    """A container's figures, where Docker's two ways of naming cgroups and the kernel's two
    hierarchies put them."""

    def __init__(self, container_id: str, root: Path = _ROOT) -> None:
        self._places = (f"docker/{container_id}", f"system.slice/docker-{container_id}.scope")
        self._root = root

    def cpu_seconds(self) -> float | None:
        stat = self._read("", "cpu.stat")
        if stat is not None:
            usage = dict(line.split(maxsplit=1) for line in stat.splitlines()).get("usage_usec")
            return int(usage) / 1e6 if usage else None
        nanoseconds = self._read(_V1_CPU, "cpuacct.usage")
        return int(nanoseconds) / 1e9 if nanoseconds else None

    def memory(self) -> int | None:
        text = self._read("", "memory.current") or self._read(_V1_MEMORY, "memory.usage_in_bytes")
        return int(text) if text else None

    def _read(self, controller: str, name: str) -> str | None:
        for place in self._places:
            try:
                return (self._root / controller / place / name).read_text()
            except OSError:
                continue
        return None


async def collect(supervisor: Supervisor, executor: Executor, cgroups: Path = _ROOT) -> NodeMetrics:
    data = supervisor.settings.data
    limits = {a.id: a.memory for a in supervisor.allocations}
    tasks = [
        TaskMetrics(
            id=info.id,
            run_id=info.run_id,
            run_name=info.run_name,
            status=info.status,
            memory_limit=limits.get(info.allocation_id, 0),
            gpus=info.gpus,
        )
        for info in supervisor.infos
    ]
    loop = asyncio.get_running_loop()
    containers = {info.id: info.container_id for info in supervisor.infos}
    read = loop.run_in_executor(executor, lambda: _with_usage(tasks, containers, cgroups))
    machine = loop.run_in_executor(executor, lambda: _machine(supervisor, data))
    vitals = supervisor.gpus.vitals()
    gpus = tuple(_gpu(gpu, vitals.get(gpu.uuid)) for gpu in supervisor.ledger.gpus())
    return msgspec.structs.replace(await machine, tasks=await read, gpus=gpus)


def _with_usage(
    tasks: Iterable[TaskMetrics], containers: dict[str, str | None], root: Path
) -> tuple[TaskMetrics, ...]:
    read = []
    for task in tasks:
        container_id = containers[task.id]
        if container_id is not None:
            cgroup = Cgroup(container_id, root)
            task = msgspec.structs.replace(
                task, cpu_seconds=cgroup.cpu_seconds(), memory=cgroup.memory()
            )
        read.append(task)
    return tuple(read)


def _machine(supervisor: Supervisor, data: Path) -> NodeMetrics:
    capacity, used = supervisor.ledger.capacity, supervisor.ledger.used()
    times = psutil.cpu_times()
    disk = psutil.disk_usage(str(data))
    own = psutil.Process()
    own_times = own.cpu_times()
    return NodeMetrics(
        at=time.time(),
        cpu=capacity.cpu,
        cpu_allocated=used.cpu,
        cpu_seconds=sum(times) - times.idle - times.iowait - times.guest - times.guest_nice,
        load=os.getloadavg()[0],
        memory=capacity.memory,
        memory_allocated=used.memory,
        memory_available=psutil.virtual_memory().available,
        disk=capacity.disk,
        disk_allocated=used.disk,
        disk_total=disk.total,
        disk_free=disk.free,
        shim_memory=own.memory_info().rss,
        shim_cpu_seconds=own_times.user + own_times.system,
        draining=supervisor.draining,
    )


def _gpu(gpu: GpuInfo, now: Vitals | None) -> GpuMetrics:
    known = GpuMetrics(
        uuid=gpu.uuid,
        index=gpu.index,
        name=gpu.name,
        memory=gpu.memory,
        healthy=gpu.healthy,
        allocation_id=gpu.allocation_id,
    )
    if now is None:
        return known
    return msgspec.structs.replace(
        known,
        memory_used=now.memory_used,
        utilization=now.utilization,
        temperature=now.temperature,
        power=now.power,
    )
