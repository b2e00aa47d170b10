"""docs/rules.md 6: who makes room for whom, and what becomes of nominations."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from controller.lifecycle.model import (
    Band,
    Constraint,
    GpuNeed,
    Group,
    NodeStatus,
    Operator,
    Resources,
    RunPolicy,
)
from controller.lifecycle.reports import StopRequested, SuspendRequested, Tick
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AllocationState, AttemptStatus
from tests.unit.scheduling.cluster import Cluster, attempts, gpu_node, in_rack, rack_fleet
from tests.unit.scheduling.parts import gang


def full(*names: str, band: Band = Band.BATCH, gpus: int = 8) -> tuple[Cluster, list[str]]:
    """Each node with as many running jobs of `band` as fit."""
    cluster = Cluster(*(gpu_node(name) for name in names))
    runs = []
    for number in range(len(names) * 8 // gpus):
        runs.append(cluster.submit(f"{band}{number}", band=band, gpus=gpus))
        cluster.settle()
        cluster.start_all()
    return cluster, runs


def reasons(cluster: Cluster, run: str) -> list[Reason | None]:
    return [attempt.reason for attempt in attempts(cluster.states[run])]


def test_a_higher_band_is_nominated_and_placed_when_its_victim_has_left() -> None:
    cluster, (victim,) = full("n1")
    run = cluster.submit("a", gpus=8)
    cluster.settle()
    assert reasons(cluster, victim) == [Reason.PREEMPTED]
    (place,) = cluster.nominated(run)
    assert cluster.attempt(run).status is AttemptStatus.SUBMITTED
    assert cluster.waits(run) == "waiting for 1 victim to leave"
    cluster.leave(victim)
    cluster.settle()
    assert cluster.attempt(run).status is AttemptStatus.PROVISIONING
    (held,) = cluster.states[run].allocations
    assert (held.id, held.state, held.gpus) == (place.id, AllocationState.HELD, place.gpus)


def test_a_job_that_does_not_wait_evicts_no_other() -> None:
    cluster, (other,) = full("n1")
    run = cluster.submit("a", gpus=8, policy=RunPolicy(scheduling_timeout=0.0))
    cluster.settle()
    assert reasons(cluster, other) == [None]
    assert reasons(cluster, run) == [Reason.UNSCHEDULABLE]


def test_a_victim_is_not_told_the_name_of_anothers_run() -> None:
    for user, name in (("ada", "run wide"), ("bob", "a run of bob")):
        cluster, (victim,) = full("n1")
        cluster.submit("wide", gpus=8, user=user)
        cluster.settle()
        (ended,) = attempts(cluster.states[victim])
        assert ended.message == f"{name} of the interactive band needs its allocation"


def test_the_same_band_and_higher_ones_are_left_alone() -> None:
    for band in (Band.INTERACTIVE, Band.PRODUCTION):
        cluster, (other,) = full("n1", band=band)
        run = cluster.submit("a", gpus=8)
        cluster.settle()
        assert (reasons(cluster, other), cluster.nominated(run)) == ([None], [])


def test_nobody_is_evicted_where_it_would_not_fit_then() -> None:
    cluster, (victim,) = full("n1")
    cluster.submit("a", gpus=9)
    cluster.settle()
    assert reasons(cluster, victim) == [None]


def test_the_fewest_go_and_of_those_the_youngest() -> None:
    cluster, runs = full("n1", gpus=4)
    cluster.submit("a", gpus=4)
    cluster.settle()
    assert [reasons(cluster, run) for run in runs] == [[None], [Reason.PREEMPTED]]


def test_the_lowest_band_goes_before_the_youngest() -> None:
    cluster = Cluster(gpu_node("n1"))
    batch = cluster.submit("batch", gpus=4, band=Band.BATCH)
    cluster.settle()
    cluster.start_all()
    interactive = cluster.submit("interactive", gpus=4)
    cluster.settle()
    cluster.start_all()
    cluster.submit("a", gpus=4, band=Band.PRODUCTION)
    cluster.settle()
    assert reasons(cluster, batch) == [Reason.PREEMPTED]
    assert reasons(cluster, interactive) == [None]


def test_a_reserved_job_goes_before_a_running_one_of_its_band() -> None:
    cluster = Cluster(gpu_node("n1"), gpu_node("n2"))
    with_reserve = cluster.submit("gang", gang(2, size=1), whole_node=True, band=Band.BATCH)
    cluster.settle()
    cluster.start_all()
    cluster.submit("a", gpus=8)
    cluster.settle()
    assert reasons(cluster, with_reserve) == [None, Reason.PREEMPTED]


def test_a_job_of_its_own_evicts_no_gang() -> None:
    cluster = Cluster(gpu_node("n1"), gpu_node("n2"))
    other = cluster.submit("gang", gang(2), whole_node=True, band=Band.BATCH)
    cluster.settle()
    cluster.start_all()
    cluster.submit("a", gpus=8)
    cluster.settle()
    assert reasons(cluster, other) == [None, None]


def test_a_gang_evicts_a_whole_gang_or_nothing_of_it() -> None:
    cluster = Cluster(*(gpu_node(f"n{n}") for n in range(3)))
    other = cluster.submit("other", gang(3), whole_node=True, band=Band.BATCH)
    cluster.settle()
    cluster.start_all()
    run = cluster.submit("gang", gang(2), whole_node=True)
    cluster.settle()
    assert reasons(cluster, other) == [Reason.PREEMPTED] * 3
    assert len(cluster.nominated(run)) == 2
    assert cluster.waits(run) == "waiting for 2 victims to leave"
    cluster.leave(other)
    cluster.settle()
    assert len(cluster.places(run)) == 2


def test_a_gang_evicts_the_fewest_jobs_of_their_own() -> None:
    cluster, runs = full("n1", "n2", gpus=4)
    free = gpu_node("n3")
    cluster.set_node(free)
    run = cluster.submit("gang", gang(2), whole_node=True)
    cluster.settle()
    assert sum(reasons(cluster, one) == [Reason.PREEMPTED] for one in runs) == 2
    assert {place.node_id for place in cluster.nominated(run)} > {"n3"}


def test_a_gang_evicts_within_one_placement_value_only() -> None:
    nodes = [in_rack("a0", "r1"), in_rack("b0", "r2")]
    cluster = Cluster(*nodes, fleets=(rack_fleet(),))
    runs = [cluster.submit(f"b{n}", gpus=8, band=Band.BATCH) for n in range(2)]
    cluster.settle()
    cluster.start_all()
    cluster.submit("gang", gang(2), whole_node=True)
    cluster.settle()
    assert [reasons(cluster, run) for run in runs] == [[None], [None]]


def test_a_place_carries_at_most_one_nomination() -> None:
    cluster, (victim,) = full("n1")
    first = cluster.submit("first", gpus=8)
    second = cluster.submit("second", gpus=8, band=Band.PRODUCTION)
    cluster.settle()
    assert len(cluster.nominated(first)) + len(cluster.nominated(second)) == 1
    assert cluster.pipeline.nominated(cluster.states[victim]) == {
        cluster.states[victim].allocations[0].id
    }


def test_nobody_else_gets_a_nominated_place_when_it_comes_free() -> None:
    cluster, (victim,) = full("n1")
    run = cluster.submit("a", gpus=8)
    cluster.settle()
    cluster.leave(victim)
    later = cluster.submit("later", gpus=8, band=Band.PRODUCTION)
    cluster.settle()
    assert (cluster.places(run), cluster.places(later)) == ({"main/0": "n1"}, {})


def test_a_nomination_ends_with_its_attempt() -> None:
    cluster, (victim,) = full("n1")
    run = cluster.submit("a", gpus=8)
    cluster.settle()
    cluster.tell(run, StopRequested(run_id=run, abort=False, by="ada"))
    cluster.settle()
    assert [a.state for a in cluster.states[run].allocations] == [AllocationState.RELEASED]
    assert cluster.pipeline.nominated(cluster.states[victim]) == frozenset()


def test_a_nomination_ends_on_suspend() -> None:
    cluster, _ = full("n1")
    run = cluster.submit("a", gpus=8)
    cluster.settle()
    cluster.tell(run, SuspendRequested(run_id=run, abort_running=False, by="ada"))
    cluster.settle()
    assert cluster.nominated(run) == []


@pytest.mark.parametrize("change", [{"draining": True}, {"status": NodeStatus.LOST}])
def test_a_nomination_ends_also_when_its_node_was_silent_before(change: dict[str, Any]) -> None:
    cluster = Cluster(gpu_node("n1"))
    cluster.submit("weak", gpus=8, band=Band.BATCH)
    cluster.settle()
    cluster.start_all()
    run = cluster.submit("a", gpus=8)
    cluster.settle()
    silent = replace(cluster.node("n1"), status=NodeStatus.UNREACHABLE)
    cluster.set_node(silent)
    cluster.settle()
    assert len(cluster.nominated(run)) == 1
    cluster.set_node(replace(silent, **change))
    cluster.settle()
    assert cluster.nominated(run) == []


def test_a_nomination_of_a_gang_ends_as_a_whole_on_drain_and_node_loss() -> None:
    for change in ({"draining": True}, {"status": NodeStatus.LOST}):
        cluster, _ = full("n1", "n2")
        run = cluster.submit("gang", gang(2), whole_node=True)
        cluster.settle()
        assert len(cluster.nominated(run)) == 2
        cluster.set_node(replace(cluster.node("n2"), **change))
        cluster.settle()
        assert cluster.nominated(run) == []
        assert cluster.attempt(run).allocation_id is None


def test_a_nomination_ends_with_its_node() -> None:
    cluster, _ = full("n1")
    run = cluster.submit("a", gpus=8)
    cluster.settle()
    assert len(cluster.nominated(run)) == 1
    cluster.remove_node("n1")
    cluster.settle()
    assert cluster.nominated(run) == []


def test_a_nomination_waits_for_a_node_that_is_only_silent() -> None:
    cluster, (victim,) = full("n1")
    run = cluster.submit("a", gpus=8)
    cluster.settle()
    cluster.set_node(replace(cluster.node("n1"), status=NodeStatus.UNREACHABLE))
    cluster.leave(victim)
    cluster.settle()
    assert cluster.waits(run) == "waiting for node n1 to be connected again"
    cluster.set_node(replace(cluster.node("n1"), status=NodeStatus.CONNECTED))
    cluster.settle()
    assert cluster.places(run) == {"main/0": "n1"}


def test_independent_jobs_are_evicted_one_by_one() -> None:
    cluster = Cluster(gpu_node("n1"))
    group = Group(name="main", nodes=2)
    many = cluster.submit("many", group, gpus=4, band=Band.BATCH)
    cluster.settle()
    cluster.start_all()
    cluster.submit("a", gpus=4)
    cluster.settle()
    assert sorted(str(reason) for reason in reasons(cluster, many)) == ["None", "preempted"]


# -- who gives up waiting -------------------------------------------------------------------


def test_nobody_is_evicted_who_may_still_be_there_when_the_job_gives_up() -> None:
    """It would be gone in vain."""
    cluster, (other,) = full("n1")
    run = cluster.submit("a", gpus=8, policy=RunPolicy(scheduling_timeout=300.0))
    cluster.settle()
    assert reasons(cluster, other) == [None]
    assert cluster.nominated(run) == []


def test_those_go_who_are_gone_in_time() -> None:
    cluster = Cluster(gpu_node("n1"), gpu_node("n2"))
    slow = cluster.submit("slow", band=Band.BATCH, gpus=8)
    quick = cluster.submit("quick", band=Band.BATCH, gpus=8, policy=RunPolicy(stop_duration=20.0))
    cluster.settle()
    cluster.start_all()
    run = cluster.submit("a", gpus=8, policy=RunPolicy(scheduling_timeout=30.0))
    cluster.settle()
    assert (reasons(cluster, slow), reasons(cluster, quick)) == ([None], [Reason.PREEMPTED])
    cluster.leave(quick)
    cluster.settle()
    assert cluster.attempt(run).status is AttemptStatus.PROVISIONING


@pytest.mark.parametrize(("waited", "ends"), [(9.0, Reason.PREEMPTED), (11.0, None)])
def test_the_longer_it_has_waited_the_less_time_is_left(waited: float, ends: Reason | None) -> None:
    cluster = Cluster(gpu_node("n1"))
    policy = RunPolicy(stop_duration=20.0)
    other = cluster.submit("other", band=Band.BATCH, gpus=8, policy=policy)
    cluster.settle()
    cluster.start_all()
    cluster.set_node(replace(cluster.node("n1"), cordoned=True))
    cluster.submit("a", gpus=8, policy=RunPolicy(scheduling_timeout=40.0))
    cluster.settle()
    cluster.now += waited
    cluster.set_node(replace(cluster.node("n1"), cordoned=False))
    cluster.settle()
    assert reasons(cluster, other) == [ends]


def test_a_victim_that_does_not_run_yet_gets_no_grace() -> None:
    cluster = Cluster(gpu_node("n1"))
    other = cluster.submit("other", band=Band.BATCH, gpus=8)
    cluster.settle()
    cluster.submit("a", gpus=8, policy=RunPolicy(scheduling_timeout=30.0))
    cluster.settle()
    assert reasons(cluster, other) == [Reason.PREEMPTED]


def test_a_gang_leaves_within_the_short_grace_of_its_switch() -> None:
    cluster = Cluster(gpu_node("n1"), gpu_node("n2"))
    other = cluster.submit("other", gang(2), band=Band.BATCH, gpus=8)
    cluster.settle()
    cluster.start_all()
    run = cluster.submit("a", gang(2), gpus=8, policy=RunPolicy(scheduling_timeout=20.0))
    cluster.settle()
    assert reasons(cluster, other) == [Reason.PREEMPTED] * 2
    assert len(cluster.nominated(run)) == 2


# -- no more than are needed ----------------------------------------------------------------


def with_jobs(
    cluster: Cluster, jobs: dict[str, tuple[str, int]], band: Band = Band.BATCH
) -> dict[str, str]:
    """Running jobs by name: each on its node with so many GPUs; their runs."""
    runs = {}
    for name, (node, gpus) in jobs.items():
        here = (Constraint(attribute="node", operator=Operator.EQ, values=(node,)),)
        runs[name] = cluster.submit(name, gpus=gpus, band=band, constraints=here)
        cluster.settle()
        cluster.start_all()
    return runs


def evicted(cluster: Cluster, runs: dict[str, str]) -> set[str]:
    return {name for name, run in runs.items() if reasons(cluster, run) == [Reason.PREEMPTED]}


def test_a_gang_evicts_one_large_job_rather_than_two_small_ones() -> None:
    cluster = Cluster(*(gpu_node(f"n{n}") for n in range(3)))
    runs = with_jobs(cluster, {"large": ("n0", 8), "one": ("n1", 4), "other": ("n2", 4)})
    with_jobs(cluster, {"x": ("n1", 4), "y": ("n2", 4)}, Band.INTERACTIVE)
    run = cluster.submit("gang", gang(2), gpus=4)
    cluster.settle()
    assert evicted(cluster, runs) == {"large"}
    cluster.leave(runs["large"])
    cluster.settle()
    assert cluster.places(run) == {"main/0": "n0", "main/1": "n0"}


def test_a_large_gang_evicts_the_large_jobs_first() -> None:
    cluster = Cluster(*(gpu_node(f"n{n:02}") for n in range(18)))
    jobs = {f"large{n}": (f"n{n:02}", 8) for n in range(6)}
    jobs |= {f"small{n}": (f"n{6 + n:02}", 4) for n in range(12)}
    runs = with_jobs(cluster, jobs)
    with_jobs(cluster, {f"x{n}": (f"n{6 + n:02}", 4) for n in range(12)}, Band.INTERACTIVE)
    cluster.submit("gang", gang(12), gpus=4)
    cluster.settle()
    assert evicted(cluster, runs) == {f"large{n}" for n in range(6)}


def test_a_gang_spares_the_job_whose_room_it_turns_out_not_to_need() -> None:
    """The first of its jobs is given the room of a small one, and the last one needs a large one,
    which leaves room for both."""
    cluster = Cluster(gpu_node("n0"), gpu_node("n1", 4))
    runs = with_jobs(cluster, {"large": ("n0", 8), "small": ("n1", 2)})
    with_jobs(cluster, {"x": ("n1", 2)}, Band.INTERACTIVE)
    own = {"b": {"resources": Resources(gpu=GpuNeed(count=6))}}
    cluster.submit("gang", gang(1, name="a"), gang(1, name="b"), gpus=2, own=own)
    cluster.settle()
    assert evicted(cluster, runs) == {"large"}


def test_a_gang_evicts_the_gang_with_the_fewest_jobs_that_leaves_enough_room() -> None:
    cluster = Cluster(*(gpu_node(f"n{n}") for n in range(6)))
    sizes = {"one": 1, "two": 2, "three": 3}
    runs = {}
    for name, size in sizes.items():
        runs[name] = cluster.submit(name, gang(size), whole_node=True, band=Band.BATCH)
        cluster.settle()
        cluster.start_all()
    cluster.submit("gang", gang(2), whole_node=True)
    cluster.settle()
    assert {name for name, run in runs.items() if Reason.PREEMPTED in reasons(cluster, run)} == {
        "two"
    }


def test_of_equally_few_a_gang_evicts_the_cheapest() -> None:
    cluster = Cluster(gpu_node("n0"), gpu_node("n1"))
    runs = with_jobs(cluster, {"older": ("n0", 8), "younger": ("n1", 8)})
    cluster.submit("gang", gang(2), gpus=4)
    cluster.settle()
    assert evicted(cluster, runs) == {"younger"}


def test_a_single_job_evicts_one_large_job_rather_than_two_small_ones() -> None:
    """Two small ones are younger, and so they are cheaper each."""
    cluster = Cluster(gpu_node("n0", 8))
    runs = with_jobs(cluster, {"large": ("n0", 4), "one": ("n0", 2), "other": ("n0", 2)})
    cluster.submit("a", gpus=4)
    cluster.settle()
    assert evicted(cluster, runs) == {"large"}


def test_a_gang_evicts_nobody_where_those_that_leave_anyway_leave_enough() -> None:
    cluster = Cluster(gpu_node("n0"), gpu_node("n1"))
    runs = with_jobs(cluster, {"leaves": ("n0", 8), "stays": ("n1", 8)})
    leaves = runs["leaves"]
    cluster.tell(leaves, StopRequested(run_id=leaves, abort=False, by="ada"))
    run = cluster.submit("gang", gang(2), gpus=4)
    cluster.settle()
    assert reasons(cluster, runs["stays"]) == [None]
    cluster.leave(leaves)
    cluster.settle()
    assert cluster.places(run) == {"main/0": "n0", "main/1": "n0"}


# -- nominations beside each other ----------------------------------------------------------


def test_a_nomination_waits_for_a_job_that_leaves_for_another_one() -> None:
    """Otherwise it ends, and the job that it had evicted is placed there again."""
    cluster = Cluster(gpu_node("n0", 16))
    runs = with_jobs(cluster, {"first": ("n0", 8), "second": ("n0", 8)})
    a = cluster.submit("a", gpus=4)
    cluster.settle()
    (gone,) = evicted(cluster, runs)
    b = cluster.submit("b", gpus=12)
    cluster.settle()
    assert evicted(cluster, runs) == {"first", "second"}
    (other,) = {"first", "second"} - {gone}
    cluster.leave(runs[other])
    cluster.settle()
    assert cluster.waits(b) == "waiting for 1 victim to leave"
    assert len(cluster.nominated(b)) == 1
    cluster.now += 60.0
    for run in runs.values():
        cluster.tell(run, Tick(run_id=run))
    cluster.settle()
    assert [cluster.places(run) for run in runs.values()].count({}) == 1
    cluster.leave(runs[gone])
    cluster.settle()
    assert cluster.places(a) == {"main/0": "n0"}
    assert cluster.places(b) == {"main/0": "n0"}


def test_it_goes_on_waiting_when_the_other_nomination_ends() -> None:
    cluster = Cluster(gpu_node("n0", 16))
    runs = with_jobs(cluster, {"first": ("n0", 8), "second": ("n0", 8)})
    a = cluster.submit("a", gpus=4)
    cluster.settle()
    (gone,) = evicted(cluster, runs)
    b = cluster.submit("b", gpus=12)
    cluster.settle()
    (other,) = {"first", "second"} - {gone}
    cluster.tell(a, StopRequested(run_id=a, abort=False, by="ada"))
    cluster.leave(runs[other])
    cluster.settle()
    assert len(cluster.nominated(b)) == 1
    cluster.leave(runs[gone])
    cluster.settle()
    assert cluster.places(b) == {"main/0": "n0"}
