"""The scheduler's choice of GPUs, and its count of blocks, agree with the shim's."""

from __future__ import annotations

from itertools import combinations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.lifecycle.model import GpuNeed, NodeCapacity, NodeGpu, Resources
from controller.pipelines.from_node import capacity
from controller.scheduling.fitting.fit import choose, fitting_gpus, in_blocks
from fairlead.wire.gpu_names import GpuVendor, is_named
from fairlead.wire.node import GpuLink
from fairlead.wire.shim import GpuRequest, TaskRequest, TaskResources
from shim.gpus import selection as shims
from shim.node.ledger import Blocks, Capacity, Ledger
from tests.doubles.shim import node_info
from tests.unit.scheduling.parts import as_seen
from tests.unit.shim.gpus.parts import gpu, in_pairs, linked, mig

GIB = 1 << 30


@given(
    st.sets(st.integers(0, 7), min_size=1),
    st.integers(1, 8),
    st.lists(st.sampled_from(list(GpuLink)), min_size=28, max_size=28),
)
def test_the_choice_is_as_tight_as_the_shims(
    free: set[int], count: int, links: list[GpuLink]
) -> None:
    pairs = dict(zip(combinations(range(8), 2), links, strict=True))
    gpus = linked(8, lambda one, other: pairs[min(one, other), max(one, other)])
    units = tuple(gpus[index] for index in sorted(free))
    count = min(count, len(units))
    seen = as_seen(units)
    mine = {one.uuid for one in choose(seen, seen, count)}
    theirs = shims.choose(units, units, count)
    assert shims.tightness([g for g in units if g.uuid in mine]) == shims.tightness(
        [g for g in units if g.uuid in theirs]
    )


def test_a_single_gpu_is_taken_from_a_broken_pair() -> None:
    gpus = linked(8, in_pairs)
    seen = as_seen((*gpus[:4], gpus[5], *gpus[6:]))
    assert [one.uuid for one in choose(seen, seen, 1)] == ["GPU-5"]


def test_instances_of_one_gpu_are_the_nearest() -> None:
    seen = as_seen((mig(0, 0), mig(1, 0), mig(1, 1)))
    assert [one.uuid for one in choose(seen, seen, 2)] == ["MIG-1-0", "MIG-1-1"]


@pytest.mark.parametrize("vendor", list(GpuVendor))
def test_a_job_gets_gpus_of_its_vendor_alone_from_scheduler_and_shim(vendor: GpuVendor) -> None:
    units = tuple(
        msgspec.structs.replace(gpu(number), vendor=one) for number, one in enumerate(GpuVendor)
    )
    fitting = fitting_gpus(GpuNeed(count=1, vendor=vendor), as_seen(units))
    assert [one.uuid for one in fitting] == [one.uuid for one in units if one.vendor is vendor]
    ledger = Ledger(Capacity(cpu=8, memory=64 * GIB, disk=64 * GIB), units)
    request = TaskRequest(
        run_id="run",
        run_name="fair-wind",
        allocation_id="place",
        image="i",
        resources=TaskResources(cpu=1, memory=GIB, gpu=GpuRequest(count=1, vendor=vendor)),
    )
    assert ledger.plan("t1", request).gpus == tuple(one.uuid for one in fitting)


def test_instances_are_chosen_among_in_bounded_time() -> None:
    seen = as_seen(tuple(mig(parent, i) for parent in range(8) for i in range(7)))
    assert len(choose(seen, seen, 6)) == 6


def test_no_gpu_of_many_that_are_equally_far_is_given_twice() -> None:
    seen = [NodeGpu(uuid=f"GPU-{n:02}", name="H100", memory=GIB) for n in range(16)]
    assert len({one.uuid for one in choose(seen, seen, 8)}) == 8


def test_a_broken_or_held_gpu_is_not_given() -> None:
    gpus = (gpu(0), gpu(1, healthy=False, message="cordoned"), gpu(2, held=True))
    seen = capacity(node_info(gpus=gpus)).gpus
    assert [(one.healthy, one.message) for one in seen] == [
        (True, None),
        (False, "cordoned"),
        (False, None),
    ]


@pytest.mark.parametrize(
    ("name", "parent", "names", "given"),
    [
        ("NVIDIA H100 80GB HBM3", None, (), True),
        ("NVIDIA H100 80GB HBM3", None, ("h100",), True),
        ("NVIDIA H100 80GB HBM3", None, ("MIG",), False),
        ("NVIDIA H100 MIG 1g.10gb", "GPU-0", (), False),
        ("NVIDIA H100 MIG 1g.10gb", "GPU-0", ("H100",), False),
        ("NVIDIA H100 MIG 1g.10gb", "GPU-0", ("H100", "MIG-1g-10gb"), True),
        ("NVIDIA H100 MIG 1g.10gb", None, (), False),
        ("NVIDIA H100", "GPU-0", (), False),
        ("NVIDIA H100", "GPU-0", ("H100",), False),
    ],
)
def test_a_part_of_a_gpu_is_given_only_for_a_name_of_parts(
    name: str, parent: str | None, names: tuple[str, ...], given: bool
) -> None:
    assert is_named(name, parent, names) is given


@given(
    st.sampled_from([1, 2, 4, 8]),
    st.floats(0.1, 40),
    st.integers(1, 80 * GIB),
    st.integers(0, 9),
    st.booleans(),
    st.booleans(),
    st.sampled_from(GpuVendor),
)
def test_both_count_blocks_alike(
    count: int,
    cpu: float,
    memory: int,
    gpus: int,
    whole: bool,
    split: bool,
    vendor: GpuVendor,
) -> None:
    units = (gpu(0), *(mig(1, n) for n in range(7))) if split else linked(8, in_pairs)
    node = NodeCapacity(cpu=30.0, memory=64 * GIB, blocks=count, gpus=tuple(as_seen(units)))
    need = Resources(
        cpu=cpu, memory=memory, gpu=GpuNeed(count=gpus, vendor=vendor), whole_node=whole
    )
    asked = GpuRequest(count=gpus, vendor=vendor)
    wanted = TaskResources(cpu=cpu, memory=memory, gpu=asked, whole_node=whole)
    mine = in_blocks(need, node)
    theirs = Blocks.of(count, 30.0, 64 * GIB, units).round_up(wanted)
    assert (mine.cpu, mine.memory, mine.gpu.count, mine.whole_node) == (
        theirs.cpu,
        theirs.memory,
        theirs.gpu.count,
        theirs.whole_node,
    )
