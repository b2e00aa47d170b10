"""A GPU that is gone when the shim starts again was lost, unless its operator took it out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fairlead.wire.node import GpuInfo
from shim.gpus.base import GpuError
from shim.gpus.health import Fault, GpuFinding
from shim.gpus.remembered import RememberedGpu, RememberedGpus
from shim.gpus.watch import GpuWatch
from shim.state.records import DiskRecords, Records
from tests.doubles.gpus import MemoryGpus
from tests.doubles.records import FailingRecords, MemoryRecords
from tests.support.waiting import eventually
from tests.unit.shim.gpus.parts import gpu, mig

pytestmark = pytest.mark.usefixtures("quick")

LOST = "cordoned: the GPU is lost: the driver no longer has it"


class Machine:
    """The parts that outlive the shim: its cards and its records."""

    def __init__(self, *gpus: GpuInfo) -> None:
        self.gpus = MemoryGpus(*gpus)
        self.faults: MemoryRecords[Fault] = MemoryRecords()
        self.seen: Records[RememberedGpu] = MemoryRecords()
        self.told: list[tuple[str, str]] = []

    @asynccontextmanager
    async def shim(self, *held: str) -> AsyncIterator[GpuWatch]:
        it = GpuWatch(self.gpus, self.faults, RememberedGpus(self.seen))
        await it.open(held)
        await it.start(lambda: None, self._note)
        try:
            yield it
        finally:
            await it.close()

    async def once(self) -> None:
        async with self.shim():
            pass

    async def _note(self, gpu: GpuInfo, finding: GpuFinding, line: str) -> None:
        self.told.append((gpu.uuid, finding.key))


def offered(it: GpuWatch) -> list[str]:
    return [one.uuid for one in it.infos() if one.healthy and not one.held]


def messages(it: GpuWatch) -> dict[str, str]:
    return {one.uuid: one.message for one in it.infos() if one.message}


async def test_a_gpu_that_is_gone_after_a_restart_is_cordoned_and_told() -> None:
    machine = Machine(gpu(0), gpu(1))
    await machine.once()
    machine.gpus.gpus = (gpu(1),)
    async with machine.shim() as it:
        assert (offered(it), messages(it)) == (["GPU-1"], {"GPU-0": LOST})
        assert machine.told == [("GPU-0", "lost")]
    async with machine.shim() as it:
        assert machine.told == [("GPU-0", "lost")] * 2
    assert list(machine.faults.kept) == ["GPU-0"]


async def test_a_gpu_that_goes_while_the_shim_runs_is_lost_as_well() -> None:
    machine = Machine(gpu(0), gpu(1))
    async with machine.shim() as it:
        machine.gpus.gpus = (gpu(1),)
        await eventually(lambda: messages(it) == {"GPU-0": LOST})
        assert offered(it) == ["GPU-1"]


async def test_a_gpu_that_only_comes_late_is_not_lost() -> None:
    machine = Machine(gpu(0), gpu(1))
    await machine.once()

    class Late(MemoryGpus):
        """A machine that boots: the second card is there by the second listing."""

        listings = 0

        async def list(self) -> tuple[GpuInfo, ...]:
            self.listings += 1
            self.gpus = (gpu(0),) if self.listings == 1 else (gpu(0), gpu(1))
            return self.gpus

    machine.gpus = Late()
    async with machine.shim() as it:
        assert (offered(it), machine.told) == (["GPU-0", "GPU-1"], [])
    assert machine.faults.kept == {}


async def test_a_driver_that_lists_nothing_has_lost_nothing() -> None:
    machine = Machine(gpu(0), gpu(1))
    await machine.once()
    machine.gpus.gpus = ()
    async with machine.shim("GPU-0") as it:
        assert it.infos() == ()
        machine.gpus.gpus = (gpu(0), gpu(1))
        await eventually(lambda: offered(it) == ["GPU-0", "GPU-1"])
    assert machine.told == []


async def test_a_gpu_that_was_taken_out_is_forgotten_at_its_operators_word() -> None:
    machine = Machine(gpu(0), gpu(1))
    await machine.once()
    machine.gpus.gpus = (gpu(1),)
    async with machine.shim() as it:
        await it.clear("GPU-0")
        assert [one.uuid for one in it.infos()] == ["GPU-1"]
    async with machine.shim() as it:
        assert [one.uuid for one in it.infos()] == ["GPU-1"]


async def test_a_gpu_that_is_back_is_offered_at_its_operators_word() -> None:
    machine = Machine(gpu(0), gpu(1))
    await machine.once()
    machine.gpus.gpus = (gpu(1),)
    async with machine.shim() as it:
        machine.gpus.gpus = (gpu(0), gpu(1))
        await it.clear("GPU-0")
        assert offered(it) == ["GPU-0", "GPU-1"]
    machine.gpus.gpus = (gpu(1),)
    async with machine.shim() as it:
        assert messages(it) == {"GPU-0": LOST}, "it is remembered again"


@pytest.mark.parametrize(
    ("now", "cordoned"),
    [
        pytest.param((gpu(1), gpu(7, pci=gpu(0).pci)), [], id="another in its place"),
        pytest.param((gpu(1, pci=gpu(0).pci),), ["GPU-0"], id="the next one moved up"),
        pytest.param((gpu(7), gpu(1)), ["GPU-0"], id="another elsewhere"),
        pytest.param((gpu(1, pci=gpu(0).pci), gpu(0, pci=gpu(1).pci)), [], id="swapped"),
    ],
)
async def test_only_a_card_that_was_never_here_replaces_one(
    now: tuple[GpuInfo, ...], cordoned: list[str]
) -> None:
    machine = Machine(gpu(0), gpu(1))
    await machine.once()
    machine.gpus.gpus = now
    for _ in range(2):
        async with machine.shim() as it:
            assert offered(it) == [one.uuid for one in sorted(now, key=lambda one: one.index)]
            assert list(messages(it)) == cordoned


async def test_a_split_gpu_that_is_gone_is_lost_with_its_instances() -> None:
    machine = Machine(mig(0, 0), mig(0, 1), gpu(1))
    await machine.once()
    machine.gpus.gpus = (gpu(1),)
    async with machine.shim("MIG-0-1") as it:
        assert messages(it) == {"MIG-0-0": LOST, "MIG-0-1": LOST}
        assert machine.told == [("MIG-0-0", "lost"), ("MIG-0-1", "lost")]
        await it.clear("MIG-0-1")
        assert [one.uuid for one in it.infos()] == ["GPU-1"]


async def test_a_gpu_that_is_split_anew_is_not_lost() -> None:
    machine = Machine(gpu(0), gpu(1))
    await machine.once()
    machine.gpus.gpus = (mig(0, 0), mig(0, 1), gpu(1))
    for _ in range(2):
        async with machine.shim() as it:
            assert offered(it) == ["MIG-0-0", "MIG-0-1", "GPU-1"]
    assert machine.faults.kept == {}


async def test_the_gpu_of_a_task_is_known_where_nothing_was_written() -> None:
    """A shim of before this record, or a record that is gone."""
    machine = Machine(gpu(1))
    async with machine.shim("GPU-0", "GPU-1") as it:
        assert (offered(it), messages(it)) == (["GPU-1"], {"GPU-0": LOST})


@pytest.mark.parametrize("held", [(), ("GPU-0",)])
async def test_a_damaged_record_still_names_its_gpu(tmp_path: Path, held: Iterable[str]) -> None:
    machine = Machine(gpu(0), gpu(1))
    with ThreadPoolExecutor(1) as threads:
        machine.seen = DiskRecords(tmp_path, RememberedGpu, threads)
        await machine.once()
        for name in ("GPU-0.json", "GPU-1.json"):
            assert (tmp_path / name).read_text().startswith("fairlead1")
            (tmp_path / name).write_text("torn")
        machine.gpus.gpus = (gpu(1),)
        async with machine.shim(*held) as it:
            assert (offered(it), messages(it)) == (["GPU-1"], {"GPU-0": LOST})
        assert (tmp_path / "GPU-1.json").read_text().startswith("fairlead1")


async def test_a_full_disk_is_no_hindrance_and_is_made_up_for() -> None:
    machine = Machine(gpu(0), gpu(1))
    kept: MemoryRecords[RememberedGpu] = MemoryRecords()
    full: FailingRecords[RememberedGpu] = FailingRecords()
    machine.seen = full
    async with machine.shim() as it:
        assert offered(it) == ["GPU-0", "GPU-1"]
        full.save = kept.save  # type: ignore[method-assign]
        await eventually(lambda: sorted(kept.kept) == ["GPU-0", "GPU-1"])


async def test_a_gpu_that_cannot_be_forgotten_stays_cordoned() -> None:
    class Stuck(MemoryRecords[RememberedGpu]):
        async def delete(self, key: str) -> None:
            raise OSError(30, "Read-only file system")

    machine = Machine(gpu(0), gpu(1))
    machine.seen = Stuck()
    await machine.once()
    machine.gpus.gpus = (gpu(1),)
    async with machine.shim() as it:
        with pytest.raises(OSError, match="Read-only"):
            await it.clear("GPU-0")
        assert messages(it) == {"GPU-0": LOST}


async def test_nothing_is_asked_of_a_gpu_that_is_gone() -> None:
    machine = Machine(gpu(0), gpu(1))
    await machine.once()
    machine.gpus.gpus = (gpu(1),)
    machine.gpus.readings = {"GPU-0": GpuError("there is no GPU GPU-0")}
    async with machine.shim() as it:
        await it.look(["GPU-0"])
        assert messages(it) == {"GPU-0": LOST}
