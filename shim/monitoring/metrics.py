"""Metrics of the node, its tasks and its GPUs, as JSON and for Prometheus.

Both forms are made from one reading. What the kernel or the driver does not report is left out, so
that nothing delays an answer. The Prometheus library is imported on first use: it takes a fifth of
the shim's memory.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil

from fairlead.wire.node import GpuInfo, GpuMetrics, NodeMetrics, TaskMetrics
from fairlead.wire.shim import TaskStatus
from shim.gpus.base import Vitals
from shim.settings import VERSION
from shim.tasks.supervisor import Supervisor

_ROOT = Path("/sys/fs/cgroup")
_V1_CPU, _V1_MEMORY = "cpuacct", "memory"


class Cgroup:
    """A container's figures, in either of the kernel's two hierarchies. `folders`: where its engine
    may have put it, below the root."""

    def __init__(self, folders: Sequence[str], root: Path = _ROOT) -> None:
        self._folders = folders
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
        for folder in self._folders:
            try:
                return (self._root / controller / folder / name).read_text()
            # Of the other cgroup version or driver; or the task has ended meanwhile (cgroups(7)).
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
    containers = {
        info.id: supervisor.engine.cgroups(info.container_id)
        for info in supervisor.infos
        if info.container_id is not None
    }
    read = loop.run_in_executor(executor, lambda: _with_usage(tasks, containers, cgroups))
    machine = loop.run_in_executor(executor, lambda: _machine(supervisor, data))
    vitals = supervisor.gpus.vitals()
    gpus = tuple(_gpu(gpu, vitals.get(gpu.uuid)) for gpu in supervisor.ledger.gpus())
    return msgspec.structs.replace(await machine, tasks=await read, gpus=gpus)


def _with_usage(
    tasks: Iterable[TaskMetrics], containers: Mapping[str, Sequence[str]], root: Path
) -> tuple[TaskMetrics, ...]:
    read = []
    for task in tasks:
        folders = containers.get(task.id)
        if folders:
            cgroup = Cgroup(folders, root)
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
        # The kernel counts the time of guests within user and nice, too (proc_stat(5)).
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


if TYPE_CHECKING:
    from prometheus_client.core import Metric
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_NODE_GAUGES = (
    ("cpu", "fairlead_node_cpu_cores", "Cores that may be allocated"),
    ("cpu_allocated", "fairlead_node_cpu_allocated_cores", "Cores that allocations hold"),
    ("load", "fairlead_node_load1", "Load average of one minute"),
    ("memory", "fairlead_node_memory_bytes", "Memory that may be allocated"),
    ("memory_allocated", "fairlead_node_memory_allocated_bytes", "Memory that allocations hold"),
    ("memory_available", "fairlead_node_memory_available_bytes", "Memory that is free for use"),
    ("disk", "fairlead_node_disk_bytes", "Disk that may be allocated"),
    ("disk_allocated", "fairlead_node_disk_allocated_bytes", "Disk that allocations hold"),
    ("disk_total", "fairlead_node_data_disk_bytes", "Size of the data folder's filesystem"),
    ("disk_free", "fairlead_node_data_disk_free_bytes", "Free space of that filesystem"),
    ("draining", "fairlead_node_draining", "1 while the node takes no new tasks"),
    ("shim_memory", "fairlead_shim_resident_memory_bytes", "Memory of the shim itself"),
)
_NODE_COUNTERS = (
    ("cpu_seconds", "fairlead_node_cpu_seconds", "Busy time of all cores since the boot"),
    ("shim_cpu_seconds", "fairlead_shim_cpu_seconds", "CPU time of the shim itself"),
)
_GPU_GAUGES = (
    ("healthy", "fairlead_gpu_healthy", "1 while the GPU may be offered"),
    ("memory", "fairlead_gpu_memory_bytes", "Memory of the GPU"),
    ("memory_used", "fairlead_gpu_memory_used_bytes", "Memory in use"),
    ("utilization", "fairlead_gpu_utilization_percent", "Time in which a kernel ran"),
    ("temperature", "fairlead_gpu_temperature_celsius", "Temperature"),
    ("power", "fairlead_gpu_power_watts", "Power draw"),
)


def prometheus_text(metrics: NodeMetrics) -> bytes:
    from prometheus_client import CollectorRegistry, generate_latest

    class Reading:
        def collect(self) -> Iterable[Metric]:
            return _families(metrics)

        def describe(self) -> Iterable[Metric]:
            """Registering must not ask for a reading."""
            return ()

    registry = CollectorRegistry()
    registry.register(Reading())
    return generate_latest(registry)


def _families(metrics: NodeMetrics) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    version = GaugeMetricFamily("fairlead_shim", "The shim's version", labels=["version"])
    version.add_metric([VERSION], 1)
    yield version
    for field, name, help_text in _NODE_GAUGES:
        yield GaugeMetricFamily(name, help_text, value=float(getattr(metrics, field)))
    for field, name, help_text in _NODE_COUNTERS:
        yield CounterMetricFamily(name, help_text, value=float(getattr(metrics, field)))
    states = GaugeMetricFamily("fairlead_tasks", "Tasks of the node", labels=["status"])
    count = Counter(task.status for task in metrics.tasks)
    for status in TaskStatus:
        states.add_metric([status.value], count[status])
    yield states
    yield from _of_tasks(metrics)
    yield from _of_gpus(metrics)


def _of_tasks(metrics: NodeMetrics) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    labels = ["task", "run_id", "run_name"]
    cpu = CounterMetricFamily("fairlead_task_cpu_seconds", "CPU time of the task", labels=labels)
    memory = GaugeMetricFamily("fairlead_task_memory_bytes", "Memory of the task", labels=labels)
    limit = GaugeMetricFamily("fairlead_task_memory_limit_bytes", "Its limit", labels=labels)
    gpus = GaugeMetricFamily("fairlead_task_gpus", "GPUs that the task has", labels=labels)
    for task in metrics.tasks:
        values = [task.id, task.run_id, task.run_name]
        limit.add_metric(values, task.memory_limit)
        gpus.add_metric(values, len(task.gpus))
        if task.cpu_seconds is not None:
            cpu.add_metric(values, task.cpu_seconds)
        if task.memory is not None:
            memory.add_metric(values, task.memory)
    yield from (cpu, memory, limit, gpus)


def _of_gpus(metrics: NodeMetrics) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    for field, name, help_text in _GPU_GAUGES:
        family = GaugeMetricFamily(name, help_text, labels=["uuid", "index", "name"])
        for gpu in metrics.gpus:
            value = getattr(gpu, field)
            if value is not None:
                family.add_metric([gpu.uuid, str(gpu.index), gpu.name], float(value))
        yield family
    owner = GaugeMetricFamily(
        "fairlead_gpu_allocated", "1 while an allocation has it", labels=["uuid", "allocation"]
    )
    for gpu in metrics.gpus:
        owner.add_metric([gpu.uuid, gpu.allocation_id or ""], float(gpu.allocation_id is not None))
    yield owner
