"""docs/rules.md 6: the nine operators, and what they are asked about."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from controller.lifecycle.model import Constraint, Fleet, NodeStatus, Operator
from controller.lifecycle.pending_reasons import constraint_words
from controller.lifecycle.reports import NotPlaced, Placed
from controller.scheduling.fitting.constraints import attributes_of, holds
from fairlead.model.needs import RentLimits, SpotPolicy
from tests.unit.scheduling.cluster import Cluster, gpu_node, in_rack
from tests.unit.scheduling.parts import node

HAS = {"zone": "a", "speed": "100", "version": "1.10", "empty": ""}


@pytest.mark.parametrize(
    ("attribute", "operator", "values", "expected"),
    [
        ("zone", Operator.EQ, ("a",), True),
        ("zone", Operator.EQ, ("b",), False),
        ("speed", Operator.EQ, ("100.0",), True),
        ("none", Operator.EQ, ("",), False),
        ("zone", Operator.NE, ("b",), True),
        ("zone", Operator.NE, ("a",), False),
        ("none", Operator.NE, ("a",), True),
        ("empty", Operator.EXISTS, (), True),
        ("none", Operator.EXISTS, (), False),
        ("none", Operator.NOT_EXISTS, (), True),
        ("zone", Operator.NOT_EXISTS, (), False),
        ("speed", Operator.GT, ("20",), True),
        ("speed", Operator.GT, ("100",), False),
        ("zone", Operator.GT, ("Z",), True),
        ("speed", Operator.GT, ("fast",), False),
        ("speed", Operator.GE, ("100",), True),
        ("speed", Operator.GE, ("101",), False),
        ("speed", Operator.LT, ("1e3",), True),
        ("speed", Operator.LT, ("100",), False),
        ("speed", Operator.LE, ("100",), True),
        ("speed", Operator.LE, ("99",), False),
        ("none", Operator.LE, ("99",), False),
        ("zone", Operator.IN, ("b", "a"), True),
        ("zone", Operator.IN, ("b", "c"), False),
        ("speed", Operator.IN, ("1e2",), True),
        ("none", Operator.IN, ("a",), False),
    ],
)
def test_each_operator_compares_as_it_is_named(
    attribute: str, operator: Operator, values: tuple[str, ...], expected: bool
) -> None:
    assert holds(Constraint(attribute=attribute, operator=operator, values=values), HAS) is expected


def test_a_nodes_own_attribute_wins_over_its_fleets_and_that_over_what_is_built_in() -> None:
    fleet = Fleet(name="default", attributes={"zone": "f", "rack": "f", "cpu": "f"}, created_at=0.0)
    found = attributes_of(gpu_node("n1", attributes={"rack": "n"}), fleet)
    assert (found["zone"], found["rack"], found["cpu"]) == ("f", "n", "f")
    assert (found["node"], found["gpu.name"], found["gpu.count"]) == ("n1", "A100", "8")


def wants(operator: Operator, *values: str, required: bool = True) -> tuple[Constraint, ...]:
    return (Constraint(attribute="zone", operator=operator, values=values, required=required),)


def test_a_required_constraint_excludes_nodes() -> None:
    nodes = [gpu_node("n1", attributes={"zone": "a"}), gpu_node("n2", attributes={"zone": "b"})]
    cluster = Cluster(*nodes)
    run = cluster.submit("a", constraints=wants(Operator.EQ, "b"))
    other = cluster.submit("b", constraints=wants(Operator.EQ, "c"))
    cluster.settle()
    assert cluster.places(run) == {"main/0": "n2"}
    assert cluster.waits(other) == "needs zone = c; node n1 has a, and none is better"


def test_the_node_that_the_fewest_constraints_refuse_is_named() -> None:
    nodes = [gpu_node("n1", attributes={"zone": "a"}), gpu_node("n2", attributes={"zone": "b"})]
    cluster = Cluster(*nodes)
    named = Constraint(attribute="node", operator=Operator.EQ, values=("n2",))
    run = cluster.submit("a", constraints=(named, *wants(Operator.EQ, "c")))
    cluster.settle()
    assert cluster.waits(run) == "needs zone = c; node n2 has b, and none is better"


def test_a_preferred_constraint_only_ranks_nodes() -> None:
    nodes = [gpu_node("n1", attributes={"zone": "a"}), gpu_node("n2", attributes={"zone": "b"})]
    cluster = Cluster(*nodes)
    runs = [
        cluster.submit(f"r{n}", constraints=wants(Operator.EQ, "b", required=False), gpus=8)
        for n in range(2)
    ]
    cluster.settle()
    assert [cluster.places(run)["main/0"] for run in runs] == ["n2", "n1"]


@pytest.mark.parametrize(
    ("operator", "values", "meets"),
    [
        (Operator.EQ, ("H100",), True),
        (Operator.EQ, ("h100 80gb",), True),
        (Operator.EQ, ("NVIDIA H100 80GB HBM3",), True),
        (Operator.EQ, ("H10",), False),
        (Operator.IN, ("A100", "H100"), True),
        (Operator.NE, ("H100",), False),
        (Operator.NE, ("A100",), True),
    ],
)
def test_a_gpu_is_called_by_words_of_its_name(
    operator: Operator, values: tuple[str, ...], meets: bool
) -> None:
    asked = Constraint(attribute="gpu.name", operator=operator, values=values)
    assert holds(asked, {"gpu.name": "NVIDIA H100 80GB HBM3"}) is meets


def test_a_job_goes_only_to_the_fleets_that_it_names() -> None:
    nodes = (gpu_node("n1", fleet="x"), gpu_node("n2", fleet="y"))
    cluster = Cluster(*nodes, fleets=(Fleet(name="z", created_at=0.0),))
    run = cluster.submit("a", fleets=("y",))
    other = cluster.submit("b", fleets=("z",))
    cluster.settle()
    assert cluster.places(run) == {"main/0": "n2"}
    assert cluster.waits(other) == "no node is in fleet z"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"status": NodeStatus.LOST, "message": "silent"}, "lost"),
        ({"draining": True}, "draining"),
        ({"cordoned": True}, "cordoned"),
        ({"unfit": "disk full"}, "unfit"),
    ],
)
def test_a_job_that_waits_for_a_node_without_work_is_told_the_nodes_name(
    change: dict[str, Any], word: str
) -> None:
    rack = Constraint(attribute="rack", operator=Operator.EQ, values=("r1",))
    cluster = Cluster(in_rack("n1", "r1", 8, **change), in_rack("n2", "r2", 2))
    bound = cluster.submit("a", constraints=(rack,))
    large = cluster.submit("b", gpus=4)
    small = cluster.submit("c", gpus=2)
    crowded = cluster.submit("d", gpus=1)
    cluster.settle()
    tail = f"node n1 could hold it, but is {word}"
    assert cluster.waits(bound) == f"needs rack = r1; {tail}"
    assert cluster.waits(large) == (f"needs 4 GPU; best node n2 has 0 such GPU free of 2; {tail}")
    assert cluster.places(small) == {"main/0": "n2"}
    assert cluster.waits(crowded) == "needs 1 GPU; best node n2 has 0 such GPU free of 2"


def test_an_attempt_keeps_the_name_of_its_node() -> None:
    cluster = Cluster(replace(gpu_node("n1"), name="gpu-one"))
    run = cluster.submit("a")
    cluster.settle()
    state = cluster.states[run]
    named = [state.jobs[0].attempts[0].node_name, state.allocations[0].node_name]
    assert named == ["gpu-one", "gpu-one"]


def test_a_job_whose_fleet_was_removed_is_told_that_there_is_none() -> None:
    cluster = Cluster(gpu_node("n1", fleet="x"))
    run = cluster.submit("a", fleets=("z",))
    cluster.settle()
    assert cluster.waits(run) == "there is no fleet z"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"cordoned": True}, "no connected node takes work; n1 is cordoned"),
        ({"unfit": "disk full"}, "no connected node takes work; n1 is unfit: disk full"),
        ({"draining": True}, "every connected node is draining"),
    ],
)
def test_nothing_is_placed_on_a_node_that_takes_no_work(
    change: dict[str, Any], sentence: str
) -> None:
    cluster = Cluster(gpu_node("n1", **change))
    run = cluster.submit("a")
    cluster.settle()
    assert (cluster.places(run), cluster.waits(run)) == ({}, sentence)


def test_the_closed_node_that_could_hold_the_job_is_named() -> None:
    cluster = Cluster(gpu_node("n1", unfit="disk full"), gpu_node("n2", cordoned=True))
    only = Constraint(attribute="node", operator=Operator.EQ, values=("n2",))
    run = cluster.submit("a", constraints=(only,))
    cluster.settle()
    assert cluster.waits(run) == "no connected node takes work; n2 is cordoned"


def test_a_constraint_reads_as_a_person_says_it() -> None:
    one_of = Constraint(attribute="a", operator=Operator.IN, values=("1", "2"))
    assert constraint_words(one_of) == "a in 1 or 2"
    assert constraint_words(Constraint(attribute="a", operator=Operator.NOT_EXISTS)) == "no a"


RENTED = {"spot": "true", "price": "1.5", "region": "north", "instance-type": "small"}


@pytest.mark.parametrize(
    ("limits", "attributes", "fits"),
    [
        ({"spot_policy": SpotPolicy.ON_DEMAND}, RENTED, False),
        ({"spot_policy": SpotPolicy.SPOT}, RENTED, True),
        ({"max_price": 1.5}, RENTED, True),
        ({"max_price": 1.4}, RENTED, False),
        ({"reservation": "ours"}, RENTED, False),
        ({"regions": ("south", "north")}, RENTED, True),
        ({"regions": ("south",)}, RENTED, False),
        ({"regions": ("south",)}, {}, True),
        ({"regions": ("south",)}, {"region": "north"}, False),
        ({"instance_types": ("large",)}, {}, True),
        ({"spot_policy": SpotPolicy.SPOT, "max_price": 0.1, "reservation": "ours"}, {}, True),
    ],
    ids=str,
)
def test_a_runs_limits_on_machines_hold_for_rented_nodes_and_named_attributes(
    limits: dict[str, Any], attributes: dict[str, str], fits: bool
) -> None:
    cluster = Cluster()
    cluster.set_node(node("n1", attributes=attributes))
    cluster.submit("a", own={"main": {"rent": RentLimits(**limits)}})
    (reports,) = cluster.turn().values()
    assert [type(one) for one in reports] == [Placed if fits else NotPlaced]


def test_a_limit_on_machines_is_named_by_its_field() -> None:
    cluster = Cluster()
    cluster.set_node(node("n1", attributes=RENTED))
    rent = RentLimits(spot_policy=SpotPolicy.ON_DEMAND)
    cluster.submit("a", own={"main": {"rent": rent}})
    ((report,),) = cluster.turn().values()
    assert isinstance(report, NotPlaced)
    assert report.pending_reason.sentence() == (
        "needs spot = false (its spot_policy); node n1 has true, and none is better"
    )
