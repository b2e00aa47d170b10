"""Instances of a GPU in MIG mode: given to jobs whose GPU name asks for them, and to no other."""

from __future__ import annotations

from typing import Any

import pytest

from controller.lifecycle.model import GpuNeed, Node
from controller.lifecycle.reports import Placed
from controller.scheduling.feasibility import why_never
from controller.scheduling.fitting.constraints import attributes_of
from tests.unit.scheduling.parts import GIB, gpu, node, place, run, told

WHOLE = ("GPU-0", "GPU-1", "GPU-2")
INSTANCES = tuple(f"MIG-3-{n}" for n in range(7))
MIG = ("MIG-1g-10gb",)


def instance(uuid: str, board: str) -> Any:
    return gpu(uuid, name="NVIDIA A100 MIG 1g.10gb", memory=10 * GIB, parent=board)


def split_node(*whole: str, **capacity: Any) -> Node:
    """Whole GPUs beside one that is split in seven."""
    gpus = (*map(gpu, whole), *(instance(uuid, "GPU-3") for uuid in INSTANCES))
    return node(capacity={"cpu": 64.0, "gpus": gpus, **capacity})


def given(one: Node, **need: Any) -> tuple[str, ...]:
    (answer,) = place([run(**need)], [one])
    assert isinstance(answer, Placed)
    return answer.allocation.gpus


def test_a_count_without_a_name_is_a_count_of_whole_gpus() -> None:
    assert given(split_node(*WHOLE), gpu=GpuNeed(count=3)) == WHOLE


def test_a_size_without_a_name_is_that_of_a_whole_gpu() -> None:
    need = GpuNeed(count=1, min_memory=8 * GIB)
    assert given(split_node("GPU-0"), gpu=need) == ("GPU-0",)


def test_an_instance_is_given_to_a_job_that_asks_for_it_by_name() -> None:
    got = given(split_node(*WHOLE), gpu=GpuNeed(count=2, names=MIG))
    assert set(got) <= set(INSTANCES)
    assert len(got) == 2


@pytest.mark.parametrize(
    ("names", "expected"),
    [((), WHOLE), (("A100",), WHOLE), (MIG, WHOLE + INSTANCES)],
)
def test_a_whole_node_comes_with_its_instances_only_when_their_name_is_asked_for(
    names: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    need = GpuNeed(count=1 if names else 0, names=names)
    assert given(split_node(*WHOLE), gpu=need, whole_node=True) == expected


def test_a_job_waits_for_whole_gpus_beside_free_instances_and_is_told_why() -> None:
    sentence = told([run(gpu=GpuNeed(count=3))], [split_node("GPU-0")])
    assert sentence == (
        "needs 3 GPU; best node n1 has 1 such GPU free of 1 "
        "(MIG instances are given only by name, such as MIG-1g-10gb)"
    )


def test_a_request_that_only_instances_could_hold_is_refused_at_submit() -> None:
    found = why_never(run(gpu=GpuNeed(count=3)), [split_node()], {})
    assert found is not None
    assert "0 such GPU free of 0 (MIG instances are given only by name" in found[1]


def test_a_job_without_gpus_takes_a_block_of_a_split_node_and_no_instance() -> None:
    assert given(split_node(blocks=7), cpu=1.0) == ()
    assert len(given(split_node(blocks=7), cpu=1.0, gpu=GpuNeed(count=1, names=MIG))) == 1


def test_the_instances_of_one_card_count_as_one_gpu_in_constraints() -> None:
    assert attributes_of(split_node(*WHOLE), None)["gpu.count"] == "4"


def test_nodes_with_as_many_units_are_told_apart_by_which_are_instances() -> None:
    cards = node("card", capacity={"gpus": (gpu("GPU-9"),)})
    slices = node("a-slice", capacity={"gpus": (gpu("MIG-9", parent="GPU-8"),)})
    (answer,) = place([run(gpu=GpuNeed(count=1))], [slices, cards])
    assert isinstance(answer, Placed)
    assert answer.allocation.node_id == "card"
