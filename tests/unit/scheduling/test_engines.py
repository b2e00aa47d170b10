"""What a job needs of its node's engine decides where it goes (docs/rules.md 6.2)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from common.engine_abilities import EngineAbility
from controller.lifecycle.model import Band, Node, NodeStatus, Resources
from controller.lifecycle.reasons import Reason
from controller.scheduling.feasibility import why_never
from tests.unit.scheduling.cluster import Cluster, gpu_node
from tests.unit.scheduling.parts import gang

IMAGES, VOLUMES, OPTIONS = EngineAbility
EVERYTHING = tuple(EngineAbility)


def plain(name: str, **more: Any) -> Node:
    """A node of the process engine."""
    made = gpu_node(name, **more)
    return replace(made, capacity=replace(made.capacity, engine="process", engine_lacks=EVERYTHING))


def asking(*needs: EngineAbility, **more: Any) -> dict[str, dict[str, Any]]:
    return {"main": {"resources": Resources(engine=needs, **more)}}


@pytest.mark.parametrize("need", EVERYTHING)
def test_a_job_goes_to_a_node_whose_engine_can_do_what_it_asks_for(need: EngineAbility) -> None:
    """The free node without it is the smaller one, so it would be the best."""
    cluster = Cluster(plain("n1", count=1), gpu_node("n2"))
    runs = [cluster.submit(f"a{n}", own=asking(need)) for n in range(3)]
    other = cluster.submit("other")
    cluster.settle()
    assert [cluster.places(run) for run in runs] == [{"main/0": "n2"}] * 3
    assert cluster.places(other) == {"main/0": "n1"}


def test_a_job_with_infiniband_goes_to_a_node_that_has_it_or_is_refused() -> None:
    without = gpu_node("n1", 1)
    without = replace(without, capacity=replace(without.capacity, infiniband=False))
    cluster = Cluster(without, gpu_node("n2"))
    run = cluster.submit("a", own=asking(infiniband=True))
    other = cluster.submit("other")
    cluster.settle()
    assert (cluster.places(run), cluster.places(other)) == ({"main/0": "n2"}, {"main/0": "n1"})
    empty = Cluster()
    asked = empty.submit("a", own=asking(infiniband=True))
    assert why_never(empty.states[asked], [without], {}) == (
        "resources",
        "no node could ever hold it: needs InfiniBand; best node n1 has no /dev/infiniband",
    )


def test_a_job_that_only_such_a_node_is_free_for_waits_and_is_told_why() -> None:
    cluster = Cluster(plain("n1"), gpu_node("n2", 1))
    cluster.submit("other", whole_node=True)
    cluster.settle()
    run = cluster.submit("a", own=asking(VOLUMES))
    cluster.settle()
    assert cluster.places(run) == {}
    assert cluster.waits(run) == (
        "needs 1 CPU, 1 GiB memory; best node n2 has 0 free of 64, 0 B free of 1 TiB"
    )
    (waiting,) = cluster.pipeline.explain(run, cluster.now, lambda one: one.name)
    assert {answer.node: answer.why for answer in waiting.nodes}["n1"] == (
        "needs an engine with volumes, it has the process engine, which has none "
        "(only a job without `volumes` runs there)",
    )


def test_a_job_that_no_engine_of_the_fleet_could_run_is_refused_with_its_field() -> None:
    cluster = Cluster()
    state = cluster.states[cluster.submit("a", own=asking(IMAGES, VOLUMES))]
    assert why_never(state, [plain("n1"), plain("n2")], {}) == (
        "image",
        "no node could ever hold it: needs an engine with images and volumes; best node n1 has the "
        "process engine, which has none (only a job without `image` and `volumes` runs there)",
    )
    silent = replace(gpu_node("n3"), status=NodeStatus.UNREACHABLE)
    assert why_never(state, [plain("n1"), silent], {}) is None


def test_what_else_is_lacking_is_named_in_the_same_sentence() -> None:
    cluster = Cluster()
    state = cluster.states[cluster.submit("a", own=asking(OPTIONS, cpu=100.0))]
    found = why_never(state, [plain("n1")], {})
    assert found is not None
    field, sentence = found
    assert field == "resources"
    assert "needs 100 CPU, an engine with container options; " in sentence


def test_a_gang_goes_where_all_its_jobs_can_run() -> None:
    cluster = Cluster(plain("n1"), gpu_node("n2"), plain("n3"), gpu_node("n4"))
    run = cluster.submit("a", gang(2), own=asking(IMAGES, whole_node=True))
    cluster.settle()
    assert set(cluster.places(run).values()) == {"n2", "n4"}


def test_no_job_is_evicted_from_a_node_whose_engine_would_not_do() -> None:
    cluster = Cluster(plain("n1"))
    weak = cluster.submit("weak", gpus=8, band=Band.BATCH)
    cluster.settle()
    cluster.start_all()
    cluster.set_node(gpu_node("n2", 4))
    needs = asking(IMAGES, gpu=replace(Resources().gpu, count=4))
    first, second = (cluster.submit(name, own=needs) for name in ("first", "second"))
    cluster.settle()
    assert cluster.places(first) == {"main/0": "n2"}
    assert cluster.places(second) == {}
    assert cluster.attempt(weak).reason is not Reason.PREEMPTED


def test_a_node_that_gets_another_engine_is_taken_at_once() -> None:
    cluster = Cluster(plain("n1"))
    run = cluster.submit("a", own=asking(IMAGES))
    cluster.settle()
    assert cluster.places(run) == {}
    cluster.set_node(gpu_node("n1"))
    cluster.settle()
    assert cluster.places(run) == {"main/0": "n1"}
