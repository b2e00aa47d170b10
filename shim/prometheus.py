"""The node's metrics in Prometheus' text format.

Made from the same reading as the JSON, so that both say the same. The library is imported when it
is first needed: it takes as much memory as a fifth of the shim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from shim.schemas import NodeMetrics, TaskStatus
from shim.version import VERSION

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
    ("draining", "fairlead_node_draining", "1 while the node takes nothing new"),
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


def text(metrics: NodeMetrics) -> bytes:
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
