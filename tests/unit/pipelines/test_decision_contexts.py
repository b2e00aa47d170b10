"""A run's decision knows in what state the nodes are that have its allocations."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from controller.lifecycle.model import NodeStatus, RunState
from controller.pipelines.live_state import DecisionContexts
from tests.unit.scheduling.cluster import Cluster
from tests.unit.scheduling.parts import node


def a_placed_run() -> RunState:
    cluster = Cluster(node("n1"))
    run = cluster.submit("a")
    cluster.settle()
    assert cluster.places(run) == {"main/0": "n1"}
    return cluster.states[run]


def nodes_in_context(**now: Any) -> tuple[set[str], set[str]]:
    """Return the unusable nodes, and those that may soon be usable again."""
    found = DecisionContexts({"n1": replace(node("n1"), **now)}).of(
        a_placed_run(), 0.0, frozenset()
    )
    return set(found.unusable_nodes), set(found.undecided_nodes)


@pytest.mark.parametrize(
    "now",
    [
        {"draining": True},
        {"unfit": "its engine does not answer"},
        {"status": NodeStatus.UNREACHABLE},
        {"status": NodeStatus.LOST},
    ],
)
def test_a_place_on_a_node_that_drains_or_is_not_healthy_does_not_survive(
    now: dict[str, Any],
) -> None:
    assert nodes_in_context(**now) == ({"n1"}, set())


def test_only_of_a_connected_node_it_is_known_that_its_engine_is_silent() -> None:
    def silent(status: NodeStatus) -> frozenset[str]:
        one = replace(
            node("n1"),
            status=status,
            unfit="its engine does not answer",
            capacity=replace(node("n1").capacity, engine_error="no socket"),
        )
        return DecisionContexts({"n1": one}).of(a_placed_run(), 0.0, frozenset()).silent_engines

    assert silent(NodeStatus.CONNECTED) == {"n1"}
    assert silent(NodeStatus.UNREACHABLE) == set()


def test_a_cordon_is_for_what_is_new_and_costs_nobody_a_place() -> None:
    assert nodes_in_context(cordoned=True) == (set(), set())


@pytest.mark.parametrize("cordoned", [False, True])
def test_a_node_whose_link_is_being_made_is_not_known_yet(cordoned: bool) -> None:
    assert nodes_in_context(status=NodeStatus.CONNECTING, cordoned=cordoned) == (set(), {"n1"})
