"""A request that does not fit is refused by name; a resource is never promised twice."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.wire.errors import Refused
from fairlead.wire.shim import GpuRequest, TaskResources
from shim.node.ledger import Capacity, Ledger
from tests.unit.shim.gpus.parts import gpu, mig
from tests.unit.shim.parts import CAPACITY, GPU, request

OTHER_GPU = msgspec.structs.replace(GPU, uuid="GPU-b", index=1, name="A100")


def resources(**changes: object) -> TaskResources:
    return msgspec.structs.replace(TaskResources(cpu=1.0, memory=1 << 30), **changes)


def refusal(ledger: Ledger, **changes: object) -> Refused:
    with pytest.raises(Refused) as caught:
        ledger.plan("t", request(**changes))
    return caught.value


def test_too_much_memory_is_refused_naming_what_was_asked_and_what_is_free() -> None:
    problem = refusal(Ledger(CAPACITY), resources=resources(memory=9 << 30))
    assert (problem.code, problem.field) == ("no_capacity", "resources.memory")
    assert "9216 MiB asked, 8192 MiB free of 8192 MiB" in problem.message


def test_an_allocation_of_another_run_is_refused() -> None:
    ledger = Ledger(CAPACITY)
    ledger.hold(ledger.plan("t", request()))
    assert refusal(ledger, run_id="run-2").code == "conflict"


def test_the_same_allocation_is_reused_and_not_counted_twice() -> None:
    ledger = Ledger(CAPACITY)
    big = resources(cpu=4.0)
    ledger.hold(ledger.plan("t1", request(resources=big)))
    ledger.hold(ledger.plan("t2", request(resources=big)))
    assert (ledger.used().cpu, ledger.held[0].task_ids) == (4.0, ("t1", "t2"))


def test_the_whole_node_is_held_alone() -> None:
    ledger = Ledger(CAPACITY)
    ledger.hold(ledger.plan("t", request(resources=resources(whole_node=True))))
    problem = refusal(ledger, allocation_id="place-2")
    assert (problem.code, ledger.used()) == ("no_capacity", CAPACITY)


def test_a_part_of_the_node_keeps_the_whole_node_from_others() -> None:
    ledger = Ledger(CAPACITY)
    ledger.hold(ledger.plan("t", request()))
    problem = refusal(ledger, allocation_id="p2", resources=resources(whole_node=True))
    assert problem.field == "resources.whole_node"


def test_gpus_are_chosen_by_filter_and_belong_to_their_allocation() -> None:
    ledger = Ledger(CAPACITY, [OTHER_GPU, GPU])
    wanted = resources(gpu=GpuRequest(count=1, names=("h100",)))
    ledger.hold(ledger.plan("t", request(resources=wanted)))
    assert ledger.held[0].gpus == ("GPU-a",)
    assert {gpu.uuid: gpu.allocation_id for gpu in ledger.gpus()} == {
        "GPU-a": "place-1",
        "GPU-b": None,
    }


def test_a_gpu_that_is_held_is_not_given_by_its_uuid() -> None:
    ledger = Ledger(CAPACITY, [GPU])
    wanted = resources(gpu=GpuRequest(uuids=("GPU-a",)))
    ledger.hold(ledger.plan("t", request(resources=wanted)))
    problem = refusal(ledger, allocation_id="place-2", resources=wanted)
    assert (problem.code, problem.field) == ("no_capacity", "resources.gpu.uuids")


def test_a_gpu_of_an_older_capability_does_not_fit() -> None:
    old = msgspec.structs.replace(GPU, compute_capability="8.6")
    wanted = resources(gpu=GpuRequest(count=1, min_compute_capability="9.0"))
    assert refusal(Ledger(CAPACITY, [old]), resources=wanted).field == "resources.gpu.count"


# -- instances of GPUs in MIG mode ----------------------------------------------------------

SPLIT = (gpu(0), *(mig(1, n) for n in range(7)))


def test_a_count_without_a_name_is_given_no_instances() -> None:
    ledger = Ledger(CAPACITY, SPLIT)
    plan = ledger.plan("t", request(resources=resources(gpu=GpuRequest(count=1))))
    assert plan.gpus == ("GPU-0",)
    problem = refusal(ledger, resources=resources(gpu=GpuRequest(count=3)))
    assert (problem.code, problem.field) == ("no_capacity", "resources.gpu.count")
    assert problem.message == (
        "gpu: 3 asked, 1 fitting and free of 8; MIG instances are given only by name"
    )


@pytest.mark.parametrize(
    "asked", [GpuRequest(count=2, names=("MIG-1g-10gb",)), GpuRequest(uuids=("MIG-1-0", "MIG-1-1"))]
)
def test_instances_are_given_by_their_name_or_one_by_one(asked: GpuRequest) -> None:
    plan = Ledger(CAPACITY, SPLIT).plan("t", request(resources=resources(gpu=asked)))
    assert len(plan.gpus) == 2
    assert all(uuid.startswith("MIG-1-") for uuid in plan.gpus)


@pytest.mark.parametrize(
    ("uuids", "expected"), [((), ("GPU-0",)), (("MIG-1-3",), ("MIG-1-3", "GPU-0"))]
)
def test_a_whole_node_has_no_instance_that_was_not_asked_for(
    uuids: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    wanted = resources(whole_node=True, gpu=GpuRequest(uuids=uuids))
    assert Ledger(CAPACITY, SPLIT).plan("t", request(resources=wanted)).gpus == expected


def test_a_block_brings_no_instance_that_was_not_asked_for() -> None:
    ledger = Ledger(CAPACITY, SPLIT, blocks=8)
    assert ledger.plan("t", request(resources=resources(cpu=0.5))).gpus == ()
    asked = resources(cpu=0.5, gpu=GpuRequest(uuids=("MIG-1-0",)))
    assert ledger.plan("t", request(resources=asked)).gpus == ("MIG-1-0",)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5),
            st.booleans(),
            st.floats(0.1, 6.0),
            st.integers(1, 10 << 30),
        ),
        max_size=30,
    )
)
def test_allocations_never_hold_more_than_there_is(
    moves: list[tuple[int, bool, float, int]],
) -> None:
    capacity = Capacity(cpu=4.0, memory=8 << 30, disk=0)
    ledger = Ledger(capacity)
    for place, leaves, cpu, memory in moves:
        allocation_id = f"place-{place}"
        if leaves:
            ledger.release(allocation_id)
            continue
        wanted = request(allocation_id=allocation_id, resources=resources(cpu=cpu, memory=memory))
        before = ledger.used()
        try:
            ledger.hold(ledger.plan("t", wanted))
        except Refused as problem:
            assert problem.code == "no_capacity"  # noqa: PT017
            assert ledger.used() == before
        assert ledger.used().cpu <= capacity.cpu + 1e-5
        assert ledger.used().memory <= capacity.memory
