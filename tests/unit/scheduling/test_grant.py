"""A job's amounts where its user left them out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.lifecycle.model import Allocation, Amount, GpuNeed, JobSpec, Node, Resources
from controller.lifecycle.reports import Placed
from controller.lifecycle.runs.first_state import new_run
from controller.scheduling.fitting.fit import fitting_gpus, room, shortfalls
from controller.scheduling.fitting.grant import granted
from controller.store.rows import ALLOCATION
from fairlead.model.spec import PlannedGroup
from fairlead.model.statuses import AllocationState
from fairlead.wire.engine_abilities import EngineAbility
from tests.unit.scheduling.cluster import Cluster
from tests.unit.scheduling.parts import GIB, gang, gpu, new_id, node, place

EVERYTHING = tuple(Amount)
HALF_OF_A_CARD = 40 * GIB


def eight_gpus(count: int = 8, **capacity: Any) -> Node:
    gpus = tuple(gpu(f"g{number}") for number in range(count))
    return node(capacity={"cpu": 64.0, "memory": 512 * GIB, "gpus": gpus} | capacity)


def need(gpus: int = 0, unset: tuple[Amount, ...] = EVERYTHING, **more: Any) -> Resources:
    fields: dict[str, Any] = {"memory": 2 * GIB, "gpu": GpuNeed(count=gpus), "unset": unset}
    return Resources(**fields | more)


def given_on(where: Node, wanted: Resources, *taken: Allocation) -> tuple[float, int, int | None]:
    free = room(where, taken)
    gpus = fitting_gpus(wanted.gpu, free.gpus)[: wanted.gpu.count]
    got = granted(wanted, free, gpus)
    return got.cpu, got.memory, got.shm_size


def held(resources: Resources, gpus: tuple[str, ...] = (), number: int = 0) -> Allocation:
    return Allocation(
        id=f"a{number}",
        run_id="r",
        job_id="j",
        node_id="n1",
        state=AllocationState.HELD,
        resources=resources,
        gpus=gpus,
        created_at=0.0,
    )


def test_a_job_that_holds_its_node_gets_all_of_it() -> None:
    wanted = need(whole_node=True)
    assert given_on(eight_gpus(), wanted) == (64.0, 512 * GIB, 512 * GIB)


def test_a_job_with_gpus_gets_their_share_of_the_node() -> None:
    assert given_on(eight_gpus(), need(gpus=2)) == (16.0, 128 * GIB, 128 * GIB)


def test_a_job_without_gpus_gets_one_core_and_two_gib() -> None:
    assert given_on(eight_gpus(), need()) == (1.0, 2 * GIB, 2 * GIB)


def test_an_amount_that_the_user_wrote_stays_as_it_is() -> None:
    wanted = need(gpus=4, cpu=3.0, shm_size=GIB, unset=(Amount.MEMORY,))
    assert given_on(eight_gpus(), wanted) == (3.0, 256 * GIB, GIB)


def test_a_small_memory_bounds_the_shared_memory_that_was_left_out() -> None:
    wanted = need(whole_node=True, unset=(Amount.CPU, Amount.SHM_SIZE))
    assert given_on(eight_gpus(), wanted) == (64.0, 2 * GIB, 2 * GIB)


def test_instances_of_a_gpu_share_by_their_memory() -> None:
    whole, half = gpu("g0"), gpu("g1", memory=HALF_OF_A_CARD, name="A100", parent="G")
    where = node(capacity={"cpu": 12.0, "memory": 12 * GIB, "gpus": (whole, half)})
    got = granted(need(gpus=1), room(where, ()), [half])
    assert (got.cpu, got.memory) == (4.0, 4 * GIB)


def test_amounts_that_others_took_are_missing_equally_from_all_shares() -> None:
    greedy = held(Resources(cpu=48.0, memory=GIB, gpu=GpuNeed(count=1)), ("g7",))
    assert given_on(eight_gpus(), need(gpus=1), greedy)[0] == 2.28  # of the 16 that are left


def test_nodes_that_give_blocks_give_no_more_than_those() -> None:
    assert given_on(eight_gpus(blocks=8), need(gpus=1)) == (1.0, 2 * GIB, 2 * GIB)


SMALL = {"cpu": 0.5, "memory": 700 << 20}


def test_an_amount_that_nobody_asked_for_refuses_no_small_node() -> None:
    cluster = Cluster(node("n1", capacity=SMALL))
    run_id = cluster.submit("a", unset=EVERYTHING)
    cluster.turn()
    (allocation,) = cluster.states[run_id].allocations
    got = allocation.resources
    assert (got.cpu, got.memory, got.shm_size) == (0.5, 700 << 20, 700 << 20)
    second = cluster.submit("b", unset=EVERYTHING)
    cluster.turn()
    (attempt,) = cluster.states[second].jobs[0].attempts
    assert attempt.pending_reason is not None
    assert "0 B free of 700 MiB" in attempt.pending_reason.sentence()


def test_a_plain_process_is_granted_no_shared_memory_of_its_own() -> None:
    where = node("n1", capacity={"engine_lacks": tuple(EngineAbility)[:3]})
    assert given_on(where, need())[2] is None


@pytest.mark.parametrize("unset", [(), (Amount.CPU,), (Amount.MEMORY,)])
def test_an_amount_that_was_asked_for_does(unset: tuple[Amount, ...]) -> None:
    cluster = Cluster(node("n1", capacity=SMALL))
    run_id = cluster.submit("a", unset=unset)
    cluster.turn()
    assert cluster.states[run_id].allocations == ()


def test_shared_memory_that_was_asked_for_does_too() -> None:
    wanted = need(shm_size=4 * GIB, unset=(Amount.CPU, Amount.MEMORY), memory=6 * GIB)
    where = room(node(capacity={"cpu": 4.0, "memory": GIB}), ())
    (short,) = shortfalls(wanted, where)
    assert short.lack.words() == ("4.25 GiB memory", "1 GiB free of 1 GiB")


def test_a_node_with_next_to_nothing_takes_no_job() -> None:
    where = room(node(capacity={"cpu": 4.0, "memory": 100 << 20}), ())
    assert len(shortfalls(need(), where)) == 1


def test_a_small_node_is_taken_last() -> None:
    big = {"cpu": 1.0, "memory": 64 * GIB}
    cluster = Cluster(node("a", capacity=SMALL | {"cpu": 64.0}), node("b", capacity=big))
    runs = [cluster.submit(name, unset=EVERYTHING) for name in ("one", "two")]
    cluster.turn()
    places = [cluster.states[run_id].allocations[0].node_name for run_id in runs]
    assert places == ["b", "a"]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1.0, 7.0])), max_size=12),
    st.integers(1, 8),
)
def test_grants_never_exceed_the_node_and_never_keep_a_gpu_from_the_next_job(
    jobs: list[tuple[int, float]], count: int
) -> None:
    where = eight_gpus(count, cpu=8.0, memory=64 * GIB)
    taken: list[Allocation] = []
    for number, (gpus, cpu) in enumerate(jobs):
        wanted = need(gpus=gpus, cpu=cpu)
        free = room(where, taken)
        if shortfalls(wanted, free):
            continue
        chosen = free.gpus[:gpus]
        got = granted(wanted, free, chosen)
        assert got.cpu >= wanted.cpu
        assert got.memory >= wanted.memory
        taken.append(held(got, tuple(one.uuid for one in chosen), number))
    left = room(where, taken)
    assert left.cpu >= -1e-6
    assert left.memory >= 0
    if all(cpu == 1.0 and gpus for gpus, cpu in jobs) and left.gpus:
        assert not shortfalls(need(gpus=1), left)


@pytest.mark.parametrize("size", [2, 4])
def test_jobs_of_one_gang_share_what_is_there(size: int) -> None:
    cluster = Cluster(eight_gpus(cpu=8.0))
    run_id = cluster.submit("a", gang(size), gpus=2, unset=EVERYTHING)
    cluster.turn()
    assert [one.resources.cpu for one in cluster.states[run_id].allocations] == [2.0] * size


def test_a_gang_whose_shares_leave_no_room_for_its_other_jobs_gets_the_least() -> None:
    trainers = PlannedGroup(group=gang(2), spec=JobSpec(image="i", resources=need(gpus=1)))
    loader = PlannedGroup(
        group=gang(1, name="loader"), spec=JobSpec(image="i", resources=need(unset=()))
    )
    state = new_run(name="a", user="ada", groups=[trainers, loader], now=0.0, new_id=new_id)
    answers = place([state], [eight_gpus(2, cpu=4.0)])
    cpus = [one.allocation.resources.cpu for one in answers if isinstance(one, Placed)]
    assert cpus == [1.0, 1.0, 1.0]


def test_a_granted_amount_is_the_same_when_it_is_read_again() -> None:
    cluster = Cluster(eight_gpus(cpu=8.0))
    run_id = cluster.submit("a", gang(2), gpus=2, unset=EVERYTHING)
    cluster.turn()
    for allocation in cluster.states[run_id].allocations:
        assert ALLOCATION.value(ALLOCATION.row(allocation)) == allocation
