"""What a job needs of its node's engine decides where it goes (docs/rules.md 6.2)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from controller.lifecycle.inventory import NodeAllows
from controller.lifecycle.model import Band, Node, NodeStatus, Resources
from controller.scheduling.feasibility import why_never
from fairlead.model.needs import Permissions
from fairlead.model.reasons import Reason
from fairlead.wire.engine_abilities import EngineAbility
from tests.unit.scheduling.cluster import Cluster, gpu_node
from tests.unit.scheduling.parts import gang

IMAGES, VOLUMES = EngineAbility.IMAGES, EngineAbility.VOLUMES
OPTIONS, SIGNAL = EngineAbility.OPTIONS, EngineAbility.SIGNAL
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


def test_a_job_with_a_signal_goes_to_no_node_whose_agents_are_too_old() -> None:
    made = gpu_node("n1")
    older = replace(made, capacity=replace(made.capacity, engine_lacks=(SIGNAL,)))
    cluster = Cluster(older)
    run = cluster.submit("a", own=asking(SIGNAL))
    assert why_never(cluster.states[run], [older], {}) == (
        "signal",
        "no node could ever hold it: needs an agent that sends its `signal`; best node n1 has an "
        "older one (`fairlead node upgrade` renews it)",
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


def ruled(name: str, count: int = 1, **allows: Any) -> Node:
    """A node whose operator allows only this."""
    made = gpu_node(name, count)
    rules = {"privileged": False, "raw_sockets": False, "volume_prefixes": (), **allows}
    return replace(made, capacity=replace(made.capacity, allows=NodeAllows(**rules)))


@pytest.mark.parametrize(
    ("needs", "allows", "field", "why"),
    [
        (
            Permissions(privileged=True),
            {"privileged": True},
            "privileged",
            "`privileged` or a capability of the host; best node n1 has an operator who does not "
            "allow it (the shim's --allow-privileged would)",
        ),
        (
            Permissions(host_paths=("/data/sets",)),
            {"volume_prefixes": ("/scratch", "/data")},
            "volumes",
            "/data/sets as a volume; best node n1 has an operator who does not allow it (the "
            "shim's --volume-prefix /data/sets would)",
        ),
        (
            Permissions(devices=("/dev/fuse",)),
            {"volume_prefixes": ("/dev",)},
            "volumes",
            "/dev/fuse as a volume; best node n1 has an operator who does not allow it (the "
            "shim's --volume-prefix /dev would)",
        ),
    ],
)
def test_a_job_goes_where_the_operator_allows_what_it_needs(
    needs: Permissions, allows: dict[str, Any], field: str, why: str
) -> None:
    cluster = Cluster(ruled("n1"), ruled("n2", 2, **allows))
    runs = [cluster.submit(f"a{n}", own=asking(permissions=needs)) for n in range(2)]
    other = cluster.submit("other")
    cluster.settle()
    assert [cluster.places(run) for run in runs] == [{"main/0": "n2"}] * 2
    assert cluster.places(other) == {"main/0": "n1"}
    empty = Cluster()
    asked = empty.submit("a", own=asking(permissions=needs))
    state = empty.states[asked]
    assert why_never(state, [ruled("n1")], {}) == (
        field,
        f"no node could ever hold it: needs {why}",
    )
    assert why_never(state, [ruled("n1"), gpu_node("old")], {}) is None


def test_raw_sockets_need_a_permission_in_the_nodes_own_network_alone() -> None:
    needs = Permissions(raw_sockets=True)
    cluster = Cluster(ruled("n1"), ruled("n2", raw_sockets=True))
    alone = cluster.submit("alone", own=asking(permissions=needs, whole_node=True))
    cluster.settle()
    assert cluster.places(alone) == {"main/0": "n2"}
    beside = cluster.submit("beside", own=asking(permissions=needs))
    cluster.settle()
    assert cluster.places(beside) == {"main/0": "n1"}
