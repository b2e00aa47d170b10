"""The search for a way to place jobs of several kinds finds one exactly if there is one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.lifecycle.model import Constraint, GpuNeed, JobSpec, Node, Operator, Resources
from controller.lifecycle.runs.first_state import new_run
from controller.scheduling.fitting.capacity import Need
from controller.scheduling.fitting.constraints import Domain
from controller.scheduling.fitting.fit import Room, less, shortfalls
from controller.scheduling.packing import (
    MAX_EFFORT,
    Outcome,
    Spot,
    by_need,
    how_many_fit,
    most_together,
    pack,
)
from controller.scheduling.queue import Kind
from controller.scheduling.trial_capacity import TrialCapacity
from fairlead.model.spec import PlannedGroup
from tests.support.indexes import index_of
from tests.unit.scheduling.parts import gang, gpu, new_id, node

EVERYWHERE = Domain(("default", None))
NAMES = ("a", "b", "c")


def a_node(name: str, cpu: int, old: int, new: int) -> Node:
    """With so many GPUs of two kinds."""
    gpus = [gpu(f"{name}-o{n}") for n in range(old)]
    gpus += [gpu(f"{name}-n{n}", name="H100") for n in range(new)]
    return node(name, capacity={"cpu": float(cpu), "memory": 1 << 40, "gpus": tuple(gpus)})


_nodes = st.tuples(st.integers(1, 4), st.integers(0, 2), st.integers(0, 2))
_needs = st.builds(
    Resources,
    cpu=st.sampled_from([1.0, 2.0]),
    gpu=st.builds(
        GpuNeed, count=st.integers(0, 2), names=st.sampled_from([(), (), ("H100",), ("A100",)])
    ),
    whole_node=st.booleans(),
)
_groups = st.tuples(_needs, st.integers(1, 2), st.sets(st.sampled_from(NAMES), min_size=1))


def waiting(
    nodes: Sequence[Node], groups: Sequence[tuple[Resources, int, set[str]]]
) -> tuple[TrialCapacity, dict[Need, int]]:
    planned = [
        PlannedGroup(
            group=gang(count, name=f"g{at}"),
            spec=JobSpec(
                image="i",
                resources=resources,
                constraints=(
                    Constraint(
                        attribute="node", operator=Operator.IN, values=tuple(sorted(allowed))
                    ),
                ),
            ),
        )
        for at, (resources, count, allowed) in enumerate(groups)
    ]
    state = new_run(name="a", user="ada", groups=planned, now=0.0, new_id=new_id)
    index = index_of([state], nodes)
    (unit,) = index.units[state.run.id]
    assert unit.kind is Kind.TOGETHER
    return TrialCapacity(index), by_need(unit.members)


def fits(rooms: dict[str, Room], needs: list[tuple[Resources, set[str]]]) -> bool:
    """Whether all have room, by trying every node and every choice of GPUs."""
    if not needs:
        return True
    need, allowed = needs[0]
    for name in allowed & set(rooms):
        free = rooms[name]
        if shortfalls(need, free):
            continue
        for chosen in combinations(free.gpus, 0 if need.whole_node else need.gpu.count):
            if need.gpu.names and any(one.name not in need.gpu.names for one in chosen):
                continue
            after = less(free, need, [one.uuid for one in chosen])
            if fits(rooms | {name: after}, needs[1:]):
                return True
    return False


@settings(max_examples=300, deadline=None)
@given(nodes=st.lists(_nodes, min_size=1, max_size=3), groups=st.lists(_groups, max_size=3))
def test_a_way_is_found_exactly_if_there_is_one(
    nodes: list[tuple[int, int, int]], groups: list[tuple[Resources, int, set[str]]]
) -> None:
    if not groups:
        return
    made = [a_node(name, *about) for name, about in zip(NAMES, nodes, strict=False)]
    trial, counted = waiting(made, groups)
    before = dict(trial.rooms)
    packed = pack(trial, counted, EVERYWHERE)
    each = [(need, allowed) for need, count, allowed in groups for _ in range(count)]
    assert packed.outcome is (Outcome.FITS if fits(before, each) else Outcome.NEVER)
    assert trial.rooms == before
    if packed.outcome is Outcome.FITS:
        assert by_spot(packed.spots) == counted
    together = most_together(trial, counted, EVERYWHERE)
    assert together.is_most
    sizes = range(len(each) + 1)
    assert together.count == max(
        size for size in sizes if any(fits(before, list(some)) for some in combinations(each, size))
    )


def by_spot(spots: Sequence[Spot]) -> Counter[Need]:
    return Counter(spot.need for spot in spots)


def ring(kinds: int, each: int) -> tuple[TrialCapacity, dict[Need, int]]:
    """Kind k may use the nodes of the sets k and k + 1; each set is as large as the kind."""
    names = [f"s{k}-{n}" for k in range(kinds) for n in range(each)]
    nodes = [a_node(name, 4, 0, 0) for name in names]
    groups = [
        (
            Resources(whole_node=True),
            each,
            {name for name in names if name.split("-")[0] in (f"s{k}", f"s{(k + 1) % kinds}")},
        )
        for k in range(kinds)
    ]
    return waiting(nodes, groups)


def test_jobs_that_hold_whole_nodes_need_no_second_try_however_many_they_are() -> None:
    trial, counted = ring(kinds=4, each=40)
    packed = pack(trial, counted, EVERYWHERE)
    assert packed.outcome is Outcome.FITS
    assert len({spot.node_id for spot in packed.spots}) == 160
    assert packed.effort < MAX_EFFORT // 4


def test_that_they_do_not_fit_is_known_at_once() -> None:
    trial, counted = ring(kinds=4, each=40)
    first = next(iter(counted))
    packed = pack(trial, counted | {first: 41}, EVERYWHERE)
    assert packed.outcome is Outcome.NEVER
    assert packed.effort < 100


def test_a_search_ends_at_its_bound_and_says_so() -> None:
    """Fifteen jobs of three sizes on nodes that have a little too little for them."""
    nodes = [a_node(f"n{at}", cpu, 0, 0) for at, cpu in enumerate((31, 37, 41, 43, 29))]
    every = {one.name for one in nodes}
    groups = [(Resources(cpu=size), 5, every) for size in (17.0, 11.0, 8.5)]
    trial, counted = waiting(nodes, groups)
    packed = pack(trial, counted, EVERYWHERE, max_effort=200)
    assert packed.outcome is Outcome.UNKNOWN
    assert all(how_many_fit(trial, need, EVERYWHERE, count) for need, count in counted.items())
