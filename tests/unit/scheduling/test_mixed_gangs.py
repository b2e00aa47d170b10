"""A gang of several kinds of jobs is placed if there is any way to place it (docs/rules.md 5.1)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from controller.lifecycle.model import (
    Band,
    Constraint,
    GpuNeed,
    NodeStatus,
    Operator,
    Resources,
    RetryEvent,
    RetryPolicy,
    RunPolicy,
)
from controller.lifecycle.pending_reasons import NotTogether
from controller.lifecycle.reports import GangTooLarge, RunnerExited
from controller.scheduling import diagnosis, gang_placement, placement, trial_capacity
from controller.scheduling.explain import NO_REASON
from controller.scheduling.feasibility import why_never
from fairlead.model.reasons import Reason
from tests.unit.scheduling.cluster import Cluster, gpu_node, in_rack, rack_fleet
from tests.unit.scheduling.parts import gang, gpu, node


def on(*names: str) -> tuple[Constraint, ...]:
    return (Constraint(attribute="node", operator=Operator.IN, values=names),)


G_AND_H = gang(1, name="g"), gang(1, name="h")
H_ON_X: dict[str, dict[str, Any]] = {"h": {"constraints": on("x")}}


def test_a_job_that_may_go_anywhere_leaves_the_only_node_of_another_to_it() -> None:
    cluster = Cluster(gpu_node("x"), gpu_node("y"))
    run = cluster.submit("a", *G_AND_H, whole_node=True, own=H_ON_X)
    cluster.settle()
    assert cluster.places(run) == {"g/0": "y", "h/0": "x"}


def test_three_kinds_of_which_each_takes_what_the_next_one_needs() -> None:
    cluster = Cluster(*(gpu_node(name) for name in "abc"))
    groups = [gang(1, name=name) for name in "pqr"]
    own = {"p": {"constraints": on("a", "b")}, "q": {"constraints": on("a", "c")}}
    own["r"] = {"constraints": on("a")}
    run = cluster.submit("a", *groups, whole_node=True, own=own)
    cluster.settle()
    assert cluster.places(run) == {"p/0": "b", "q/0": "c", "r/0": "a"}


def test_jobs_that_share_nodes_are_packed_in_the_one_way_that_holds_them_all() -> None:
    """The largest first, each on the best node, leaves no room for the last one."""
    cluster = Cluster(gpu_node("x", 7), gpu_node("y", 8))
    sizes = {"p": 5, "q": 4, "r": 3}
    groups = [gang(2 if name == "r" else 1, name=name) for name in sizes]
    own = {n: {"resources": Resources(gpu=GpuNeed(count=size))} for n, size in sizes.items()}
    run = cluster.submit("a", *groups, own=own)
    cluster.settle()
    places = cluster.places(run)
    assert sorted(places.pop(f"r/{n}") for n in (0, 1)) == ["x", "y"]
    assert places == {"p/0": "y", "q/0": "x"}


def test_jobs_that_share_nodes_leave_the_gpus_of_a_kind_to_the_job_that_asks_for_them() -> None:
    """The smaller cards come first for a job that names none, and here another needs those."""
    gpus = [gpu("small", name="A10", memory=24 << 30), gpu("large", name="H100")]
    cluster = Cluster(node("n1", capacity={"cpu": 8.0, "gpus": tuple(gpus)}))
    own = {
        "g": {"resources": Resources(gpu=GpuNeed(count=1), cpu=2.0)},
        "h": {"resources": Resources(gpu=GpuNeed(count=1, names=("A10",)))},
    }
    run = cluster.submit("a", *G_AND_H, own=own)
    cluster.settle()
    held = {a.job_id: a.gpus for a in cluster.states[run].allocations}
    assert [held.get(job.id) for job in cluster.states[run].jobs] == [("large",), ("small",)]


def test_one_value_that_holds_the_gang_is_found_behind_others_that_do_not() -> None:
    racks = [in_rack("x", "r1"), in_rack("a0", "r2"), in_rack("a1", "r2"), in_rack("y", "r1")]
    cluster = Cluster(*racks, fleets=(rack_fleet(),))
    run = cluster.submit("a", *G_AND_H, whole_node=True, own=H_ON_X)
    cluster.settle()
    assert cluster.places(run) == {"g/0": "y", "h/0": "x"}


def test_a_replaced_job_leaves_the_only_node_of_another_to_it() -> None:
    cluster = Cluster(*(gpu_node(name) for name in "wxyz"))
    again = RunPolicy(retry=RetryPolicy(on_events=frozenset(RetryEvent)))
    groups = gang(2, name="g"), gang(1, name="h")
    run = cluster.submit("a", *groups, whole_node=True, own=H_ON_X, policy=again)
    cluster.settle()
    before = cluster.places(run)
    cluster.start_all()
    for at in (1, 2):
        ids = {"run_id": run, "attempt_id": cluster.attempt(run, at).id}
        reason = Reason.CONTAINER_EXITED_WITH_ERROR
        cluster.tell(run, RunnerExited(reason=reason, exit_code=1, **ids))
    cluster.leave(run)
    cluster.settle()
    assert cluster.places(run)["h/0"] == "x"
    assert sorted(cluster.places(run)) == sorted(before)


# -- what is said, refused and evicted ------------------------------------------------------


def both_on_x(cluster: Cluster) -> str:
    """No way to place both."""
    larger = Resources(cpu=2.0, whole_node=True)
    own: dict[str, dict[str, Any]] = {name: {"constraints": on("x")} for name in "gh"}
    own["h"]["resources"] = larger
    return cluster.submit("a", *G_AND_H, whole_node=True, own=own)


def test_jobs_that_each_find_room_and_not_together_are_told_so() -> None:
    cluster = Cluster(gpu_node("x"), gpu_node("y"))
    run = both_on_x(cluster)
    cluster.settle()
    assert cluster.waits(run) == (
        "needs 2 whole nodes in one fleet; best fleet default has 1 "
        "(each kind of its jobs has room there, but not all of them at once)"
    )


def test_a_gang_waits_for_the_node_that_only_one_of_its_kinds_lacks() -> None:
    cluster = Cluster(gpu_node("x"), gpu_node("y"))
    other = cluster.submit("other", gpus=8, constraints=on("x"))
    cluster.settle()
    run = cluster.submit("a", *G_AND_H, whole_node=True, own=H_ON_X)
    cluster.settle()
    assert cluster.places(other) == {"main/0": "x"}
    waits = cluster.waits(run)
    assert waits is not None
    assert waits.startswith("needs 2 whole nodes in one fleet; best fleet default has 1 (needs ")
    assert "best node x has" in waits


def test_kinds_with_different_needs_are_named_with_their_own() -> None:
    cluster = Cluster(gpu_node("x"), gpu_node("y", 4))
    own = {"h": {"resources": Resources(gpu=GpuNeed(count=16))}}
    run = cluster.submit("a", gang(2, name="g"), gang(1, name="h"), gpus=4, own=own)
    cluster.settle()
    assert cluster.waits(run) == (
        "needs 2 places with 4 GPU and 1 place with 16 GPU in one fleet; best fleet default has 2 "
        "(needs 16 GPU; best node x has 8 such GPU free of 8)"
    )


def test_a_gang_that_fits_in_one_way_is_not_refused() -> None:
    nodes = [gpu_node("x"), gpu_node("y")]
    cluster = Cluster()
    run = cluster.submit("a", *G_AND_H, whole_node=True, own=H_ON_X)
    assert why_never(cluster.states[run], nodes, {}) is None


def test_a_gang_that_fits_in_no_way_is_refused_with_what_is_true() -> None:
    cluster = Cluster()
    run = both_on_x(cluster)
    assert why_never(cluster.states[run], [gpu_node("x"), gpu_node("y")], {}) == (
        "nodes",
        "no fleet could ever hold it: needs 2 whole nodes in one fleet; best fleet default has 1 "
        "(each kind of its jobs has room there, but not all of them at once)",
    )


def test_what_is_beyond_the_bound_of_the_search_is_queued_and_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gang_placement, "MAX_EFFORT", 1)
    monkeypatch.setattr(diagnosis, "MAX_EFFORT", 8)
    nodes = [gpu_node("x", 7), gpu_node("y", 8)]
    cluster = Cluster(*nodes)
    sizes = {"p": 5, "q": 4, "r": 3}
    groups = [gang(2 if name == "r" else 1, name=name) for name in sizes]
    own = {n: {"resources": Resources(gpu=GpuNeed(count=size))} for n, size in sizes.items()}
    run = cluster.submit("a", *groups, own=own)
    cluster.settle()
    assert cluster.places(run) == {}
    waits = cluster.waits(run)
    assert waits is not None
    assert waits.endswith(f"best fleet default has 3 ({NotTogether(all_tried=False).sentence()})")
    assert why_never(cluster.states[run], nodes, {}) is None


def test_no_job_is_evicted_for_a_gang_that_has_room_in_one_way() -> None:
    cluster = Cluster(*(gpu_node(name) for name in "xyz"))
    weak = cluster.submit("weak", gpus=8, band=Band.BATCH, constraints=on("z"))
    cluster.settle()
    cluster.start_all()
    run = cluster.submit("a", *G_AND_H, whole_node=True, own=H_ON_X)
    cluster.settle()
    assert cluster.attempt(weak).reason is None
    assert cluster.places(run) == {"g/0": "y", "h/0": "x"}


def test_a_gang_evicts_what_lets_all_its_kinds_in() -> None:
    """The job that may go anywhere leaves x, which is free, to the one that may go nowhere else."""
    cluster = Cluster(gpu_node("x"), gpu_node("y"))
    weak = cluster.submit("weak", gpus=8, band=Band.BATCH, constraints=on("y"))
    cluster.settle()
    cluster.start_all()
    run = cluster.submit("a", *G_AND_H, whole_node=True, own=H_ON_X)
    cluster.settle()
    assert cluster.attempt(weak).reason is Reason.PREEMPTED
    cluster.leave(weak)
    cluster.settle()
    assert cluster.places(run) == {"g/0": "y", "h/0": "x"}


def test_a_whole_gang_is_evicted_if_that_lets_all_kinds_in() -> None:
    cluster = Cluster(gpu_node("x"), gpu_node("y"))
    weak = cluster.submit("weak", gang(2), whole_node=True, band=Band.BATCH)
    cluster.settle()
    cluster.start_all()
    run = cluster.submit("a", *G_AND_H, whole_node=True, own=H_ON_X)
    cluster.settle()
    assert len(cluster.nominated(run)) == 2
    cluster.leave(weak)
    cluster.settle()
    assert cluster.places(run) == {"g/0": "y", "h/0": "x"}


def test_a_value_that_holds_the_gang_again_in_one_way_is_kept() -> None:
    """Its ranks are of two kinds: the greedy way would call the fleet too small for them."""
    cluster = Cluster(*(gpu_node(name) for name in "xyz"))
    again = RunPolicy(retry=RetryPolicy(on_events=frozenset(RetryEvent)))
    groups = gang(2, name="g"), gang(1, name="h")
    run = cluster.submit("a", *groups, whole_node=True, own=H_ON_X, policy=again)
    cluster.settle()
    assert cluster.places(run)["h/0"] == "x"
    cluster.start_all()
    ids = {"run_id": run, "attempt_id": cluster.attempt(run, 0).id}
    reason = Reason.CONTAINER_EXITED_WITH_ERROR
    cluster.tell(run, RunnerExited(reason=reason, exit_code=1, **ids))
    gone = cluster.node("y")
    cluster.set_node(replace(gone, status=NodeStatus.UNREACHABLE))
    cluster.leave(run)
    told = cluster.turn()
    assert not any(isinstance(one, GangTooLarge) for one in told.get(run, ()))
    cluster.set_node(gone)
    cluster.settle()
    assert len(cluster.places(run)) == 3


def test_the_effort_of_a_pass_is_shared_and_the_next_pass_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial_capacity, "PASS_EFFORT", 12)
    monkeypatch.setattr(placement, "PASS_EFFORT", 12)
    names = [f"{kind}{n}" for n in range(4) for kind in "xy"]
    cluster = Cluster(*(gpu_node(name) for name in names))
    runs = [
        cluster.submit(
            f"a{n}",
            *G_AND_H,
            whole_node=True,
            own={"g": {"constraints": on(f"x{n}", f"y{n}")}, "h": {"constraints": on(f"x{n}")}},
        )
        for n in range(4)
    ]
    told = cluster.turn()
    assert 0 < len(told) < len(runs)
    assert cluster.pipeline.is_unfinished
    cluster.settle()
    assert [cluster.places(run) for run in runs] == [
        {"g/0": f"y{n}", "h/0": f"x{n}"} for n in range(4)
    ]


def test_explain_says_that_the_next_turn_places_a_gang_that_has_room_now() -> None:
    cluster = Cluster(gpu_node("x"))
    run = cluster.submit("a", *G_AND_H, whole_node=True, own=H_ON_X)
    cluster.settle()
    (first, second) = cluster.pipeline.explain(run, cluster.now, lambda one: one.name)
    assert first.why == second.why
    assert first.why.startswith("needs 2 whole nodes in one fleet; best fleet default has 1")
    cluster.set_node(gpu_node("y"))
    waiting = cluster.pipeline.explain(run, cluster.now, lambda one: one.name)
    assert {one.why for one in waiting} == {NO_REASON}
    cluster.settle()
    assert cluster.places(run) == {"g/0": "y", "h/0": "x"}
