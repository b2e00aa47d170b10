"""`startup_order` of jobs that are no gang: none holds a place while it waits for the others."""

from __future__ import annotations

from controller.lifecycle.model import Group, RunPolicy, StartupOrder
from tests.unit.scheduling.cluster import Cluster, gpu_node


def test_workers_take_no_place_before_their_master_runs() -> None:
    cluster = Cluster(gpu_node("a", 1))
    policy = RunPolicy(startup_order=StartupOrder.MASTER_FIRST)
    run = cluster.submit("r", Group(name="main", nodes=2), policy=policy)
    cluster.settle()
    assert cluster.places(run) == {"main/0": "a"}
    cluster.start_all()
    cluster.settle()
    assert cluster.places(run) == {"main/0": "a", "main/1": "a"}


def test_a_master_takes_no_place_that_a_worker_before_it_needs() -> None:
    cluster = Cluster(gpu_node("a", 1))
    policy = RunPolicy(startup_order=StartupOrder.WORKERS_FIRST)
    run = cluster.submit("r", Group(name="main", nodes=2), policy=policy, gpus=1)
    cluster.settle()
    assert cluster.places(run) == {"main/1": "a"}
