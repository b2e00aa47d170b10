"""A node has room for so many networks of runs."""

from __future__ import annotations

from msgspec.structs import replace

from controller.lifecycle.model import Group, Node
from controller.lifecycle.reports import StopRequested
from controller.scheduling.feasibility import why_never
from fairlead.model.spec import Band
from tests.unit.scheduling.cluster import Cluster
from tests.unit.scheduling.parts import gang, node, told
from tests.unit.scheduling.parts import run as one_job


def limited(name: str, networks: int | None) -> Node:
    return node(name, capacity={"cpu": 8.0, "networks": networks, "host_network": True})


def test_a_run_more_than_the_node_has_networks_waits_and_is_told_why() -> None:
    cluster = Cluster(limited("n1", 2))
    runs = [cluster.submit(name, cpu=0.5) for name in "abc"]
    cluster.settle()
    assert [bool(cluster.places(run_id)) for run_id in runs] == [True, True, False]
    assert cluster.waits(runs[2]) == "needs a network for its run; best node n1 has 0 free of 2"


def test_it_is_placed_once_a_network_is_free() -> None:
    cluster = Cluster(limited("n1", 1))
    first, second = (cluster.submit(name, cpu=0.5) for name in "ab")
    cluster.settle()
    cluster.tell(first, StopRequested(run_id=first, abort=True, by="ada"))
    cluster.leave(first)
    cluster.settle()
    assert set(cluster.places(second).values()) == {"n1"}


def test_it_goes_to_a_node_that_has_one_left() -> None:
    cluster = Cluster(limited("n1", 1), limited("n2", 1))
    runs = [cluster.submit(name, cpu=0.5) for name in "ab"]
    cluster.settle()
    assert sorted(set(cluster.places(run).values()).pop() for run in runs) == ["n1", "n2"]


def test_the_jobs_of_a_run_share_its_network() -> None:
    cluster = Cluster(limited("n1", 1))
    together = cluster.submit("a", gang(3), cpu=0.5)
    cluster.settle()
    assert list(cluster.places(together).values()) == ["n1"] * 3


def test_independent_jobs_of_a_run_share_it_too_also_when_they_come_later() -> None:
    cluster = Cluster(limited("n1", 1))
    run_id = cluster.submit("a", Group(name="main", nodes=12), cpu=0.5)
    cluster.settle()
    assert list(cluster.places(run_id).values()) == ["n1"] * len(cluster.places(run_id))
    assert len(cluster.places(run_id)) > 1


def test_a_gang_that_takes_the_last_network_leaves_none_to_the_next_run() -> None:
    cluster = Cluster(limited("n1", 1))
    first = cluster.submit("a", gang(2), cpu=0.5)
    second = cluster.submit("b", gang(2), cpu=0.5)
    cluster.settle()
    assert (len(cluster.places(first)), cluster.places(second)) == (2, {})
    assert "needs a network for its run" in str(cluster.waits(second))


def test_a_job_in_the_nodes_network_needs_none() -> None:
    cluster = Cluster(limited("n1", 0))
    run_id = cluster.submit("a", whole_node=True)
    cluster.settle()
    assert set(cluster.places(run_id).values()) == {"n1"}


def test_a_node_that_is_not_counted_has_no_limit() -> None:
    cluster = Cluster(limited("n1", None))
    runs = [cluster.submit(f"run-{number}", cpu=0.5) for number in range(8)]
    cluster.settle()
    assert all(cluster.places(run_id) for run_id in runs)


def test_a_node_without_any_address_for_a_network_is_said_to_have_none() -> None:
    words = (
        "needs a network for its run; best node n1 has no addresses for one (--job-networks of "
        "its shim names others)"
    )
    assert told([one_job()], [limited("n1", 0)]) == words
    assert why_never(one_job(), [limited("n1", 0)], {}) == (
        "resources",
        f"no node could ever hold it: {words}",
    )


def test_a_node_that_gets_more_networks_is_used_at_once() -> None:
    cluster = Cluster(limited("n1", 0))
    run_id = cluster.submit("a", cpu=0.5)
    cluster.settle()
    assert cluster.places(run_id) == {}
    known = limited("n1", 0)
    cluster.set_node(replace(known, capacity=replace(known.capacity, networks=1)))
    cluster.settle()
    assert set(cluster.places(run_id).values()) == {"n1"}


def test_a_run_that_is_nominated_there_has_no_network_before_its_victims_left() -> None:
    """The second job of the run would fit beside the victim that is still there."""
    cluster = Cluster(limited("n1", 1))
    victims = cluster.submit("a", Group(name="main", nodes=2), band=Band.BATCH, cpu=4.0)
    cluster.settle()
    cluster.start_all()
    waiting = cluster.submit("b", Group(name="main", nodes=2), cpu=0.5)
    cluster.settle()
    assert cluster.nominated(waiting) != []
    cluster.leave(victims, at_most=1)
    cluster.settle()
    assert cluster.places(waiting) == {}
    cluster.leave(victims)
    cluster.settle()
    assert set(cluster.places(waiting).values()) == {"n1"}


def test_a_run_whose_network_is_to_come_free_gets_no_further_job_there() -> None:
    """It would keep the network, and the victims would be evicted in vain."""
    cluster = Cluster(limited("n1", 1))
    victims = cluster.submit("a", Group(name="main", nodes=4), band=Band.BATCH, cpu=3.0)
    cluster.settle()
    cluster.start_all()
    waiting = cluster.submit("b", cpu=0.5)
    cluster.settle()
    assert (len(cluster.places(victims)), len(cluster.nominated(waiting))) == (2, 1)
    cluster.leave(victims, at_most=1)
    cluster.settle()
    assert (len(cluster.places(victims)), len(cluster.nominated(waiting))) == (1, 1)
    cluster.leave(victims)
    cluster.settle()
    assert set(cluster.places(waiting).values()) == {"n1"}
