"""NVIDIA's bindings and our reading of them, against a library that says what a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fairlead.wire.node import GpuInfo, GpuLink
from shim.gpus.base import NO_ACTION, GpuError, GpuLost, GpuSilent
from shim.gpus.health import Fault, GpuFinding
from shim.gpus.nvidia.nvml import CALL_SECONDS, NvmlGpus
from shim.gpus.nvidia.xids import event_of
from shim.gpus.remembered import RememberedGpu, RememberedGpus
from shim.gpus.watch import READ_EVERY, GpuWatch, OnFinding
from tests.doubles.records import MemoryRecords
from tests.e2e.gpus.conftest import OpenGpus
from tests.support.nvml import StandIn, mig_uuid, uuid
from tests.support.waiting import LONG, eventually

pytestmark = pytest.mark.e2e

CORDONED_WITHIN = 2.0


async def no_task_has_it(gpu: GpuInfo, finding: GpuFinding, line: str) -> None:
    return None


@asynccontextmanager
async def watching(
    gpus: NvmlGpus,
    seen: MemoryRecords[RememberedGpu] | None = None,
    on_finding: OnFinding = no_task_has_it,
) -> AsyncIterator[GpuWatch]:
    faults: MemoryRecords[Fault] = MemoryRecords()
    watch = GpuWatch(gpus, faults, RememberedGpus(MemoryRecords() if seen is None else seen))
    await watch.open()
    await watch.start(lambda: None, on_finding)
    try:
        yield watch
    finally:
        await watch.close()


def offered(watch: GpuWatch) -> list[int]:
    return [one.index for one in watch.infos() if one.healthy and not one.held]


async def withdrawn(watch: GpuWatch, left: list[int]) -> None:
    await eventually(lambda: offered(watch) == left, what=f"only {left} to be offered")


def test_a_reading_and_its_answer_take_less_than_two_seconds() -> None:
    """A GPU that hangs right after a reading is found at the end of the next one."""
    assert READ_EVERY + CALL_SECONDS < CORDONED_WITHIN


async def test_a_gpu_is_told_with_all_that_a_choice_needs(open_gpus: OpenGpus) -> None:
    async with open_gpus() as gpus:
        first, second = await gpus.list()
        assert gpus.driver == "550.54.15"
    assert first == GpuInfo(
        uuid=uuid(0),
        index=0,
        name="NVIDIA H100 80GB HBM3",
        memory=81559 << 20,
        compute_capability="9.0",
        pci="00000000:17:00.0",
        numa=0,
        links={uuid(1): GpuLink.SYSTEM},
        devices=("/dev/nvidia0",),
    )
    assert (second.uuid, second.numa) == (uuid(1), 1)


@pytest.mark.parametrize(
    ("level", "link"),
    [(0, "INT"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS")],
)
async def test_pcie_nearness_is_read(
    open_gpus: OpenGpus, machine: StandIn, level: int, link: str
) -> None:
    machine.tell(f"near 0 1 {level}")
    async with open_gpus() as gpus:
        first, second = await gpus.list()
    assert (first.links, second.links) == ({uuid(1): link}, {uuid(0): link})


async def test_nvlink_counts_more_than_pcie(open_gpus: OpenGpus, machine: StandIn) -> None:
    machine.link([(0, 1)])
    async with open_gpus() as gpus:
        first, _ = await gpus.list()
    assert first.links == {uuid(1): GpuLink.DIRECT}


async def test_a_split_gpu_is_listed_as_its_instances(
    open_gpus: OpenGpus, machine: StandIn
) -> None:
    machine.split(0, 2)
    async with open_gpus() as gpus:
        found = await gpus.list()
        vitals = await gpus.vitals(mig_uuid(0, 1))
    assert [one.uuid for one in found] == [mig_uuid(0, 0), mig_uuid(0, 1), uuid(1)]
    instance = found[1]
    assert (instance.parent, instance.index, instance.memory) == (uuid(0), 0, 9984 << 20)
    assert instance.name == "NVIDIA H100 MIG 1g.10gb"
    assert vitals.recovery is NO_ACTION


async def test_a_gpu_in_mig_mode_without_instances_offers_nothing(
    open_gpus: OpenGpus, machine: StandIn
) -> None:
    machine.change(0, mig=1)
    async with open_gpus() as gpus:
        assert [one.uuid for one in await gpus.list()] == [uuid(1)]


@pytest.mark.parametrize("text", ["0", uuid(0), "17:00.0"])
async def test_an_excluded_gpu_is_not_listed(open_gpus: OpenGpus, text: str) -> None:
    async with open_gpus(text) as gpus:
        assert [one.index for one in await gpus.list()] == [1]


async def test_an_exclusion_that_keeps_nothing_is_said_once(
    open_gpus: OpenGpus, caplog: pytest.LogCaptureFixture
) -> None:
    """Or a typing error would offer in silence what was to be kept."""
    async with open_gpus("0", "7", uuid(9)) as gpus:
        for _ in range(2):
            assert [one.uuid for one in await gpus.list()] == [uuid(1)]
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert sorted(said) == [
        "--exclude-gpu 7: no GPU on this node matches",
        f"--exclude-gpu {uuid(9)}: no GPU on this node matches",
    ]


async def test_vitals_are_read(open_gpus: OpenGpus, machine: StandIn) -> None:
    machine.gpus[0] |= {"temperature": 71, "power": 350500, "utilization": 97, "ecc": 2}
    machine.tell("process 0 4711 40000", "process 0 4712 1000")
    async with open_gpus() as gpus:
        await gpus.list()
        now = await gpus.vitals(uuid(0))
    assert (now.memory_used, now.processes) == (41000 << 20, (4711, 4712))
    assert (now.temperature, now.power, now.utilization) == (71, 350.5, 97)
    assert (now.ecc_uncorrected, now.recovery) == (2, NO_ACTION)


async def test_a_reading_leaves_out_values_that_an_older_driver_does_not_know(
    open_gpus: OpenGpus, machine: StandIn
) -> None:
    missing = ("FieldValues", "RemappedRows", "TotalEccErrors", "PowerUsage", "MemoryInfo_v2")
    machine.change(0, recovery=-1)
    machine.tell(*(f"fail nvmlDeviceGet{name} 3" for name in missing))
    async with open_gpus() as gpus:
        await gpus.list()
        now = await gpus.vitals(uuid(0))
    assert (now.recovery, now.power, now.ecc_uncorrected) == (None, None, 0)


async def test_a_driver_that_is_not_loaded_means_no_gpus(
    open_gpus: OpenGpus, machine: StandIn
) -> None:
    machine.state.unlink()
    async with open_gpus() as gpus:
        assert (await gpus.list(), gpus.driver) == ((), None)
        machine.tell()
        assert len(await gpus.list()) == 2


@pytest.mark.parametrize("code", [2, 4, 9, 25, 999])
async def test_a_gpu_that_cannot_be_described_is_left_out_until_it_can(
    open_gpus: OpenGpus, machine: StandIn, code: int
) -> None:
    machine.tell(f"fail nvmlDeviceGetUUID {code} 0")
    async with open_gpus() as gpus:
        assert [one.index for one in await gpus.list()] == [1]
        machine.tell()
        assert [one.index for one in await gpus.list()] == [0, 1]


@pytest.mark.parametrize("code", [2, 4, 999])
async def test_an_error_of_the_driver_is_told_in_its_words(
    open_gpus: OpenGpus, machine: StandIn, code: int
) -> None:
    async with open_gpus() as gpus:
        await gpus.list()
        machine.tell(
            f"fail nvmlDeviceGetMemoryInfo {code} 0", f"fail nvmlDeviceGetMemoryInfo_v2 {code} 0"
        )
        with pytest.raises(GpuError):
            await gpus.vitals(uuid(0))
        assert (await gpus.vitals(uuid(1))).recovery is NO_ACTION


async def test_a_lost_gpu_is_lost_and_stays_listed(open_gpus: OpenGpus, machine: StandIn) -> None:
    async with open_gpus() as gpus:
        await gpus.list()
        machine.change(0, lost=1)
        with pytest.raises(GpuLost):
            await gpus.vitals(uuid(0))
        assert [one.index for one in await gpus.list()] == [0, 1]


async def test_a_hanging_call_ends_in_time_and_the_other_gpu_answers(
    open_gpus: OpenGpus, machine: StandIn
) -> None:
    async with open_gpus() as gpus:
        await gpus.list()
        machine.tell("hang nvmlDeviceGetMemoryInfo_v2 0")
        async with asyncio.timeout(LONG):
            with pytest.raises(GpuSilent):
                await gpus.vitals(uuid(0))
            assert (await gpus.vitals(uuid(1))).recovery is NO_ACTION
        machine.tell()
        await _answer(gpus)


async def _answer(gpus: NvmlGpus) -> None:
    async with asyncio.timeout(LONG):
        while True:
            with contextlib.suppress(GpuSilent):
                await gpus.vitals(uuid(0))
                return
            await asyncio.sleep(0)


async def test_a_driver_that_hangs_at_its_start_does_not_hold_up_the_shim(
    open_gpus: OpenGpus, machine: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shim.gpus.nvidia.nvml.OPEN_SECONDS", 0.1)
    machine.tell("hang nvmlInitWithFlags")
    async with asyncio.timeout(LONG), open_gpus() as gpus:
        assert await gpus.list() == ()


@pytest.mark.parametrize("number", [13, 31, 43, 45, 68, 109, 48, 63, 79, 94, 119, 154])
async def test_every_xid_arrives(open_gpus: OpenGpus, machine: StandIn, number: int) -> None:
    async with open_gpus() as gpus:
        await gpus.list()
        waiting = asyncio.create_task(gpus.next_event())
        await eventually(lambda: _raised(machine, number, waiting))
        assert await waiting == event_of(uuid(1), number)


def _raised(machine: StandIn, number: int, waiting: asyncio.Task[object]) -> bool:
    """Again and again: what happens before the library listens, it does not tell."""
    if not waiting.done():
        machine.raise_xid(1, number)
    return waiting.done()


async def test_after_the_event_set_broke_xids_arrive_again(
    open_gpus: OpenGpus, machine: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    pynvml: Any = importlib.import_module("pynvml")
    make, made = pynvml.nvmlEventSetCreate, []

    def noted() -> object:
        made.append(make())
        return made[-1]

    monkeypatch.setattr(pynvml, "nvmlEventSetCreate", noted)
    async with open_gpus() as gpus:
        await gpus.list()
        machine.tell("fail nvmlEventSetWait_v2 15")
        await eventually(lambda: len(made) > 1, what="another event set")
        waiting = asyncio.create_task(gpus.next_event())
        machine.tell()
        await eventually(lambda: _raised(machine, 13, waiting))
        assert await waiting == event_of(uuid(1), 13)


async def test_xid_79_cordons_and_xid_13_does_not(open_gpus: OpenGpus, machine: StandIn) -> None:
    lines: list[str] = []

    async def note(gpu: GpuInfo, finding: GpuFinding, line: str) -> None:
        lines.append(line)

    async with open_gpus() as gpus, watching(gpus, on_finding=note) as watch:
        assert offered(watch) == [0, 1]
        await eventually(lambda: _has_reported(machine, lines))
        assert offered(watch) == [0, 1]
        assert "XID 13 (graphics engine exception), caused by the application" in lines[0]
        machine.raise_xid(0, 79)
        await withdrawn(watch, [1])
        # The GPU is withdrawn first: the record of its fault is written before the report.
        await eventually(lambda: "XID 79 (the GPU has fallen off the bus)" in lines[-1])


def _has_reported(machine: StandIn, lines: list[str]) -> bool:
    if not lines:
        machine.raise_xid(0, 13)
    return bool(lines)


@pytest.mark.parametrize(
    "sign",
    [
        {"lost": 1},
        {"recovery": 1},
        {"recovery": 4},
        {"recovery": 99},
        {"failed": 1},
        {"recovery": -1, "pending": 1},
        {"recovery": -1, "ecc": 1},
    ],
)
async def test_each_sign_of_broken_hardware_cordons(
    open_gpus: OpenGpus, machine: StandIn, sign: dict[str, object]
) -> None:
    async with open_gpus() as gpus, watching(gpus) as watch:
        assert offered(watch) == [0, 1]
        machine.change(0, **sign)
        await withdrawn(watch, [1])


async def test_a_gpu_that_hangs_is_withdrawn_and_comes_back(
    open_gpus: OpenGpus, machine: StandIn
) -> None:
    async with open_gpus() as gpus, watching(gpus) as watch:
        machine.tell("hang nvmlDeviceGetMemoryInfo_v2 0")
        await withdrawn(watch, [1])
        machine.tell()
        await eventually(lambda: offered(watch) == [0, 1])


async def seen_by(open_gpus: OpenGpus) -> MemoryRecords[RememberedGpu]:
    """The records of a shim on this machine."""
    seen: MemoryRecords[RememberedGpu] = MemoryRecords()
    async with open_gpus() as gpus, watching(gpus, seen):
        return seen


@pytest.mark.parametrize("how", ["off the bus", "not listed"])
async def test_a_gpu_that_is_gone_after_a_restart_is_lost(
    open_gpus: OpenGpus, machine: StandIn, how: str
) -> None:
    seen = await seen_by(open_gpus)
    if how == "off the bus":
        machine.change(0, lost=1)
    else:
        machine.gpus[0] = machine.gpus.pop(1)
        machine.tell()
    async with open_gpus() as gpus, watching(gpus, seen) as watch:
        by_uuid = {one.uuid: one.message for one in watch.infos()}
        words = "cordoned: the GPU is lost: the driver no longer has it"
        assert by_uuid == {uuid(0): words, uuid(1): None}


@pytest.mark.parametrize("excluded", [uuid(0), "17:00.0"])
async def test_a_gpu_that_is_gone_and_excluded_is_not_lost(
    open_gpus: OpenGpus, machine: StandIn, excluded: str
) -> None:
    seen = await seen_by(open_gpus)
    machine.change(0, lost=1)
    async with open_gpus(excluded) as gpus, watching(gpus, seen) as watch:
        assert [(one.uuid, one.healthy) for one in watch.infos()] == [(uuid(1), True)]


async def test_the_index_of_an_exclusion_is_no_excuse_for_a_gpu_that_is_gone(
    open_gpus: OpenGpus, machine: StandIn
) -> None:
    """With the first card gone, the index names the second one."""
    seen = await seen_by(open_gpus)
    machine.gpus[0] = machine.gpus.pop(1)
    machine.tell()
    async with open_gpus("0") as gpus, watching(gpus, seen) as watch:
        assert [(one.uuid, one.healthy) for one in watch.infos()] == [(uuid(0), False)]


@pytest.mark.parametrize("split", [True, False])
async def test_a_gpu_that_is_there_and_not_offered_is_not_lost(
    open_gpus: OpenGpus, machine: StandIn, split: bool
) -> None:
    """One in MIG mode without instances, or one that the operator keeps."""
    seen = await seen_by(open_gpus)
    if split:
        machine.change(0, mig=1)
    async with open_gpus(*([] if split else ["0"])) as gpus, watching(gpus, seen) as watch:
        assert [(one.uuid, one.healthy) for one in watch.infos()] == [(uuid(1), True)]


@pytest.mark.parametrize(
    "line",
    [
        "init 9",
        "init 18",
        "fail nvmlDeviceGetCount_v2 999",
        "fail nvmlDeviceGetHandleByIndex_v2 999",
        "fail nvmlDeviceGetHandleByIndex_v2 999 0",
        "fail nvmlDeviceGetUUID 4 0",
        "hang nvmlDeviceGetUUID 0",
    ],
)
async def test_a_driver_that_does_not_answer_has_lost_no_gpu(
    open_gpus: OpenGpus, machine: StandIn, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shim.gpus.nvidia.nvml.OPEN_SECONDS", 0.3)
    monkeypatch.setattr("shim.gpus.watch.LIST_EVERY", 0.2)
    seen = await seen_by(open_gpus)
    machine.tell(line)
    async with open_gpus() as gpus, watching(gpus, seen) as watch:
        await watch.clear(uuid(9))  # lists them once more
        assert uuid(0) not in {one.uuid for one in watch.infos()}
        machine.tell()
        await eventually(lambda: offered(watch) == [0, 1])
        assert not watch.is_cordoned(uuid(0))


async def test_a_lost_gpu_is_lost_also_when_a_second_question_hangs(
    open_gpus: OpenGpus, machine: StandIn
) -> None:
    async with open_gpus() as gpus:
        await gpus.list()
        machine.gpus[0]["lost"] = 1
        machine.tell("hang nvmlDeviceGetHandleByIndex_v2 0")
        with pytest.raises(GpuLost):
            await gpus.vitals(uuid(0))


async def test_a_card_that_is_split_anew_while_the_shim_runs_is_not_lost(
    open_gpus: OpenGpus, machine: StandIn
) -> None:
    """Handles of instances that are gone, and of a card whose mode was changed, say that it is."""

    def uuids(watch: GpuWatch) -> list[str]:
        return [one.uuid for one in watch.infos() if one.healthy and not one.held]

    machine.split(0, 3)
    async with open_gpus() as gpus, watching(gpus) as watch:
        assert len(uuids(watch)) == 4
        machine.lines = machine.lines[:1]
        machine.tell()
        left = [mig_uuid(0, 0), uuid(1)]
        await eventually(lambda: uuids(watch) == left, what="one instance to be left")
        machine.merge(0)
        await eventually(lambda: uuids(watch) == [uuid(0), uuid(1)], what="the whole card")
        assert not watch.is_cordoned(uuid(0))
        machine.change(0, lost=1)
        await withdrawn(watch, [1])
        assert watch.is_cordoned(uuid(0))
