"""Replicas behind a gateway need nodes on which gateways can reach them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.lifecycle.model import Group, JobSpec, Node, RunPolicy, RunState, RunType
from controller.lifecycle.runs.first_state import new_run
from controller.scheduling.feasibility import why_never
from controller.scheduling.fitting.capacity import Needs
from controller.scheduling.queue import member_of
from fairlead.model.service import ReplicaGroup, Serves, ServicePolicy
from fairlead.model.spec import PlannedGroup
from tests.unit.scheduling.cluster import gpu_node
from tests.unit.scheduling.parts import new_id


def a_service(gateway: str | None) -> RunState:
    spec = JobSpec(image="i", serves=Serves(port=80))
    return new_run(
        name="web",
        user="ada",
        groups=[PlannedGroup(group=Group(name="main"), spec=spec)],
        now=1.0,
        new_id=new_id,
        type=RunType.SERVICE,
        policy=RunPolicy(),
        service=ServicePolicy(port=80, groups=(ReplicaGroup(name="main"),), gateway=gateway),
    )


def lending(name: str) -> Node:
    """Its shim exposes ports to gateways."""
    node = gpu_node(name)
    return replace(node, capacity=replace(node.capacity, gateways=True))


@pytest.mark.parametrize(("gateway", "needed"), [("main", True), (None, False)])
def test_only_a_replica_behind_a_gateway_needs_such_a_node(
    gateway: str | None, needed: bool
) -> None:
    state = a_service(gateway)
    assert member_of(state, state.jobs[0], Needs()).need.resources.gateway is needed


def test_a_service_is_refused_when_no_node_can_ever_be_reached_by_its_gateway() -> None:
    state = a_service("main")
    assert why_never(state, [gpu_node("n1"), lending("n2")], {}) is None
    found = why_never(state, [gpu_node("n1")], {})
    assert found is not None
    field, sentence = found
    assert field == "resources"
    assert "a shim that exposes nothing to gateways" in sentence
