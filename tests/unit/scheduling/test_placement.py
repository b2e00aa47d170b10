"""docs/rules.md 6: what fits where, who comes first, and what a waiting job is told."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.lifecycle.model import Band, GpuNeed, Node, NodeStatus, RunPolicy, RunState
from controller.lifecycle.reports import NotPlaced, Placed
from controller.scheduling.feasibility import why_never
from controller.scheduling.fitting.fit import MAX_STARTS
from fairlead.model.statuses import AllocationState, AttemptStatus, RunStatus
from tests.unit.scheduling.parts import GIB, after, gpu, node, place, run, told


def settled(state: RunState, nodes: list[Node]) -> RunState:
    (answer,) = place([state], nodes)
    assert isinstance(answer, Placed)
    return after(state, answer)


def test_a_job_that_fits_gets_an_allocation_of_what_it_asked_for() -> None:
    state = run(cpu=2.0, memory=GIB)
    (placed,) = place([state], [node()])
    assert isinstance(placed, Placed)
    assert placed.attempt_id == state.jobs[0].attempts[0].id
    assert placed.allocation.node_id == "n1"
    assert placed.allocation.state is AllocationState.HELD
    assert placed.allocation.resources == state.jobs[0].spec.resources


def test_a_placement_is_one_that_the_run_can_take() -> None:
    state = settled(run(), [node()])
    assert state.jobs[0].attempts[0].status is AttemptStatus.PROVISIONING


def test_jobs_of_one_round_do_not_take_the_same_place_twice() -> None:
    answers = place([run("a", cpu=3.0), run("b", at=1.0, cpu=3.0)], [node()])
    assert [type(answer) for answer in answers] == [Placed, NotPlaced]


@pytest.mark.parametrize(
    "state", [AllocationState.HELD, AllocationState.NOMINATED, AllocationState.ORPHANED]
)
def test_a_held_nominated_or_orphaned_allocation_is_taken(state: AllocationState) -> None:
    first = settled(run("a", cpu=3.0), [node()])
    first = replace(first, allocations=(replace(first.allocations[0], state=state),))
    second = run("b", cpu=3.0)
    assert told([first, second], [node()]) == "needs 3 CPU; best node n1 has 1 free of 4"


def test_a_released_allocation_is_free() -> None:
    first = settled(run("a", cpu=3.0), [node()])
    released = replace(first.allocations[0], state=AllocationState.RELEASED)
    first = replace(first, allocations=(released,))
    assert isinstance(place([first, run("b", cpu=3.0)], [node()])[0], Placed)


def test_a_job_blocks_nobody_behind_it() -> None:
    answers = place([run("big", cpu=64.0), run("small", at=1.0)], [node()])
    assert [type(answer) for answer in answers] == [NotPlaced, Placed]


def test_a_run_that_is_ending_or_suspended_gets_no_place() -> None:
    ending, suspended = run(), run()
    ending = replace(ending, run=replace(ending.run, status=RunStatus.TERMINATING))
    suspended = replace(suspended, run=replace(suspended.run, suspended=True))
    assert place([ending, suspended], [node()]) == []


def test_a_whole_node_is_given_only_when_nothing_else_is_there_and_then_shared_with_nobody() -> (
    None
):
    small = settled(run("a"), [node()])
    answer = told([small, run("b", whole_node=True)], [node()])
    assert answer == "needs the whole node; best node n1 has other jobs on it"
    alone = settled(run("c", whole_node=True), [node()])
    assert told([alone, run("d")], [node()]).startswith("needs 1 CPU, 1 GiB memory; best node n1")


def test_at_most_eight_jobs_start_on_a_node_at_a_time() -> None:
    big = node(capacity={"cpu": 64.0})
    starting: list[RunState] = []
    for n in range(MAX_STARTS):
        state = run(f"r{n}", cpu=0.1)
        (placed,) = place([*starting, state], [big])
        assert isinstance(placed, Placed)
        starting.append(after(state, placed))
    answer = told([*starting, run("ninth", cpu=0.1)], [big])
    assert answer == "needs a free start slot; best node n1 has 8 starting already"


GPUS = {"gpus": (gpu("g0"), gpu("g1"), gpu("sick", healthy=False))}


def test_gpus_are_given_by_uuid_and_only_healthy_ones() -> None:
    (placed,) = place([run(gpu=GpuNeed(count=2))], [node(capacity=GPUS)])
    assert isinstance(placed, Placed)
    assert placed.allocation.gpus == ("g0", "g1")


def test_a_gpu_is_given_to_one_allocation_only() -> None:
    first = settled(run("a", gpu=GpuNeed(count=1)), [node(capacity=GPUS)])
    second = run("b", gpu=GpuNeed(count=2))
    answer = told([first, second], [node(capacity=GPUS)])
    assert answer == "needs 2 GPU; best node n1 has 1 such GPU free of 3"


@pytest.mark.parametrize(
    ("need", "words"),
    [
        (GpuNeed(count=1, names=("H100",)), "1 GPU named H100"),
        (GpuNeed(count=1, min_memory=141 * GIB), "1 GPU with 141 GiB"),
        (GpuNeed(count=1, min_compute_capability="9.0"), "1 GPU of compute capability 9.0"),
        (GpuNeed(count=1, min_compute_capability="10.0"), "1 GPU of compute capability 10.0"),
    ],
)
def test_a_gpu_of_the_wrong_kind_does_not_fit(need: GpuNeed, words: str) -> None:
    answer = told([run(gpu=need)], [node(capacity=GPUS)])
    assert answer == f"needs {words}; best node n1 has 0 such GPU free of 0"


def test_a_job_for_other_gpus_is_told_of_a_node_that_has_gpus() -> None:
    nodes = [node("n1"), node("n2", capacity={"gpus": (gpu("g1"), gpu("g2"))})]
    answer = told([run(gpu=GpuNeed(count=1, names=("H100",)))], nodes)
    assert answer == "needs 1 GPU named H100; best node n2 has 0 such GPU free of 0"


def test_a_gpu_name_is_matched_whatever_its_case() -> None:
    state = run(gpu=GpuNeed(count=1, names=("a100",)))
    assert isinstance(place([state], [node(capacity=GPUS)])[0], Placed)


def test_a_job_without_gpus_leaves_the_gpu_node_free() -> None:
    (placed,) = place([run()], [node("gpu", capacity=GPUS), node("plain")])
    assert isinstance(placed, Placed)
    assert placed.allocation.node_id == "plain"


def winner(*runs: RunState) -> str:
    (first,) = (a for a in place(list(runs), [node(capacity={"cpu": 1.0})]) if type(a) is Placed)
    return next(state.run.name for state in runs if state.run.id == first.run_id)


def test_a_higher_band_goes_first() -> None:
    batch = run("batch", policy=RunPolicy(band=Band.BATCH, priority=100))
    interactive = run("interactive", at=9.0)
    production = run("production", at=10.0, policy=RunPolicy(band=Band.PRODUCTION, priority=0))
    assert winner(batch, interactive, production) == "production"
    assert winner(batch, interactive) == "interactive"


def test_within_a_band_the_higher_priority_goes_first() -> None:
    assert winner(run("low"), run("high", at=9.0, policy=RunPolicy(priority=51))) == "high"


def test_among_equals_the_earlier_goes_first() -> None:
    assert winner(run("late", at=9.0), run("early", at=1.0)) == "early"


def test_without_a_connected_node_it_says_so() -> None:
    assert told([run()], []) == "no node is connected"
    assert told([run()], [node(status=NodeStatus.UNREACHABLE)]) == "no node is connected"


def test_when_all_nodes_drain_it_says_so() -> None:
    assert told([run()], [node(draining=True)]) == "every connected node is draining"


def test_it_names_the_dimension_and_the_best_node() -> None:
    taken = settled(run("a", cpu=0.5), [node("n1")])
    answer = told([taken, run("b", cpu=8.0)], [node("n0", capacity={"cpu": 2.0}), node("n1")])
    assert answer == "needs 8 CPU; best node n1 has 3.5 free of 4"


def test_it_names_every_dimension_that_does_not_fit_the_best_node() -> None:
    answer = told([run(cpu=8.0, memory=32 * GIB, disk=200 * GIB)], [node()])
    assert answer == (
        "needs 8 CPU, 32 GiB memory, 200 GiB disk; "
        "best node n1 has 4 free of 4, 16 GiB free of 16 GiB, 100 GiB free of 100 GiB"
    )


def test_the_best_node_is_one_that_could_hold_the_job_when_it_is_free() -> None:
    large = node("large", capacity={"cpu": 8.0})
    taken = settled(run("a", cpu=8.0), [large])
    answer = told([taken, run("b", cpu=8.0)], [large, node("small", capacity={"cpu": 7.9})])
    assert answer == "needs 8 CPU; best node large has 0 free of 8"


def test_a_job_is_not_told_the_same_twice() -> None:
    state = run()
    (answer,) = place([state], [])
    assert place([after(state, answer)], []) == []


def test_a_job_that_no_node_could_ever_hold_is_known_at_submit() -> None:
    answer = why_never(run(cpu=8.0), [node()], {})
    sentence = "no node could ever hold it: needs 8 CPU; best node n1 has 4 free of 4"
    assert answer == ("resources", sentence)


def test_a_job_that_fits_an_empty_node_could_fit() -> None:
    assert why_never(run(cpu=4.0), [node("n0", capacity={"cpu": 1.0}), node()], {}) is None


def test_a_sick_gpu_may_recover() -> None:
    assert why_never(run(gpu=GpuNeed(count=3)), [node(capacity=GPUS)], {}) is None


def test_an_unreachable_node_counts_as_able_and_so_does_an_empty_fleet() -> None:
    state = run(cpu=8.0)
    assert why_never(state, [node(), node("n2", status=NodeStatus.UNREACHABLE)], {}) is None
    assert why_never(state, [], {}) is None
