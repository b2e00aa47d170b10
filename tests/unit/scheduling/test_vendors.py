"""GPUs of AMD: given to jobs that ask for them, and to no other."""

from __future__ import annotations

from typing import Any

import pytest

from controller.lifecycle.model import GpuNeed, Node
from controller.lifecycle.reports import Placed
from fairlead.wire.gpu_names import GpuVendor, vendor_of
from tests.unit.scheduling.parts import gpu, node, place, run, told

UUIDS = ("g0", "g1", "g2", "g3")


def of_amd(**capacity: Any) -> Node:
    name = "AMD Instinct MI300X OAM"
    gpus = tuple(gpu(uuid, name=name, vendor=GpuVendor.AMD) for uuid in UUIDS)
    return node("amd", capacity={"cpu": 8.0, "gpus": gpus, **capacity})


def given(one: Node, **need: Any) -> tuple[str, ...]:
    (answer,) = place([run(**need)], [one])
    assert isinstance(answer, Placed)
    return answer.allocation.gpus


def test_a_job_that_names_amd_gets_its_gpus_from_the_node_that_has_them() -> None:
    nodes = [node("nvidia", capacity={"gpus": (gpu("n0"), gpu("n1"))}), of_amd()]
    need = GpuNeed(count=2, vendor=GpuVendor.AMD, names=("MI300X",))
    (placed,) = place([run(gpu=need)], nodes)
    assert isinstance(placed, Placed)
    assert (placed.allocation.node_name, placed.allocation.gpus) == ("amd", ("g0", "g1"))


@pytest.mark.parametrize(("vendor", "uuids"), [(GpuVendor.NVIDIA, ()), (GpuVendor.AMD, UUIDS)])
@pytest.mark.parametrize("blocks", [None, 2])
def test_a_whole_node_brings_gpus_of_the_jobs_vendor_alone(
    vendor: GpuVendor, uuids: tuple[str, ...], blocks: int | None
) -> None:
    assert given(of_amd(blocks=blocks), gpu=GpuNeed(vendor=vendor), whole_node=True) == uuids


def test_a_job_without_gpus_gets_a_block_without_those_of_amd() -> None:
    assert given(of_amd(blocks=4), cpu=1.0) == ()


def test_a_job_that_names_no_vendor_waits_and_reads_how_to_ask_for_gpus_of_amd() -> None:
    assert told([run(gpu=GpuNeed(count=2))], [of_amd()]) == (
        "needs 2 GPU; best node amd has 0 such GPU free of 0"
        " (its GPUs are AMD's: `gpu: amd:2` asks for those)"
    )
    need = GpuNeed(count=8, vendor=GpuVendor.AMD)
    assert told([run(gpu=need)], [of_amd()]) == (
        "needs 8 AMD GPU; best node amd has 4 such GPU free of 4"
    )


@pytest.mark.parametrize(
    ("name", "vendor"),
    [
        ("MI300X", GpuVendor.AMD),
        ("mi 210", GpuVendor.AMD),
        ("AMD Instinct MI355X", GpuVendor.AMD),
        ("Radeon", GpuVendor.AMD),
        ("RX7900XTX", GpuVendor.AMD),
        ("RTX4090", GpuVendor.NVIDIA),
        ("MIG-1g-10gb", GpuVendor.NVIDIA),
        ("A100", GpuVendor.NVIDIA),
    ],
)
def test_a_name_tells_its_vendor(name: str, vendor: GpuVendor) -> None:
    assert vendor_of(name) is vendor
