"""GPUs in a whole shim: who is told, what is given, what comes back."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fairlead.wire.errors import Refused
from fairlead.wire.shim import (
    GpuRequest,
    TaskInfo,
    TaskRequest,
    TaskResources,
    TaskStatus,
    TerminateRequest,
)
from shim.daemon import Daemon
from shim.gpus import watch
from shim.gpus.base import Vitals
from tests.doubles.gpus import MemoryGpus
from tests.support.waiting import eventually
from tests.unit.shim.parts import CALLER, GPU, Node, request, until

OTHER = msgspec.structs.replace(GPU, uuid="GPU-b", index=1)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "READ_EVERY", 0.01)
    monkeypatch.setattr(watch, "CONFIRM_AFTER", 0.01)


@pytest.fixture
def gpus() -> MemoryGpus:
    return MemoryGpus(GPU, OTHER)


@pytest.fixture
def node(tmp_path: Path, gpus: MemoryGpus) -> Node:
    made = Node(tmp_path)
    made.gpus = gpus
    return made


def wants(count: int = 1, place: str = "place-1", **gpu: object) -> TaskRequest:
    need = msgspec.convert({"count": count, **gpu}, GpuRequest)
    resources = TaskResources(cpu=1.0, memory=1 << 30, gpu=need)
    return request(allocation_id=place, resources=resources)


async def running(daemon: Daemon, task_id: str, wanted: TaskRequest) -> TaskInfo:
    await daemon.supervisor.put(task_id, wanted, CALLER)
    return await until(daemon, task_id, TaskStatus.RUNNING)


async def ended(daemon: Daemon, task_id: str) -> None:
    await daemon.supervisor.terminate(task_id, TerminateRequest(grace=0), CALLER)
    await until(daemon, task_id, TaskStatus.TERMINATED)


async def test_only_the_task_that_has_the_gpu_is_told(node: Node, gpus: MemoryGpus) -> None:
    async with node.shim() as daemon:
        await running(daemon, "t1", wants(uuids=["GPU-a"]))
        await running(daemon, "t2", wants(place="place-2", uuids=["GPU-b"]))
        gpus.raise_xid("GPU-a", 13)
        gpus.raise_xid("GPU-a", 13)
        gpus.raise_xid("GPU-a", 79)
        supervisor = daemon.supervisor
        await eventually(lambda: len(supervisor.info("t1").notices) == 2)
        first, second = supervisor.info("t1").notices
        assert (first.id, second.id) == ("GPU-a:xid-13", "GPU-a:xid-79")
        assert "XID 79" in second.text
        assert supervisor.info("t2").notices == ()


async def test_a_notice_outlives_the_shim_and_is_not_doubled(node: Node, gpus: MemoryGpus) -> None:
    async with node.shim() as daemon:
        await running(daemon, "t1", wants(uuids=["GPU-a"]))
        gpus.raise_xid("GPU-a", 79)
        await eventually(lambda: bool(daemon.supervisor.info("t1").notices))
        before = daemon.supervisor.info("t1").notices
    async with node.shim() as daemon:
        assert daemon.supervisor.info("t1").notices == before
        assert [gpu.healthy for gpu in daemon.supervisor.ledger.gpus()] == [False, True]


async def test_a_task_keeps_what_was_found_about_a_gpu_that_was_cordoned_under_it(
    node: Node, gpus: MemoryGpus
) -> None:
    async with node.shim() as daemon:
        supervisor = daemon.supervisor
        await running(daemon, "t1", wants(uuids=["GPU-a"]))
        gpus.raise_xid("GPU-a", 13)
        await eventually(lambda: len(supervisor.info("t1").notices) == 1)
        assert supervisor.info("t1").gpu_fault is None, "the application's own fault"
        gpus.raise_xid("GPU-a", 79)
        await eventually(lambda: len(supervisor.info("t1").notices) == 2)
        assert "XID 79" in (supervisor.info("t1").gpu_fault or "")
    async with node.shim() as daemon:
        assert "XID 79" in (daemon.supervisor.info("t1").gpu_fault or "")


async def test_a_gpu_that_was_lost_while_the_shim_was_down_is_told_to_its_task(
    node: Node, gpus: MemoryGpus
) -> None:
    async with node.shim() as daemon:
        await running(daemon, "t1", wants(uuids=["GPU-a"]))
        await running(daemon, "t2", wants(place="place-2", uuids=["GPU-b"]))
    gpus.gpus = (OTHER,)
    for _ in range(2):
        async with node.shim() as daemon:
            supervisor = daemon.supervisor
            (notice,) = supervisor.info("t1").notices
            assert notice.text == supervisor.info("t1").gpu_fault
            assert notice.text.startswith("[gpu-health] GPU 0 (H100, GPU-a): the GPU is lost")
            assert (supervisor.info("t2").notices, supervisor.info("t2").gpu_fault) == ((), None)
            assert [one.healthy for one in (await daemon.node()).gpus] == [False, True]


@pytest.mark.parametrize(("exit_code", "is_told"), [(0, False), (1, True)])
async def test_a_lost_gpu_excuses_the_error_of_its_task_and_spoils_no_success(
    node: Node, gpus: MemoryGpus, exit_code: int, is_told: bool
) -> None:
    async with node.shim() as daemon:
        await running(daemon, "t1", wants(uuids=["GPU-a"]))
    (container,) = node.host.containers.values()
    container.end(exit_code)
    gpus.gpus = (OTHER,)
    async with node.shim() as daemon:
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
        assert (ended.exit_code, ended.gpu_fault is not None) == (exit_code, is_told)


async def test_a_broken_gpu_is_refused_by_name_and_left_out_of_a_choice(
    node: Node, gpus: MemoryGpus
) -> None:
    async with node.shim() as daemon:
        gpus.raise_xid("GPU-a", 79)
        ledger = daemon.supervisor.ledger
        await eventually(lambda: not ledger.gpus()[0].healthy)
        with pytest.raises(Refused, match=r"GPU-a \(cordoned: XID 79"):
            await daemon.supervisor.put("t1", wants(uuids=["GPU-a"]), CALLER)
        assert (await running(daemon, "t2", wants())).gpus == ("GPU-b",)
        await daemon.supervisor.clear_gpu("GPU-a")
        assert (await running(daemon, "t3", wants(place="place-3"))).gpus == ("GPU-a",)
        with pytest.raises(Refused, match="no cordoned GPU"):
            await daemon.supervisor.clear_gpu("GPU-a")


async def test_a_gpu_that_its_last_job_still_holds_is_not_given(
    node: Node, gpus: MemoryGpus
) -> None:
    async with node.shim() as daemon:
        await running(daemon, "t1", wants(2))
        gpus.readings["GPU-a"] = Vitals(processes=(4711,), memory_used=40 << 30)
        shown = (await daemon.node()).gpus
        assert [(one.held, one.allocation_id) for one in shown] == [(False, "place-1")] * 2
        await ended(daemon, "t1")
        await daemon.supervisor.release("place-1", CALLER)
        assert [one.held for one in (await daemon.node()).gpus] == [True, False]
        with pytest.raises(Refused, match="its memory is still held by process 4711"):
            await daemon.supervisor.put("t2", wants(2, "place-2"), CALLER)
        del gpus.readings["GPU-a"]
        ledger = daemon.supervisor.ledger
        await eventually(lambda: not ledger.gpus()[0].held)
        assert (await running(daemon, "t2", wants(2, "place-2"))).gpus == ("GPU-a", "GPU-b")


async def test_the_next_task_of_an_allocation_waits_for_its_own_memory_too(
    node: Node, gpus: MemoryGpus
) -> None:
    async with node.shim() as daemon:
        await running(daemon, "t1", wants(1, uuids=["GPU-a"]))
        await ended(daemon, "t1")
        gpus.readings["GPU-a"] = Vitals(memory_used=40 << 30)
        with pytest.raises(Refused, match="40960 MiB of its memory are still held"):
            await daemon.supervisor.put("t2", wants(1, uuids=["GPU-a"]), CALLER)
        del gpus.readings["GPU-a"]
        assert (await running(daemon, "t2", wants(1, uuids=["GPU-a"]))).gpus == ("GPU-a",)


async def test_a_change_of_what_is_offered_is_an_event(node: Node, gpus: MemoryGpus) -> None:
    async with node.shim() as daemon:
        before = daemon.events.cursor
        gpus.raise_xid("GPU-a", 79)
        events = daemon.events.follow(before)
        kinds = [(await anext(events)).type for _ in range(2)]
        await events.aclose()
        assert kinds == ["heartbeat", "node"]


async def test_a_split_node_says_so(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.gpus = MemoryGpus(GPU, OTHER)
    node.blocks = 2
    async with node.shim() as daemon:
        assert (await daemon.node()).blocks == 2
        info = await running(daemon, "t1", wants(0))
        (allocation,) = daemon.supervisor.allocations
        assert (allocation.cpu, len(info.gpus)) == (2.0, 1)
