"""A job that a node could not begin goes elsewhere, if there is an elsewhere."""

from __future__ import annotations

import pytest

from controller.lifecycle.model import RetryEvent, RetryPolicy, RunPolicy
from controller.lifecycle.reports import (
    LogsComplete,
    RunnerStarted,
    TaskAccepted,
    TaskRemoved,
    TaskSeen,
)
from fairlead.model.reasons import Reason
from tests.unit.scheduling.cluster import Cluster, gpu_node
from tests.unit.scheduling.parts import gang

ALWAYS = RunPolicy(retry=RetryPolicy(on_events=frozenset(RetryEvent)))


def node_fails(
    cluster: Cluster,
    run_id: str,
    index: int = 0,
    reason: Reason = Reason.INSTANCE_UNREACHABLE,
    *,
    ran: bool = False,
) -> None:
    """The attempt ends so, is cleaned up, and the wait before the next one is over."""
    failed = cluster.attempt(run_id, index).id
    ids = {"run_id": run_id, "attempt_id": failed}
    seen = TaskSeen(
        run_id=run_id,
        attempt_id=failed,
        container_started=ran,
        terminated=True,
        runner_socket="",
        reason=reason,
    )
    began = [RunnerStarted(run_id=run_id, attempt_id=failed, at=cluster.now)] if ran else []
    cluster.tell(run_id, TaskAccepted(**ids), *began)
    cluster.tell(run_id, seen, LogsComplete(**ids))
    for attempt in [job.attempts[-1] for job in cluster.states[run_id].jobs]:
        gone = TaskRemoved(
            run_id=run_id, attempt_id=attempt.id, allocation_released=attempt.id == failed
        )
        cluster.tell(run_id, LogsComplete(run_id=run_id, attempt_id=attempt.id), gone)
    cluster.now += 60.0
    cluster.tell(run_id)
    cluster.settle()


def where(cluster: Cluster, run_id: str) -> str | None:
    return cluster.attempt(run_id).node_id


def test_each_node_that_could_not_begin_a_job_is_passed_over_until_there_is_no_other() -> None:
    cluster = Cluster(*(gpu_node(name) for name in ("n1", "n2", "n3")))
    run_id = cluster.submit("a")
    cluster.settle()
    seen = [where(cluster, run_id)]
    for _ in range(3):
        node_fails(cluster, run_id)
        seen.append(where(cluster, run_id))
    assert seen == ["n1", "n2", "n3", "n1"]


def test_a_node_that_is_passed_over_is_taken_where_the_others_have_no_room() -> None:
    cluster = Cluster(gpu_node("n1"), gpu_node("n2", 0))
    run_id = cluster.submit("a", gpus=1)
    cluster.settle()
    node_fails(cluster, run_id)
    assert where(cluster, run_id) == "n1"


@pytest.mark.parametrize(
    ("reason", "ran"),
    [(Reason.INSTANCE_UNREACHABLE, True), (Reason.CONTAINER_EXITED_WITH_ERROR, False)],
)
def test_a_node_that_began_the_job_or_is_not_to_blame_is_not_passed_over(
    reason: Reason, ran: bool
) -> None:
    cluster = Cluster(gpu_node("n1"), gpu_node("n2"))
    run_id = cluster.submit("a", policy=ALWAYS)
    cluster.settle()
    node_fails(cluster, run_id, reason=reason, ran=ran)
    assert where(cluster, run_id) == "n1"


def test_the_rank_of_a_gang_that_a_node_could_not_begin_goes_to_another_one() -> None:
    cluster = Cluster(*(gpu_node(name) for name in ("n1", "n2", "n3")))
    run_id = cluster.submit("a", gang(2), whole_node=True)
    cluster.settle()
    assert cluster.places(run_id) == {"main/0": "n1", "main/1": "n2"}
    node_fails(cluster, run_id)
    assert cluster.places(run_id) == {"main/0": "n3", "main/1": "n2"}
