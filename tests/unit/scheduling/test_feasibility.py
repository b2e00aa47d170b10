"""docs/rules.md 6: what is refused at submit, and what only waits."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from controller.lifecycle.model import (
    Constraint,
    Fleet,
    Group,
    Node,
    NodeStatus,
    Operator,
    RunPolicy,
    RunState,
    StartupOrder,
)
from controller.scheduling.feasibility import Feasibility, why_never, why_queued
from tests.unit.scheduling.cluster import Cluster, gpu_node, in_rack, rack_fleet
from tests.unit.scheduling.parts import gang

RACKS = [in_rack("a0", "r1"), *(in_rack(f"b{n}", "r2") for n in range(2))]
NAMED = {"default": rack_fleet()}


def asking(*groups: Group, **more: Any) -> RunState:
    cluster = Cluster()
    return cluster.states[cluster.submit("a", *groups, **more)]


def refusal(state: RunState, nodes: list[Node], fleets: dict[str, Fleet]) -> str:
    found = why_never(state, nodes, fleets)
    assert found is not None
    return ": ".join(found)


def test_a_gang_that_no_placement_value_could_ever_hold_is_refused() -> None:
    state = asking(gang(3), whole_node=True, gpus=8)
    assert refusal(state, RACKS, NAMED) == (
        "nodes: no fleet could ever hold it: "
        "needs 3 whole nodes with 8 GPU in one rack; best rack r2 has 2"
    )
    assert why_never(state, RACKS, {}) is None


def test_jobs_whose_turn_comes_later_must_fit_too() -> None:
    policy = RunPolicy(same_placement=True, startup_order=StartupOrder.MASTER_FIRST)
    state = asking(Group(name="main", nodes=3), gpus=8, policy=policy)
    assert refusal(state, RACKS, NAMED) == (
        "nodes: no fleet could ever hold it: "
        "needs 3 places with 8 GPU in one rack; best rack r2 has 2"
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            {"constraints": (Constraint(attribute="rack", operator=Operator.EQ, values=("r2",)),)},
            "(needs rack = r2; node a0 has r1, and none is better)",
        ),
        ({"fleets": ("other",)}, "(it may only go to fleet other)"),
    ],
)
def test_a_gang_of_which_one_group_may_not_go_where_the_other_must_is_told_so(
    change: dict[str, Any], why: str
) -> None:
    nodes = [in_rack("a0", "r1"), in_rack("b0", "r2"), gpu_node("c0", fleet="other")]
    state = asking(gang(1), gang(1, name="side"))
    rack = Constraint(attribute="rack", operator=Operator.EQ, values=("r1",))
    first, side = state.jobs
    home = replace(first, spec=replace(first.spec, constraints=(rack,)))
    bound = replace(side, spec=replace(side.spec, **change))
    sentence = refusal(replace(state, jobs=(home, bound)), nodes, NAMED)
    assert sentence.endswith(f"in one rack; best rack r1 has 1 {why}")


def test_reserved_jobs_need_no_place_at_once() -> None:
    assert why_never(asking(gang(3, size=2), whole_node=True), RACKS, NAMED) is None


def test_a_gang_on_shared_nodes_may_start_more_jobs_than_a_node_starts_at_a_time() -> None:
    assert why_never(asking(gang(20)), [gpu_node("n1")], {}) is None


def test_a_constraint_that_no_node_meets_is_refused() -> None:
    zone = Constraint(attribute="rack", operator=Operator.EQ, values=("r3",))
    assert refusal(asking(constraints=(zone,)), RACKS, {}) == (
        "constraints: no node could ever hold it: "
        "needs rack = r3; node a0 has r1, and none is better"
    )


def test_only_nodes_that_meet_the_constraints_are_asked_for_room() -> None:
    rack = Constraint(attribute="rack", operator=Operator.EQ, values=("r1",))
    nodes = [in_rack("a0", "r1", 2), in_rack("b0", "r2", 8)]
    assert refusal(asking(constraints=(rack,), gpus=8), nodes, {}).startswith(
        "resources: no node could ever hold it: needs 8 GPU; best node a0 has 2"
    )


def test_a_busy_drained_or_cordoned_node_may_hold_it_later() -> None:
    nodes = [replace(gpu_node("n1"), cordoned=True), replace(gpu_node("n2"), draining=True)]
    assert why_never(asking(gang(2), whole_node=True), nodes, {}) is None


def test_a_silent_node_of_the_fleet_counts_as_able() -> None:
    nodes = [gpu_node("n1", 1), replace(gpu_node("n2", 0), status=NodeStatus.UNREACHABLE)]
    assert why_never(asking(gpus=8), nodes, {}) is None
    silent_elsewhere = [nodes[0], replace(nodes[1], fleet="other")]
    assert refusal(asking(gpus=8, fleets=("default",)), silent_elsewhere, {}).startswith(
        "resources: no node could ever hold it"
    )


def test_one_silent_fleet_hides_no_impossible_job_for_another() -> None:
    nodes = [gpu_node("n1", 1), replace(gpu_node("n2", fleet="y"), status=NodeStatus.UNREACHABLE)]
    state = asking(gpus=8, fleets=("y",))
    here = asking(gpus=8, fleets=("default",))
    both = replace(state, jobs=(*state.jobs, *here.jobs))
    assert refusal(both, nodes, {}).startswith("resources: no node could ever hold it")


def test_a_scheduled_run_is_refused_before_its_first_trigger() -> None:
    policy = RunPolicy(schedule=("0 8 * * *",))
    state = asking(gang(3), whole_node=True, policy=policy)
    assert refusal(state, RACKS, NAMED).startswith("nodes: no fleet could ever hold it")


def test_an_empty_fleet_queues_with_a_warning() -> None:
    state = asking(fleets=("new",))
    assert why_never(state, RACKS, {"new": Fleet(name="new", created_at=0.0)}) is None
    assert why_queued(state, RACKS) == (
        "fleet new has no node yet: the run waits for the first one"
    )
    assert why_queued(asking(), RACKS) is None


def test_a_fleet_that_nobody_has_made_is_refused_even_beside_one_that_is_there() -> None:
    sentence = "fleets: there is no fleet trainnig; `fairlead fleet list` shows the existing ones"
    assert refusal(asking(fleets=("trainnig",)), RACKS, {}) == sentence
    assert refusal(asking(fleets=("default", "trainnig")), RACKS, {}) == sentence


def test_kept_answers_follow_every_change_of_a_node() -> None:
    kept, state = Feasibility(), asking(gpus=8)
    nodes: dict[str, Node] = {}

    def answers(node_id: str, node: Node | None) -> bool:
        """Whether it is refused; asked of what is kept and of what is made anew."""
        kept.node_changed(node_id, node)
        nodes.pop(node_id, None)
        if node is not None:
            nodes[node_id] = node
        found = kept.why_never(state)
        assert found == why_never(state, list(nodes.values()), {})
        return found is not None

    large, small = gpu_node("n1", 8), gpu_node("n2", 1)
    steps = [
        answers(small.id, small),
        answers(large.id, large),
        answers(large.id, replace(large, cordoned=True)),
        answers(large.id, None),
        answers(small.id, replace(small, status=NodeStatus.UNREACHABLE)),
        answers(small.id, small),
    ]
    assert steps == [True, False, False, True, False, True]
