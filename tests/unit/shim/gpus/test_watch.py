"""Which GPUs are offered, from errors and readings, across restarts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fairlead.wire.node import GpuInfo
from shim.gpus import watch
from shim.gpus.base import NO_ACTION, GpuLost, GpuSilent, GpuStale, Recovery, Vitals
from shim.gpus.health import Fault, GpuFinding
from shim.gpus.remembered import RememberedGpu, RememberedGpus
from shim.gpus.watch import GpuWatch
from shim.state.records import DiskRecords, Records, TwinRecords
from tests.doubles.gpus import MemoryGpus
from tests.doubles.records import FailingRecords, MemoryRecords
from tests.support.waiting import eventually
from tests.unit.shim.gpus.parts import gpu, mig

pytestmark = pytest.mark.usefixtures("quick")

HEALTHY = Vitals(recovery=NO_ACTION)


class World:
    def __init__(
        self, gpus: MemoryGpus, faults: Records[Fault], seen: Records[RememberedGpu]
    ) -> None:
        self.gpus = gpus
        self.watch = GpuWatch(gpus, faults, RememberedGpus(seen))
        self.told: list[tuple[str, str]] = []
        self.changes = 0

    async def start(self, held: tuple[str, ...]) -> None:
        await self.watch.open(held)
        await self.watch.start(self._change, self._note)

    def offered(self) -> list[str]:
        return [one.uuid for one in self.watch.infos() if one.healthy and not one.held]

    def message(self, uuid: str) -> str | None:
        (found,) = [one for one in self.watch.infos() if one.uuid == uuid]
        return found.message

    async def until_offered(self, *uuids: str) -> None:
        await eventually(lambda: self.offered() == list(uuids), what=f"{uuids} to be offered")

    async def _note(self, gpu: GpuInfo, finding: GpuFinding, line: str) -> None:
        self.told.append((gpu.uuid, finding.key))

    def _change(self) -> None:
        self.changes += 1


@asynccontextmanager
async def world(
    gpus: MemoryGpus,
    faults: Records[Fault],
    seen: Records[RememberedGpu] | None = None,
    held: tuple[str, ...] = (),
) -> AsyncIterator[World]:
    it = World(gpus, faults, MemoryRecords() if seen is None else seen)
    await it.start(held)
    try:
        yield it
    finally:
        await it.watch.close()


async def test_a_hardware_error_cordons_its_gpu_and_is_told_once() -> None:
    faults: MemoryRecords[Fault] = MemoryRecords()
    async with world(MemoryGpus(gpu(0), gpu(1)), faults) as it:
        it.gpus.raise_xid("GPU-0", 79)
        await it.until_offered("GPU-1")
        it.gpus.readings["GPU-0"] = GpuLost("GPU is lost")
        await it.watch.look(["GPU-0"])
        assert it.told == [("GPU-0", "xid-79")]
        assert it.message("GPU-0") == "cordoned: XID 79 (the GPU has fallen off the bus)"
    assert list(faults.kept) == ["GPU-0"]


async def test_an_error_of_the_application_is_told_each_time_and_cordons_nothing() -> None:
    async with world(MemoryGpus(gpu(0)), MemoryRecords()) as it:
        it.gpus.raise_xid("GPU-0", 13)
        it.gpus.raise_xid("GPU-0", 13)
        await eventually(lambda: len(it.told) == 2)
        assert (it.told, it.offered()) == ([("GPU-0", "xid-13")] * 2, ["GPU-0"])


async def test_the_drivers_verdict_decides_about_other_errors() -> None:
    gpus = MemoryGpus(gpu(0), gpu(1))
    gpus.readings = {"GPU-0": HEALTHY, "GPU-1": HEALTHY}
    async with world(gpus, MemoryRecords()) as it:
        gpus.raise_xid("GPU-0", 94)
        await eventually(lambda: it.told == [("GPU-0", "xid-94")])
        assert it.offered() == ["GPU-0", "GPU-1"]
        gpus.readings["GPU-1"] = Vitals(recovery=Recovery("a reset of the GPU"))
        await it.until_offered("GPU-0")
        assert it.message("GPU-1") == "cordoned: the driver asks for a reset of the GPU"


async def test_a_cordon_outlives_the_shim_and_ends_with_its_operators_word() -> None:
    faults: MemoryRecords[Fault] = MemoryRecords()
    gpus = MemoryGpus(gpu(0), gpu(1))
    async with world(gpus, faults) as it:
        gpus.raise_xid("GPU-0", 79)
        await it.until_offered("GPU-1")
    async with world(gpus, faults) as it:
        assert it.offered() == ["GPU-1"]
        await it.watch.clear("GPU-0")
        assert it.offered() == ["GPU-0", "GPU-1"]
    async with world(gpus, faults) as it:
        assert it.offered() == ["GPU-0", "GPU-1"]


async def test_a_broken_gpu_that_is_gone_after_a_restart_is_still_listed() -> None:
    faults: MemoryRecords[Fault] = MemoryRecords()
    gpus = MemoryGpus(gpu(0), gpu(1))
    async with world(gpus, faults) as it:
        gpus.raise_xid("GPU-0", 79)
        await it.until_offered("GPU-1")
    async with world(MemoryGpus(gpu(1)), faults) as it:
        assert [(one.uuid, one.healthy) for one in it.watch.infos()] == [
            ("GPU-0", False),
            ("GPU-1", True),
        ]


async def test_a_repaired_gpu_that_was_gone_is_there_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "LIST_EVERY", 3600.0)
    faults: MemoryRecords[Fault] = MemoryRecords()
    gpus = MemoryGpus(gpu(0))
    async with world(gpus, faults) as it:
        gpus.raise_xid("GPU-0", 79)
        await it.until_offered()
    gpus.gpus = ()
    async with world(gpus, faults) as it:
        gpus.gpus = (gpu(0),)
        await it.watch.clear("GPU-0")
        assert it.offered() == ["GPU-0"]


async def test_a_damaged_record_of_a_fault_is_a_fault(tmp_path: Path) -> None:
    gpus = MemoryGpus(gpu(0), gpu(1))
    with ThreadPoolExecutor(1) as threads:
        faults = DiskRecords(tmp_path, Fault, threads)
        async with world(gpus, faults) as it:
            gpus.raise_xid("GPU-0", 79)
            await it.until_offered("GPU-1")
        (tmp_path / "GPU-0.json").write_text("torn")
        for _ in range(2):
            async with world(gpus, faults) as it:
                assert it.offered() == ["GPU-1"]
                words = "cordoned: the record of its fault was damaged; check it"
                assert (it.message("GPU-0") or "").startswith(words)


@pytest.mark.parametrize("victim", ["first", "second"])
@pytest.mark.parametrize("how", ["torn", "gone"])
async def test_a_fault_is_kept_twice_and_each_copy_makes_the_other_anew(
    tmp_path: Path, victim: str, how: str
) -> None:
    gpus = MemoryGpus(gpu(0), gpu(1))
    copies = [tmp_path / name / "GPU-0.json" for name in ("first", "second")]
    with ThreadPoolExecutor(1) as threads:
        faults = TwinRecords(*(DiskRecords(copy.parent, Fault, threads) for copy in copies))
        async with world(gpus, faults) as it:
            gpus.raise_xid("GPU-0", 79)
            await it.until_offered("GPU-1")
        await eventually(lambda: all(copy.exists() for copy in copies))
        kept = copies[0].read_bytes()
        damaged = tmp_path / victim / "GPU-0.json"
        damaged.write_text("torn") if how == "torn" else damaged.unlink()
        async with world(gpus, faults) as it:
            assert it.message("GPU-0") == "cordoned: XID 79 (the GPU has fallen off the bus)"
            assert [copy.read_bytes() for copy in copies] == [kept, kept]
            await it.watch.clear("GPU-0")
        async with world(gpus, faults) as it:
            assert it.offered() == ["GPU-0", "GPU-1"]


async def test_one_copy_is_enough_where_the_other_cannot_be_written() -> None:
    memory: MemoryRecords[Fault] = MemoryRecords()
    async with world(MemoryGpus(gpu(0)), TwinRecords(FailingRecords(), memory)) as it:
        it.gpus.raise_xid("GPU-0", 79)
        await it.until_offered()
        assert list(await eventually(lambda: memory.kept)) == ["GPU-0"]


async def test_a_full_disk_does_not_keep_a_broken_gpu_in_use() -> None:
    async with world(MemoryGpus(gpu(0)), FailingRecords()) as it:
        it.gpus.raise_xid("GPU-0", 79)
        await it.until_offered()
        assert it.watch.is_cordoned("GPU-0")


async def test_a_gpu_that_does_not_answer_is_not_offered_until_it_does() -> None:
    async with world(MemoryGpus(gpu(0), gpu(1)), MemoryRecords()) as it:
        it.gpus.readings["GPU-0"] = GpuSilent("no answer")
        await it.until_offered("GPU-1")
        assert it.told == [("GPU-0", "silent")]
        del it.gpus.readings["GPU-0"]
        await it.until_offered("GPU-0", "GPU-1")


async def test_a_gpu_whose_memory_is_held_comes_back_when_it_is_free() -> None:
    async with world(MemoryGpus(gpu(0)), MemoryRecords()) as it:
        it.gpus.readings["GPU-0"] = Vitals(processes=(4711,), memory_used=40 << 30)
        it.watch.hold(["GPU-0"])
        assert it.offered() == []
        await it.watch.look(["GPU-0"])
        assert it.message("GPU-0") == "its memory is still held by process 4711"
        del it.gpus.readings["GPU-0"]
        await it.until_offered("GPU-0")


async def test_after_its_job_a_gpu_is_looked_at_before_it_is_offered() -> None:
    async with world(MemoryGpus(gpu(0)), MemoryRecords()) as it:
        it.watch.hold(["GPU-0"])
        assert it.offered() == []
        await it.watch.look(["GPU-0"])
        assert it.offered() == ["GPU-0"]


async def test_a_fault_of_a_split_gpu_is_every_instances() -> None:
    async with world(MemoryGpus(mig(0, 0), mig(0, 1), gpu(1)), MemoryRecords()) as it:
        it.gpus.raise_xid("MIG-0-1", 31)
        await eventually(lambda: it.told == [("MIG-0-1", "xid-31")])
        it.gpus.raise_xid("MIG-0-1", 79)
        await it.until_offered("GPU-1")
        assert it.told[1:] == [("MIG-0-0", "xid-79"), ("MIG-0-1", "xid-79")]
        assert it.watch.is_cordoned("MIG-0-0")
        await it.watch.clear("MIG-0-0")
        assert it.offered() == ["MIG-0-0", "MIG-0-1", "GPU-1"]


async def test_a_gpu_that_is_split_anew_is_offered_as_its_instances() -> None:
    async with world(MemoryGpus(gpu(0)), MemoryRecords()) as it:
        it.gpus.gpus = (mig(0, 0), mig(0, 1))
        await it.until_offered("MIG-0-0", "MIG-0-1")
        it.gpus.gpus = (gpu(0),)
        await it.until_offered("GPU-0")
        assert [info.uuid for info in it.watch.infos()] == ["GPU-0"]


async def test_a_stale_handle_withdraws_its_gpu_and_makes_the_watch_list_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shim.gpus.watch.LIST_EVERY", 3600.0)
    faults: MemoryRecords[Fault] = MemoryRecords()
    async with world(MemoryGpus(mig(0, 0), mig(0, 1), gpu(1)), faults) as it:
        it.gpus.readings["MIG-0-1"] = GpuStale("GPU 0 was split anew")
        it.gpus.gpus = (mig(0, 0), gpu(1))
        await it.until_offered("MIG-0-0", "GPU-1")
        assert [info.uuid for info in it.watch.infos()] == ["MIG-0-0", "GPU-1"]
        assert (it.told, faults.kept, it.watch.is_cordoned("GPU-0")) == ([], {}, False)


@pytest.mark.parametrize("before", [(gpu(0),), (mig(0, 0), mig(0, 1))])
async def test_a_card_in_mig_mode_without_instances_is_there_and_offers_nothing(
    before: tuple[GpuInfo, ...],
) -> None:
    async with world(MemoryGpus(*before), MemoryRecords()) as it:
        it.gpus.bare, it.gpus.gpus = frozenset({"GPU-0"}), ()
        await eventually(lambda: it.watch.infos() == ())
        assert (it.watch.boards, it.told) == (("GPU-0",), [])
        it.gpus.bare, it.gpus.gpus = frozenset(), (mig(0, 2),)
        await it.until_offered("MIG-0-2")


async def test_a_driver_that_comes_late_brings_its_gpus() -> None:
    async with world(MemoryGpus(), MemoryRecords()) as it:
        assert it.offered() == []
        it.gpus.gpus = (gpu(0),)
        await it.until_offered("GPU-0")


async def test_a_fault_found_before_a_crash_is_told_again() -> None:
    faults: MemoryRecords[Fault] = MemoryRecords()
    gpus = MemoryGpus(gpu(0))
    async with world(gpus, faults) as it:
        gpus.raise_xid("GPU-0", 79)
        await eventually(lambda: bool(it.told))
    async with world(gpus, faults) as it:
        assert it.told == [("GPU-0", "xid-79")]
