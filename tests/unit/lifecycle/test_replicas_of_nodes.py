"""Replicas of several nodes: their jobs live and die together, and count as one replica."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.lifecycle.draft import DecisionContext
from controller.lifecycle.effects import EffectKind
from controller.lifecycle.model import RetryEvent, RetryPolicy
from controller.lifecycle.reports import DeployRequested
from fairlead.model.reasons import Reason, RunReason
from fairlead.model.service import DeploymentState
from fairlead.model.statuses import (
    FINAL_ATTEMPT_STATUSES,
    AllocationState,
    AttemptStatus,
    RunStatus,
)
from tests.unit.lifecycle.asking import Ask
from tests.unit.lifecycle.test_services import RETRY, ServicePlay


class Two(ServicePlay):
    """A service of which each replica has two nodes: replica n is the jobs 2n and 2n + 1."""

    def __init__(
        self, least: int = 2, most: int | None = None, retry: RetryPolicy = RETRY, surge: int = 1
    ) -> None:
        super().__init__(least, most, retry=retry, surge=surge, nodes=2)

    def serving(self, *replicas: int) -> Two:
        for replica in replicas:
            self.to_running(2 * replica, f"n{2 * replica}")
            self.to_running(2 * replica + 1, f"n{2 * replica + 1}")
            self.probe(2 * replica)
        return self

    def deploy_nodes(self, nodes: int) -> Two:
        now = self.run.deployments[-1]
        groups = (replace(now.service.groups[0], nodes=nodes),)
        made = replace(now, service=replace(now.service, groups=groups), at=self.now)
        return self.send(DeployRequested(run_id=self.run_id, deployment=made))

    def cleaned(self, *numbers: int) -> Two:
        for n in numbers:
            self.clean(n)
        return self

    def reasons(self, *numbers: int) -> list[Reason | None]:
        return [self.attempt(n).reason for n in numbers]

    @property
    def serving_replicas(self) -> list[int]:
        return [job.replica for job in self.state.jobs if job.attempts[-1].serving.registered_at]


def test_a_replica_is_one_job_on_each_node_and_its_first_serves() -> None:
    play = Two()

    slots = [(job.replica, job.cookie, job.rank) for job in play.state.jobs]
    assert slots == [(0, 0, 0), (0, 1, 1), (1, 2, 0), (1, 3, 1)]
    assert [job.spec.serves is not None for job in play.state.jobs] == [True, False, True, False]


def test_a_replica_gets_requests_only_while_all_its_jobs_run() -> None:
    play = Two(1).to_running(0, "n0").probe(0)
    assert play.serving_replicas == []

    play.to_running(1, "n1")
    assert play.serving_replicas == [0]
    assert EffectKind.PROBE_REPLICA in play.wanted(0)
    assert EffectKind.PROBE_REPLICA not in play.wanted(1)


@pytest.mark.parametrize("ended", [0, 1])
def test_when_one_job_ends_its_replica_ends_and_no_other_does(ended: int) -> None:
    play = Two().serving(0, 1).end(ended, Reason.CONTAINER_EXITED_WITH_ERROR)

    assert play.reasons(ended) == [Reason.CONTAINER_EXITED_WITH_ERROR]
    assert play.reasons(1 - ended, 2, 3) == [Reason.SIBLING_FAILED, None, None]
    assert play.serving_replicas == [1]
    assert play.run.status is RunStatus.RUNNING


def test_a_replica_comes_back_as_a_whole_in_new_allocations() -> None:
    play = Two().serving(0, 1).end(1, Reason.CONTAINER_EXITED_WITH_ERROR).clean(1)
    assert len(play.job(1).attempts) == 1

    play.drained(0).clean(0)
    assert [len(play.job(n).attempts) for n in range(4)] == [2, 2, 1, 1]
    assert {play.attempt(n).status for n in (0, 1)} == {AttemptStatus.SUBMITTED}
    assert {play.allocation(n, 0).state for n in (0, 1)} == {AllocationState.RELEASED}
    assert play.serving(0).serving_replicas == [0, 1]


@pytest.mark.parametrize(
    "reason", [Reason.DONE_BY_RUNNER, Reason.NODE_DRAINED, Reason.INSTANCE_UNREACHABLE]
)
def test_any_end_of_a_job_ends_its_replica(reason: Reason) -> None:
    play = Two().serving(0, 1).end(1, reason)

    assert play.reasons(0, 1) == [Reason.SIBLING_FAILED, reason]
    play.drained(0).cleaned(0, 1)
    assert [len(play.job(n).attempts) for n in range(4)] == [2, 2, 1, 1]


def test_a_job_that_loses_its_node_before_it_began_takes_its_replica_along() -> None:
    play = Two(1).to_provisioning(0, "n0").to_provisioning(1, "n1")
    play.end(1, Reason.INSTANCE_UNREACHABLE).cleaned(0, 1)

    assert [len(play.job(n).attempts) for n in (0, 1)] == [2, 2]


def test_a_replica_of_which_a_job_may_not_be_tried_again_ends_alone() -> None:
    retry = RetryPolicy(on_events=frozenset({RetryEvent.INTERRUPTION}))
    play = Two(retry=retry).serving(0, 1).end(1, Reason.CONTAINER_EXITED_WITH_ERROR)
    play.drained(0).cleaned(0, 1).wait(1000)

    assert [len(play.job(n).attempts) for n in range(4)] == [1, 1, 1, 1]
    assert (play.run.status, play.serving_replicas) == (RunStatus.RUNNING, [1])
    play.end(2, Reason.CONTAINER_EXITED_WITH_ERROR)
    assert (play.run.status, play.run.reason) == (RunStatus.TERMINATING, RunReason.JOB_FAILED)


def test_when_both_jobs_end_at_once_and_one_may_not_be_tried_again_the_run_ends() -> None:
    retry = RetryPolicy(on_events=frozenset({RetryEvent.INTERRUPTION}))
    play = Two(1, retry=retry).serving(0)
    failed = play.exited(1, Reason.CONTAINER_EXITED_WITH_ERROR)
    lost = play.seen(0, terminated=True, reason=Reason.INSTANCE_UNREACHABLE)
    play.send(failed, lost)

    assert play.reasons(0, 1) == [
        Reason.INSTANCE_UNREACHABLE,
        Reason.CONTAINER_EXITED_WITH_ERROR,
    ]
    assert (play.run.status, play.run.reason) == (RunStatus.TERMINATING, RunReason.JOB_FAILED)


def test_no_job_of_a_replica_is_stopped_before_its_last_request_has_ended() -> None:
    play = Two(1, 2).serving(0).want(2).serving(1).want(1)
    assert play.reasons(2, 3) == [Reason.SCALED_DOWN, Reason.SCALED_DOWN]
    assert EffectKind.DRAIN_REPLICA in play.wanted(2)
    for kind in (EffectKind.STOP_JOB, EffectKind.DRAIN_REPLICA, EffectKind.TERMINATE_TASK):
        assert kind not in play.wanted(3)

    play.drained(2)
    assert EffectKind.STOP_JOB in play.wanted(2)
    assert EffectKind.STOP_JOB in play.wanted(3)
    assert play.attempt(2).remove_at == play.attempt(3).remove_at


def test_a_failed_primary_keeps_no_job_waiting_for_requests() -> None:
    play = Two(1).serving(0).end(0, Reason.CONTAINER_EXITED_WITH_ERROR)

    assert play.attempt(1).drains_until is None


def test_scaling_counts_replicas_and_uses_their_slots_again() -> None:
    play = Two(1, 3).serving(0).want(2)
    assert [job.cookie for job in play.present] == [0, 1, 2, 3]
    play.serving(1).want(1).drained(2).cleaned(2, 3)
    assert [job.cookie for job in play.present] == [0, 1]

    play.want(2)
    slots = [(job.replica, job.cookie, job.rank) for job in play.present]
    assert slots == [(0, 0, 0), (0, 1, 1), (1, 2, 0), (1, 3, 1)]
    assert play.run.groups[0].nodes == 4


def test_a_rollout_has_one_replica_more_and_never_fewer_ready_ones() -> None:
    play = Two().serving(0, 1).deploy("v2")
    assert [job.deployment for job in play.present] == [0, 0, 0, 0, 1, 1]

    play.to_running(4, "n4").to_running(5, "n5")
    assert play.serving_replicas == [0, 1]
    play.probe(4)
    assert play.reasons(0, 1, 2, 3) == [None, None, Reason.SCALED_DOWN, Reason.SCALED_DOWN]
    assert play.serving_replicas == [0, 2]
    play.serving(3).drained(0).cleaned(0, 1)
    assert {job.deployment for job in play.present} == {1}
    assert play.run.deployments[-1].state is DeploymentState.DONE


def test_a_deployment_with_other_nodes_replaces_each_replica_as_a_whole() -> None:
    play = Two(1).serving(0).deploy_nodes(3)
    assert [(job.replica, job.rank) for job in play.present if job.deployment] == [
        (1, 0),
        (1, 1),
        (1, 2),
    ]
    for n in (2, 3, 4):
        play.to_running(n, f"n{n}")
    play.probe(2).drained(0).cleaned(0, 1)
    assert play.serving_replicas == [1]

    play.deploy_nodes(1)
    (new,) = [job for job in play.present if job.deployment == 2]
    assert (new.replica, new.cookie, new.rank) == (0, 0, None)
    play.ready(0)
    assert play.reasons(2, 3, 4) == [Reason.SCALED_DOWN] * 3


def test_a_deployment_that_changes_nothing_keeps_both_jobs() -> None:
    play = Two(1).serving(0).deploy("v1")

    assert [job.deployment for job in play.present] == [1, 1]
    assert play.run.deployments[-1].state is DeploymentState.DONE


def test_a_replica_leaves_when_the_node_of_one_of_its_jobs_is_drained() -> None:
    play = Two(1).serving(0)
    play.around = DecisionContext(draining_nodes=frozenset({"n1"}))
    play.send()
    assert len(play.present) == 4

    play.serving(1)
    assert play.reasons(0, 1) == [Reason.NODE_DRAINED, Reason.NODE_DRAINED]
    assert play.serving_replicas == [1]


def test_a_stopped_service_lets_the_requests_of_its_replicas_end() -> None:
    play = Two(1).serving(0)
    play.send(play.stop())
    assert EffectKind.STOP_JOB not in play.wanted(1)

    play.drained(0).cleaned(0, 1)
    assert {play.attempt(n).status for n in (0, 1)} <= FINAL_ATTEMPT_STATUSES
    assert play.run.status is RunStatus.TERMINATED


def test_a_queued_replica_of_a_suspended_service_ends_at_once() -> None:
    play = ServicePlay(1, nodes=2)
    play.send(Ask(play).suspend()).send(Ask(play).abort(0))
    assert [play.attempt(n).status for n in (0, 1)] == [
        AttemptStatus.ABORTED,
        AttemptStatus.TERMINATED,
    ]
    assert play.run.status is RunStatus.PENDING
