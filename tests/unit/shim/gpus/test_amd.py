"""AMD's GPUs over a stand-in for the module amdsmi."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fairlead.wire.gpu_names import GpuVendor
from fairlead.wire.node import EngineKind, FindingLevel, GpuLink
from shim import adapters
from shim.engines.docker.handover import Way, hand_over, means_of, needed_groups
from shim.examination import Answer, NodeSetup
from shim.gpus.amd.examination import examine
from shim.gpus.amd.smi import AMD, AmdGpus
from shim.gpus.base import GpuError
from shim.gpus.health import judge_vitals, who_holds
from shim.gpus.nvidia.nvml import NvmlGpus
from shim.gpus.selection import Exclusion
from tests.doubles.amdsmi import Card, StandInSmi


@asynccontextmanager
async def opened(smi: StandInSmi, *excluded: str) -> AsyncIterator[AmdGpus]:
    gpus = AmdGpus([Exclusion.parse(text) for text in excluded], lambda: smi)
    await gpus.open()
    try:
        yield gpus
    finally:
        await gpus.close()


async def test_a_card_is_listed_with_its_name_memory_and_device_file() -> None:
    smi = StandInSmi(Card(0), Card(1))
    async with opened(smi) as gpus:
        first, second = await gpus.list()
        assert gpus.driver == "6.14.14"
    assert (first.vendor, first.name) == (GpuVendor.AMD, "AMD Instinct MI300X OAM")
    assert (first.memory, first.pci, first.numa) == (196592 << 20, "0000:05:00.0", 0)
    assert (second.devices, second.uuid) == (("/dev/dri/renderD129",), "GPU-0000000000000001")
    assert first.links == {second.uuid: GpuLink.DIRECT}
    assert not smi.is_open


async def test_an_early_amdsmi_names_a_card_in_its_own_way() -> None:
    async with opened(StandInSmi(Card(1), has_hip_uuids=False)) as gpus:
        (gpu,) = await gpus.list()
    assert gpu.uuid == "GPU-01ff74a1-0000-1000-80e9-b388cfe84658"


async def test_a_card_in_partitions_is_not_offered(caplog: pytest.LogCaptureFixture) -> None:
    smi = StandInSmi(Card(0), Card(1, serial=7), Card(2, serial=7))
    async with opened(smi) as gpus:
        assert [gpu.index for gpu in await gpus.list()] == [0]
    assert "GPU-0000000000000007 is in 2 partitions" in caplog.text


async def test_vitals_are_what_the_driver_reports_and_nothing_where_it_does_not() -> None:
    card = Card(0, used=1000, processes=[(77, 5 << 30), (78, 0)])
    async with opened(StandInSmi(card, Card(1, has_sensors=False))) as gpus:
        one, other = [await gpus.vitals(gpu.uuid) for gpu in await gpus.list()]
    assert (one.memory_used, one.processes) == (1000 << 20, (77,))
    assert (one.utilization, one.temperature, one.power) == (17, 41, 141.0)
    assert (other.utilization, other.temperature, other.power) == (None, None, None)
    assert who_holds(one) == "its memory is still held by process 77"


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"uncorrectable": 2}, "ecc"),
        ({"pages": [0, 1]}, "remap-pending"),
        ({"pages": [0, 0]}, None),
    ],
    ids=["uncorrected ECC", "a page waits for a reset", "pages that were set aside"],
)
async def test_memory_that_fails_cordons_a_card(change: dict[str, object], key: str | None) -> None:
    card = Card(0)
    async with opened(StandInSmi(card)) as gpus:
        (gpu,) = await gpus.list()
        before = await gpus.vitals(gpu.uuid)
        for name, value in change.items():
            setattr(card, name, value)
        finding = judge_vitals(before, await gpus.vitals(gpu.uuid))
    assert (finding and (finding.key, finding.cordon)) == (key and (key, True))


async def test_a_card_that_fails_stays_listed_and_one_that_vanished_is_missing() -> None:
    smi = StandInSmi(Card(0), Card(1))
    async with opened(smi) as gpus:
        listed = await gpus.list()
        smi.cards[1].broken = True
        assert [gpu.uuid for gpu in await gpus.list()] == [gpu.uuid for gpu in listed]
        assert gpus.missing(listed) == frozenset()
        with pytest.raises(GpuError, match="AMDSMI_STATUS_NO_DRV"):
            await gpus.vitals(listed[1].uuid)
        smi.cards.pop()
        assert len(await gpus.list()) == 1
        assert gpus.missing(listed) == {listed[1].uuid}


async def test_an_excluded_card_is_not_offered() -> None:
    async with opened(StandInSmi(Card(0), Card(1)), "0") as gpus:
        (left,) = await gpus.list()
        assert left.index == 1


@pytest.mark.parametrize("error", [ImportError("amdsmi"), KeyError("libamd_smi.so")])
async def test_a_machine_without_the_library_has_no_gpus(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def load() -> None:
        raise error

    gpus = AmdGpus((), load)
    with caplog.at_level(logging.INFO):
        await gpus.open()
    assert (await gpus.list(), gpus.boards()) == ((), frozenset())
    assert "amdsmi cannot be loaded" in caplog.text
    await gpus.close()


async def test_a_container_gets_the_compute_device_and_its_own_cards_alone(tmp_path: Path) -> None:
    (tmp_path / "dri").mkdir()
    for name in ("kfd", "dri/renderD128", "dri/renderD129"):
        (tmp_path / name).touch()
    async with opened(StandInSmi(Card(0), Card(1))) as gpus:
        units = await gpus.list()
    given = hand_over([units[1].uuid], units, False, means_of({}, AMD, tmp_path))
    paths = [each["PathInContainer"] for each in given.host_config["Devices"]]
    assert (given.way, paths) == (Way.FILES, ["/dev/dri/renderD129", "/dev/kfd"])


@pytest.mark.parametrize(
    ("mode", "group", "needed"),
    [(0o660, 110, (110,)), (0o666, 110, ()), (0o600, 110, ()), (0o660, 0, ())],
)
def test_a_container_is_in_the_group_of_a_device_that_only_a_group_may_use(
    mode: int, group: int, needed: tuple[int, ...]
) -> None:
    file = os.stat_result((mode, 0, 0, 1, 0, group, 0, 0, 0, 0))
    assert needed_groups([file, file]) == needed


def test_the_vendor_is_the_one_whose_driver_the_node_has(tmp_path: Path) -> None:
    node = NodeSetup(root=tmp_path, engine=EngineKind.DOCKER)

    def asked(argv: object) -> Answer:
        return Answer(127, "")

    messages = [each.message for each in adapters.examine_gpus(node, asked)]
    assert messages == ["there is no NVIDIA GPU"]
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    (tmp_path / "dev/dri").mkdir(parents=True)
    (tmp_path / "dev/kfd").touch()
    levels = [each.level for each in adapters.examine_gpus(node, asked)]
    assert levels == [FindingLevel.OK, FindingLevel.ERROR]
    assert isinstance(adapters.gpus([]), NvmlGpus)


def test_a_card_without_a_render_node_is_an_error(tmp_path: Path) -> None:
    device = tmp_path / "sys/bus/pci/devices/0000:05:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x1002\n")
    (device / "class").write_text("0x120000\n")
    node = NodeSetup(root=tmp_path, engine=EngineKind.DOCKER)
    first = next(iter(examine(node, lambda argv: Answer(127, ""))))
    assert first.message == "the driver shows 0 of 1 GPUs"
