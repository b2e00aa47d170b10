"""One job at a time holds a declared port of a node whose jobs share its network (rules 6.2)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from controller.lifecycle.model import Band, Group
from controller.lifecycle.reports import ControllerStarted, StopRequested
from controller.scheduling.feasibility import why_never
from fairlead.model.service import Serves
from tests.unit.scheduling.cluster import Cluster, gpu_node
from tests.unit.scheduling.parts import gang
from tests.unit.scheduling.test_engines import plain


def serving(port: int = 8000, group: str = "main") -> dict[str, dict[str, Any]]:
    return {group: {"serves": Serves(port=port)}}


def test_a_second_job_with_the_port_goes_to_another_node() -> None:
    cluster = Cluster(plain("n1", count=1), plain("n2"))
    first, second = (cluster.submit(name, own=serving()) for name in ("a", "b"))
    cluster.settle()
    assert (cluster.places(first), cluster.places(second)) == ({"main/0": "n1"}, {"main/0": "n2"})


def test_without_another_node_it_waits_until_the_port_is_free_and_is_told_why() -> None:
    cluster = Cluster(plain("n1"))
    first, second = (cluster.submit(name, own=serving()) for name in ("a", "b"))
    other, plain_job = cluster.submit("c", own=serving(8001)), cluster.submit("d")
    cluster.settle()
    assert cluster.places(other) == cluster.places(plain_job) == {"main/0": "n1"}
    assert cluster.places(second) == {}
    assert cluster.waits(second) == (
        "needs port 8000; best node n1 has another job that holds it, and no network for each job "
        "(another `port`, or a node with Docker, would do)"
    )
    assert why_never(cluster.states[second], [cluster.node("n1")], {}) is None
    cluster.start_all()
    cluster.tell(first, StopRequested(run_id=first, abort=False, by="ada"))
    cluster.settle()
    assert cluster.places(second) == {}
    cluster.leave(first)
    cluster.settle()
    assert cluster.places(second) == {"main/0": "n1"}


@pytest.mark.parametrize("first_in", ["one turn", "two turns"])
def test_containers_have_ports_of_their_own(first_in: str) -> None:
    cluster = Cluster(gpu_node("n1"))
    first = cluster.submit("a", own=serving())
    if first_in == "two turns":
        cluster.settle()
    second = cluster.submit("b", own=serving())
    cluster.settle()
    assert cluster.places(first) == cluster.places(second) == {"main/0": "n1"}


def test_jobs_that_are_placed_together_share_no_port_either() -> None:
    """The kinds differ, so the exact search places them too."""
    groups = gang(1, name="g"), gang(1, name="h")
    own = serving(group="g") | serving(group="h")
    one = Cluster(plain("n1"))
    run = one.submit("a", *groups, own=own)
    one.settle()
    assert one.places(run) == {}
    two = Cluster(plain("n1"), plain("n2"))
    run = two.submit("a", *groups, own=own)
    two.settle()
    assert sorted(two.places(run).values()) == ["n1", "n2"]


def test_a_higher_band_evicts_only_the_job_that_holds_the_port() -> None:
    cluster = Cluster(plain("n1"))
    holder = cluster.submit("a", own=serving(), band=Band.BATCH)
    other = cluster.submit("b", Group(name="main"), band=Band.BATCH)
    cluster.settle()
    cluster.start_all()
    above = cluster.submit("c", own=serving(), band=Band.PRODUCTION)
    cluster.settle()
    cluster.leave(holder)
    cluster.leave(other)
    cluster.settle()
    assert cluster.places(above) == {"main/0": "n1"}
    assert cluster.places(other) == {"main/0": "n1"}


def test_an_allocation_of_an_earlier_version_holds_its_port_after_the_upgrade() -> None:
    cluster = Cluster(plain("n1"))
    first = cluster.submit("a", own=serving())
    cluster.settle()
    cluster.start_all()
    state = cluster.states[first]
    (held,) = state.allocations
    before = replace(held, resources=replace(held.resources, port=None))
    cluster.states[first] = replace(state, allocations=(before,))
    cluster.tell(first, ControllerStarted(run_id=first))
    second = cluster.submit("b", own=serving())
    cluster.settle()
    assert cluster.places(second) == {}
    waits = cluster.waits(second)
    assert waits is not None
    assert waits.startswith("needs port 8000")
