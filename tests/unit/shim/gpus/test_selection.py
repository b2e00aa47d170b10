"""The nearest GPUs together, and the large groups kept whole."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.wire.gpu_names import is_called
from fairlead.wire.node import GpuInfo, GpuLink
from shim.gpus.selection import choose, tightness
from tests.unit.shim.gpus.parts import gpu, in_pairs, indexes, linked, mig

EIGHT = linked(8, in_pairs)


def taken(free: tuple[GpuInfo, ...], count: int) -> list[int]:
    return indexes(free, choose(free, free, count))


def test_two_gpus_come_from_one_nvlink_pair() -> None:
    assert taken((EIGHT[1], EIGHT[2], EIGHT[3]), 2) == [2, 3]


def test_four_gpus_come_from_below_one_host_bridge() -> None:
    free = EIGHT[1:]
    assert taken(free, 4) == [4, 5, 6, 7]


def test_one_gpu_is_taken_from_the_pair_that_is_broken_already() -> None:
    free = (*EIGHT[:4], EIGHT[5], *EIGHT[6:])
    assert taken(free, 1) == [5]


def test_a_pair_is_taken_from_the_four_that_is_broken_already() -> None:
    free = (*EIGHT[:4], EIGHT[6], EIGHT[7])
    assert taken(free, 2) == [6, 7]


def test_the_smaller_of_equal_gpus_is_taken() -> None:
    large, small = gpu(0, memory=141 << 30), gpu(1, memory=80 << 30)
    assert taken((large, small), 1) == [1]


def test_a_mig_instance_is_taken_from_the_gpu_that_has_the_fewest_left() -> None:
    free = (*(mig(0, i) for i in range(7)), *(mig(1, i) for i in range(2)))
    assert choose(free, free, 1) == ("MIG-1-0",)


def test_gpus_of_one_numa_node_are_near_where_no_link_is_known() -> None:
    free = (gpu(0, numa=0), gpu(1, numa=1), gpu(2, numa=0))
    assert taken(free, 2) == [0, 2]


def test_many_units_are_chosen_among_in_bounded_time() -> None:
    """Seven instances on each of eight GPUs make 32 million choices of six."""
    free = tuple(mig(parent, i) for parent in range(8) for i in range(7))
    chosen = choose(free, free, 6)
    assert len(set(chosen)) == 6
    assert len({unit.parent for unit in free if unit.uuid in chosen}) == 1


def test_half_of_sixteen_gpus_are_those_of_one_switch() -> None:
    """12,870 choices are not looked at one by one."""

    def in_eights(one: int, other: int) -> GpuLink:
        return GpuLink.ONE_SWITCH if one // 8 == other // 8 else GpuLink.SYSTEM

    gpus = linked(16, in_eights)
    shuffled = (*gpus[::2], *gpus[1::2])
    assert taken(shuffled, 8) in (list(range(8)), list(range(8, 16)))


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000Ada"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "MIG-1g-10gb"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "MIG"),
    ],
)
def test_a_gpu_is_named_by_words_of_what_its_driver_calls_it(name: str, asked: str) -> None:
    assert is_called(name, asked)


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("NVIDIA L40S", "L4"),
        ("NVIDIA L40S", "L40"),
        ("NVIDIA GH200 480GB", "H200"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "H100"),
        ("NVIDIA H100", ""),
    ],
)
def test_a_gpu_is_not_named_by_a_part_of_a_word(name: str, asked: str) -> None:
    assert not is_called(name, asked)


@given(
    st.sets(st.integers(0, 7), min_size=1),
    st.integers(0, 8),
    st.lists(st.sampled_from(list(GpuLink)), min_size=28, max_size=28),
)
def test_no_choice_would_have_been_tighter(
    free: set[int], count: int, links: list[GpuLink]
) -> None:
    pairs = dict(zip(combinations(range(8), 2), links, strict=True))
    gpus = linked(8, lambda one, other: pairs[min(one, other), max(one, other)])
    units = [gpus[index] for index in sorted(free)]
    count = min(count, len(units))
    chosen = choose(units, units, count)
    assert len(set(chosen)) == count
    best = max(tightness(some) for some in combinations(units, count))
    assert tightness([unit for unit in units if unit.uuid in chosen]) == best
