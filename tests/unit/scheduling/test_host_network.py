"""Jobs that reach each other at their nodes' addresses need nodes that give them their network."""

from __future__ import annotations

from msgspec.structs import replace

from controller.lifecycle.model import Group, Node, RunPolicy
from controller.scheduling.feasibility import why_never
from tests.unit.scheduling.cluster import Cluster, gpu_node, in_rack, rack_fleet
from tests.unit.scheduling.parts import gang

WORDS = (
    "needs the node's network, in which its peers reach it (not needed with `share_nodes: true`); "
    "best node n1 has a shim that gives its network to no job (--host-network never)"
)


def closed(name: str) -> Node:
    """Its operator gives no job the node's network."""
    node = in_rack(name, "r1")
    return replace(node, capacity=replace(node.capacity, host_network=False))


def test_a_gang_goes_where_its_jobs_get_their_nodes_networks() -> None:
    cluster = Cluster(closed("n1"), gpu_node("n2"), closed("n3"), gpu_node("n4"))
    run_id = cluster.submit("a", gang(2), whole_node=True)
    cluster.settle()
    assert set(cluster.places(run_id).values()) == {"n2", "n4"}
    assert all(a.resources.host_network for a in cluster.states[run_id].allocations)


def test_a_gang_that_no_node_gives_its_network_is_refused_with_the_nodes_setting() -> None:
    cluster = Cluster()
    state = cluster.states[cluster.submit("a", gang(2), whole_node=True)]
    found = why_never(state, [closed("n1"), closed("n2")], {})
    assert found == ("resources", f"no node could ever hold it: {WORDS}")


def test_jobs_of_one_cluster_need_it_too() -> None:
    cluster = Cluster(closed("n1"), in_rack("n2", "r1"), fleets=(rack_fleet(),))
    together = RunPolicy(same_placement=True)
    cluster.submit("a", Group(name="main", nodes=2), policy=together, whole_node=True)
    cluster.settle()
    (state,) = cluster.states.values()
    assert cluster.waits(state.run.id) == (
        f"needs 2 whole nodes in one rack; best rack r1 has 1 ({WORDS})"
    )


def test_jobs_that_nobody_reaches_at_their_nodes_do_without_it() -> None:
    cluster = Cluster(*(closed(f"n{n}") for n in range(4)))
    shared = cluster.submit("shared", gang(2))
    alone = cluster.submit("alone", whole_node=True)
    independent = cluster.submit("each", Group(name="main", nodes=1), whole_node=True)
    cluster.settle()
    for run_id in (shared, alone, independent):
        assert cluster.places(run_id)
        assert not any(a.resources.host_network for a in cluster.states[run_id].allocations)


def test_a_node_that_opens_its_network_is_taken_at_once() -> None:
    cluster = Cluster(closed("n1"), gpu_node("n2"))
    run_id = cluster.submit("a", gang(2), whole_node=True)
    cluster.settle()
    assert cluster.places(run_id) == {}
    cluster.set_node(gpu_node("n1"))
    cluster.settle()
    assert set(cluster.places(run_id).values()) == {"n1", "n2"}
