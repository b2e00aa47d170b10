"""As few jobs are evicted as must be (docs/rules.md 6.5), compared with trying all sets."""

from __future__ import annotations

from itertools import combinations

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from controller.lifecycle.model import Band, GpuNeed, Resources
from fairlead.model.reasons import Reason
from tests.unit.scheduling.cluster import Cluster, attempts, gpu_node
from tests.unit.scheduling.parts import gang

GPUS = 8
_nodes = st.lists(st.lists(st.integers(1, 8), max_size=5), min_size=1, max_size=3)
"""By node the GPUs of the jobs there."""
_gangs = st.lists(st.integers(1, 8), min_size=1, max_size=3)
"""The GPUs of each job of the gang."""


def fits(free: list[int], needs: list[int]) -> bool:
    if not needs:
        return True
    return any(
        fits([*free[:at], here - needs[0], *free[at + 1 :]], needs[1:])
        for at, here in enumerate(free)
        if here >= needs[0]
    )


def fewest(nodes: list[list[int]], needs: list[int]) -> int | None:
    """The size of the smallest set of jobs without which the others fit; None: there is none."""
    jobs = [(at, gpus) for at, there in enumerate(nodes) for gpus in there]
    for size in range(len(jobs) + 1):
        for gone in combinations(range(len(jobs)), size):
            free = [GPUS - sum(there) for there in nodes]
            for number in gone:
                free[jobs[number][0]] += jobs[number][1]
            if fits(free, sorted(needs, reverse=True)):
                return size
    return None


@settings(max_examples=150, deadline=None)
@given(nodes=_nodes, needs=_gangs)
def test_no_job_more_is_evicted_than_must_be(nodes: list[list[int]], needs: list[int]) -> None:
    assume(all(sum(there) <= GPUS for there in nodes))
    cluster = Cluster(*(gpu_node(f"n{at}", GPUS) for at in range(len(nodes))))
    runs: list[str] = []
    for at, there in enumerate(nodes):
        for others in range(len(nodes)):
            node = cluster.node(f"n{others}")
            cluster.set_node(replace(node, cordoned=others != at))
        for gpus in there:
            runs.append(cluster.submit(f"weak{len(runs)}", gpus=gpus, band=Band.BATCH, cpu=0.5))
            cluster.settle()
    for at in range(len(nodes)):
        cluster.set_node(replace(cluster.node(f"n{at}"), cordoned=False))
    cluster.start_all()
    groups = [gang(1, name=f"g{at}") for at in range(len(needs))]
    own = {
        f"g{at}": {"resources": Resources(cpu=0.5, gpu=GpuNeed(count=gpus))}
        for at, gpus in enumerate(needs)
    }
    strong = cluster.submit("strong", *groups, own=own)
    cluster.settle()
    evicted = [run for run in runs if attempts(cluster.states[run])[0].reason is Reason.PREEMPTED]
    least = fewest(nodes, needs)
    assert len(evicted) == (least or 0)
    if least is not None:
        for run in evicted:
            cluster.leave(run)
        cluster.settle()
        assert len(cluster.places(strong)) == len(needs)
