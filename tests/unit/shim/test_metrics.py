"""The node's figures, for programs as JSON and for Prometheus as text."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fairlead.wire.node import NodeMetrics
from fairlead.wire.shim import GpuRequest, TaskResources, TaskStatus
from shim.engines.docker.engine import DockerEngine
from shim.gpus.base import Vitals
from shim.monitoring.metrics import Cgroup, collect, prometheus_text
from tests.doubles.gpus import MemoryGpus
from tests.unit.shim.parts import GPU, Node, put, request, settings, until

TASK = request(resources=TaskResources(cpu=1.0, memory=1 << 30, gpu=GpuRequest(count=1)))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    node.gpus = MemoryGpus(GPU)
    return node


async def reading(node: Node, cgroups: Path) -> NodeMetrics:
    async with node.shim() as daemon:
        await put(daemon, resources=TASK.resources)
        await until(daemon, "t1", TaskStatus.RUNNING)
        assert isinstance(node.gpus, MemoryGpus)
        node.gpus.readings["GPU-a"] = Vitals(memory_used=5 << 30, utilization=40, temperature=61)
        await daemon.supervisor.gpus.look(["GPU-a"])
        return await collect(daemon.supervisor, daemon.executor, cgroups)


async def test_node_task_and_gpu_are_told(node: Node, tmp_path: Path) -> None:
    write(tmp_path / "memory" / "c-t1", {"cpu.stat": "usage_usec 2500000\n", "memory.current": "7"})
    metrics = await reading(node, tmp_path)
    (task,), (gpu,) = metrics.tasks, metrics.gpus
    assert (metrics.cpu, metrics.cpu_allocated, metrics.memory_allocated) == (4.0, 1.0, 1 << 30)
    assert min(metrics.cpu_seconds, metrics.shim_memory, metrics.disk_free) > 0
    assert (task.cpu_seconds, task.memory, task.memory_limit) == (2.5, 7, 1 << 30)
    assert (task.status, task.gpus) == (TaskStatus.RUNNING, ("GPU-a",))
    assert (gpu.memory_used, gpu.utilization, gpu.temperature) == (5 << 30, 40, 61)
    assert (gpu.allocation_id, gpu.power) == ("place-1", None)


async def test_the_text_is_prometheus_own_and_says_the_same(node: Node, tmp_path: Path) -> None:
    metrics = await reading(node, tmp_path)
    hostile = msgspec.structs.replace(metrics.tasks[0], run_name='a"\n} fake 1\n', memory=3)
    metrics = msgspec.structs.replace(metrics, tasks=(hostile,))
    families = {
        family.name: family
        for family in text_string_to_metric_families(prometheus_text(metrics).decode())
    }
    (memory,) = families["fairlead_task_memory_bytes"].samples
    running = {s.labels["status"]: s.value for s in families["fairlead_tasks"].samples}
    used = [s.value for s in families["fairlead_gpu_memory_used_bytes"].samples]
    assert (memory.labels["run_name"], memory.value) == ('a"\n} fake 1\n', 3)
    assert (running["running"], running["pulling"], used) == (1.0, 0.0, [float(5 << 30)])
    assert families["fairlead_node_cpu_seconds"].samples[0].value == metrics.cpu_seconds
    assert families["fairlead_gpu_power_watts"].samples == []
    assert "fake" not in families


def write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)


@pytest.mark.parametrize("place", ["docker/c1", "system.slice/docker-c1.scope"])
def test_both_hierarchies_of_cgroups_are_read_where_docker_puts_them(
    tmp_path: Path, place: str
) -> None:
    write(tmp_path / "two" / place, {"cpu.stat": "usage_usec 1000000", "memory.current": "5"})
    write(tmp_path / "one" / "cpuacct" / place, {"cpuacct.usage": "3000000000"})
    write(tmp_path / "one" / "memory" / place, {"memory.usage_in_bytes": "6"})
    places = DockerEngine(settings(tmp_path), "install").cgroups("c1")
    two, one = Cgroup(places, tmp_path / "two"), Cgroup(places, tmp_path / "one")
    none = Cgroup(places, tmp_path / "none")
    assert (two.cpu_seconds(), two.memory()) == (1.0, 5)
    assert (one.cpu_seconds(), one.memory()) == (3.0, 6)
    assert (none.cpu_seconds(), none.memory()) == (None, None)
