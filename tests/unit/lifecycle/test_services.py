"""Replicas of a service: who gets requests, how one ends, how a version takes another's place."""

from __future__ import annotations

from typing import Self

import pytest
from msgspec.structs import replace

from controller.lifecycle.decide import decide
from controller.lifecycle.draft import DecisionContext
from controller.lifecycle.effects import EffectKind
from controller.lifecycle.model import (
    Group,
    Job,
    JobSpec,
    RetryEvent,
    RetryPolicy,
    RunPolicy,
    RunType,
)
from controller.lifecycle.reports import (
    ControllerStarted,
    DeployRequested,
    NodeDisconnected,
    ProbeSeen,
    RegistrationFailed,
    ReplicaDrained,
    ReplicaRegistered,
    ReplicasWanted,
    Report,
    RollbackRequested,
    Tick,
    WakeRequested,
)
from controller.lifecycle.runs.first_state import new_run
from controller.lifecycle.services import rollout, scaling
from controller.lifecycle.services.readiness import why_not_ready
from controller.lifecycle.services.scaling import Load
from fairlead.model.reasons import Reason, RunReason
from fairlead.model.service import (
    DeploymentState,
    GroupScale,
    Probe,
    ReplicaGroup,
    Scaling,
    ScalingMetric,
    Serves,
    ServicePolicy,
)
from fairlead.model.spec import PlannedGroup
from fairlead.model.statuses import AttemptStatus, RunStatus
from tests.unit.lifecycle.asking import Ask
from tests.unit.lifecycle.play import START, Play

RETRY = RetryPolicy(on_events=frozenset({RetryEvent.ERROR, RetryEvent.INTERRUPTION}))
RPS = Scaling(metric=ScalingMetric.RPS, target=10.0)
SPEC = JobSpec(image="v1", serves=Serves(port=80))


class ServicePlay(Play):
    """A service with one group."""

    def __init__(
        self,
        least: int = 2,
        most: int | None = None,
        *,
        probe: Probe | None = None,
        probes: tuple[Probe, ...] = (),
        retry: RetryPolicy = RETRY,
        surge: int = 1,
        unhealthy_after: float | None = None,
        gateway: str | None = None,
        nodes: int = 1,
    ) -> None:
        super().__init__()
        spec = replace(SPEC, serves=Serves(port=80, probes=probes or (probe or Probe(),)))
        group = ReplicaGroup(
            name="main",
            least=least,
            most=most or least,
            scaling=RPS if most else None,
            nodes=nodes,
        )
        self.state = new_run(
            name="play",
            user="ada",
            groups=[PlannedGroup(group=Group(name="main", nodes=least * nodes), spec=spec)],
            now=self.now,
            new_id=self.new_id,
            type=RunType.SERVICE,
            policy=RunPolicy(retry=retry),
            service=ServicePolicy(
                port=80,
                groups=(group,),
                surge=surge,
                unhealthy_after=unhealthy_after,
                gateway=gateway,
            ),
        )
        self.events.clear()
        self.send()

    def probe(self, n: int = 0, *, number: int = 0, passed: bool = True) -> Self:
        return self.send(
            ProbeSeen(
                run_id=self.run_id,
                attempt_id=self.attempt(n).id,
                probe=number,
                passed=passed,
                message=None if passed else "no answer",
            )
        )

    def ready(self, n: int = 0) -> Self:
        return self.to_running(n, f"n{n}").probe(n)

    def confirmed(self, n: int = 0) -> Self:
        """The gateway sends requests to the replica."""
        attempt_id = self.attempt(n).id
        report = ReplicaRegistered(run_id=self.run_id, attempt_id=attempt_id, socket="/exposed")
        return self.send(report)

    def not_confirmed(self, why: str) -> Self:
        attempt_id = self.attempt().id
        return self.send(RegistrationFailed(run_id=self.run_id, attempt_id=attempt_id, why=why))

    def drained(self, n: int = 0) -> Self:
        return self.send(ReplicaDrained(run_id=self.run_id, attempt_id=self.attempt(n).id))

    def deploy(self, image: str) -> Self:
        now = self.run.deployments[-1]
        spec = replace(now.specs["main"], image=image)
        made = replace(now, specs={"main": spec}, by="bo", at=self.now)
        return self.send(DeployRequested(run_id=self.run_id, deployment=made))

    def want(self, wanted: int) -> Self:
        return self.send(
            ReplicasWanted(run_id=self.run_id, group="main", wanted=wanted, why="the load")
        )

    def live_end(self, n: int) -> Self:
        return self.end(n, Reason.CONTAINER_EXITED_WITH_ERROR).clean(n)

    @property
    def in_traffic(self) -> list[str]:
        return [
            job.spec.image
            for job in self.state.jobs
            if job.attempts and job.attempts[-1].serving.registered_at is not None
        ]

    @property
    def present(self) -> list[Job]:
        return [job for job in self.state.jobs if not job.scaled_down]


def test_a_replica_gets_requests_once_its_probe_passes_and_none_while_it_fails() -> None:
    play = ServicePlay(1).to_running()
    assert EffectKind.PROBE_REPLICA in play.wanted()
    assert play.in_traffic == []

    play.probe()
    assert (play.in_traffic, play.attempt().serving.ready) == (["v1"], True)
    play.probe(passed=False)
    assert (play.in_traffic, play.attempt().serving.ready) == ([], False)
    assert play.attempt().serving.probes[0].message == "no answer"
    play.probe()
    assert play.in_traffic == ["v1"]
    assert [e.to_status for e in play.events if e.kind == "traffic"] == [
        "registered",
        "unregistered",
        "registered",
    ]


def test_a_probe_must_pass_as_often_in_a_row_as_asked_and_then_costs_no_commit() -> None:
    play = ServicePlay(1, probe=Probe(ready_after=2)).to_running().probe()
    play.probe(passed=False).probe()
    assert play.in_traffic == []
    play.probe()
    assert play.in_traffic == ["v1"]
    before = play.state
    play.probe()
    assert play.state is before


def test_a_probe_that_ends_when_ready_is_not_tried_again() -> None:
    play = ServicePlay(1, probe=Probe(until_ready=True)).ready()

    assert EffectKind.PROBE_REPLICA not in play.wanted()
    play.probe(passed=False)
    assert play.in_traffic == ["v1"]


def test_a_replica_whose_probes_fail_too_long_is_replaced() -> None:
    play = ServicePlay(1, unhealthy_after=30.0).ready().probe(passed=False)
    play.wait(29.0)
    assert (play.attempt().status, play.in_traffic) == (AttemptStatus.RUNNING, [])

    play.wait(1.0).clean()
    first = play.attempt(number=0)
    assert (first.reason, first.status) == (Reason.PROBES_FAILED, AttemptStatus.FAILED)
    assert first.message == "its probes failed for 30 s: no answer"
    play.wait(3600.0)
    assert play.attempt(number=1).status is AttemptStatus.SUBMITTED


def test_a_probe_that_passes_again_begins_the_time_anew() -> None:
    play = ServicePlay(1, unhealthy_after=30.0).ready().probe(passed=False).wait(20.0)
    play.probe().probe(passed=False).wait(29.0)
    assert play.attempt().status is AttemptStatus.RUNNING
    assert play.wait(1.0).attempt().reason is Reason.PROBES_FAILED


def test_the_silence_of_its_node_replaces_no_replica() -> None:
    play = ServicePlay(1, unhealthy_after=30.0).ready().probe(passed=False).wait(20.0)
    play.send(play.link(down=True, node="n0")).wait(60.0).send(play.link(down=False, node="n0"))
    assert play.wait(9.0).attempt().status is AttemptStatus.RUNNING
    assert play.wait(1.0).attempt().reason is Reason.PROBES_FAILED


def test_the_silence_before_a_probe_failed_does_not_count() -> None:
    play = ServicePlay(1, unhealthy_after=30.0).ready()
    play.send(play.link(down=True, node="n0")).wait(100.0).probe(passed=False)
    play.send(play.link(down=False, node="n0")).wait(29.0)
    assert play.attempt().status is AttemptStatus.RUNNING
    assert play.wait(1.0).attempt().reason is Reason.PROBES_FAILED


class TwoProbes(ServicePlay):
    """One ready replica with two probes, of which the first fails."""

    def __init__(self) -> None:
        super().__init__(1, probes=(Probe(), Probe()), unhealthy_after=30.0)
        self.ready().probe(number=1).probe(passed=False).wait(10.0)


def test_the_silence_of_its_node_counts_for_no_probe_that_fails_before_or_after_it() -> None:
    play = TwoProbes()
    play.send(play.link(down=True, node="n0")).wait(60.0).send(play.link(down=False, node="n0"))
    play.probe(number=1, passed=False)
    assert play.wait(19.0).attempt().status is AttemptStatus.RUNNING
    assert play.wait(1.0).attempt().reason is Reason.PROBES_FAILED


def test_a_controller_that_begins_gives_failing_probes_their_whole_time_again() -> None:
    play = TwoProbes()
    play.send(play.link(down=True, node="n0")).wait(60.0).send(play.link(down=False, node="n0"))
    play.wait(10.0).send(
        NodeDisconnected(run_id=play.run_id, node_id="n0", disconnected=True, limits_anew=True)
    )
    play.wait(100.0).send(play.link(down=False, node="n0"))
    assert play.wait(29.0).attempt().status is AttemptStatus.RUNNING
    assert play.wait(1.0).attempt().reason is Reason.PROBES_FAILED


def test_a_suspension_counts_for_no_probe_though_another_one_fails_meanwhile() -> None:
    play = TwoProbes()
    play.send(Ask(play).suspend()).wait(60.0).probe(number=1, passed=False).wait(60.0)
    play.send(Ask(play).resume()).probe()
    assert play.wait(29.0).attempt().status is AttemptStatus.RUNNING
    assert play.wait(1.0).attempt().reason is Reason.PROBES_FAILED


@pytest.mark.parametrize("unhealthy_after", [None, 30.0])
def test_a_replica_that_was_never_ready_is_not_replaced_for_its_probes(
    unhealthy_after: float | None,
) -> None:
    play = ServicePlay(1, unhealthy_after=unhealthy_after).to_running().probe(passed=False)
    assert play.wait(3600.0).attempt().status is AttemptStatus.RUNNING


def test_a_stopped_replica_gets_no_requests_and_is_asked_to_stop_after_its_last_one() -> None:
    play = ServicePlay(1).ready()
    play.send(play.stop())

    assert play.in_traffic == []
    assert EffectKind.DRAIN_REPLICA in play.wanted()
    assert EffectKind.STOP_JOB not in play.wanted()
    play.now += 5
    play.drained()
    assert EffectKind.STOP_JOB in play.wanted()
    assert play.attempt().remove_at == play.now + 300


def test_a_request_that_never_ends_keeps_a_replica_no_longer_than_the_drain() -> None:
    play = ServicePlay(1).ready()
    play.send(play.stop())

    assert play.wake_at == play.now + 60
    play.wait(60)
    assert EffectKind.STOP_JOB in play.wanted()


def test_an_abort_waits_for_no_request() -> None:
    play = ServicePlay(1).ready()
    play.send(play.stop()).send(play.stop(abort=True))

    assert EffectKind.TERMINATE_TASK in play.wanted()


def test_a_replica_that_was_never_ready_is_stopped_without_a_drain() -> None:
    play = ServicePlay(1).to_running()
    play.send(play.stop())

    assert EffectKind.STOP_JOB in play.wanted()


def test_a_failed_replica_comes_back_and_the_other_goes_on() -> None:
    play = ServicePlay(2).ready(0).ready(1)
    play.end(0, Reason.CONTAINER_EXITED_WITH_ERROR).clean(0)

    assert play.run.status is RunStatus.RUNNING
    assert play.in_traffic == ["v1"]
    assert len(play.job(0).attempts) == 2


def test_a_replica_that_may_not_be_tried_again_ends_no_service_that_has_others() -> None:
    play = ServicePlay(2, retry=RetryPolicy(on_events=frozenset())).ready(0).ready(1)
    play.live_end(0)
    assert play.in_traffic == ["v1"]
    play.live_end(1)
    assert (play.run.status, play.run.reason) == (RunStatus.FAILED, RunReason.JOB_FAILED)


def test_a_replica_that_exits_with_zero_comes_back() -> None:
    play = ServicePlay(1).ready()
    play.end(0, Reason.DONE_BY_RUNNER).clean(0)

    assert play.run.status is RunStatus.SUBMITTED
    assert play.attempt().status is AttemptStatus.SUBMITTED


def test_a_service_scaled_to_zero_is_pending_and_a_request_wakes_it() -> None:
    play = ServicePlay(0, 4)
    assert (play.run.status, play.present) == (RunStatus.PENDING, [])

    play.send(WakeRequested(run_id=play.run_id), WakeRequested(run_id=play.run_id))
    assert [play.run.status] == [RunStatus.SUBMITTED]
    play.ready()
    play.want(0)
    assert (play.run.status, play.in_traffic) == (RunStatus.PENDING, [])
    assert play.attempt().reason is Reason.SCALED_DOWN
    play.drained().clean()
    assert play.run.status is RunStatus.PENDING


def test_a_wanted_number_stays_within_the_range() -> None:
    play = ServicePlay(1, 3).want(9)
    assert len(play.present) == 3
    play.want(0)
    assert len(play.present) == 1


def test_scaling_down_ends_replicas_without_requests_first() -> None:
    play = ServicePlay(1, 3).want(3).ready(1)
    play.want(1)

    assert [job.cookie for job in play.present] == [1]


def test_a_slot_is_used_again_once_nothing_of_it_lives() -> None:
    play = ServicePlay(1, 3).want(2).ready(0).ready(1).want(1)
    slots = [len(play.state.jobs)]
    slots.append(len(play.want(2).state.jobs))
    slots.append(len(play.want(1).drained(1).clean(1).want(2).state.jobs))
    assert slots == [2, 3, 3]


def test_a_rollout_replaces_one_replica_after_another_and_never_has_fewer_ready() -> None:
    play = ServicePlay(2).ready(0).ready(1)
    play.deploy("v2")
    assert [job.spec.image for job in play.present] == ["v1", "v1", "v2"]
    play.ready(2)
    assert play.in_traffic == ["v1", "v2"]
    assert [job.spec.image for job in play.present] == ["v1", "v2", "v2"]
    play.ready(3)
    assert play.in_traffic == ["v2", "v2"]
    assert play.run.deployments[-1].state is DeploymentState.DONE
    assert (play.run.deployment, len(play.run.deployments)) == (1, 2)


def test_a_change_that_makes_the_same_replicas_restarts_none() -> None:
    play = ServicePlay(2).ready(0).ready(1)
    play.deploy("v1")

    assert len(play.present) == 2
    assert play.run.deployments[-1].state is DeploymentState.DONE
    assert {job.deployment for job in play.present} == {1}


def test_a_version_that_does_not_become_ready_is_rolled_back_and_the_old_one_stays() -> None:
    play = ServicePlay(2).ready(0).ready(1)
    play.deploy("v2").to_running(2)
    assert play.wake_at == play.now + 600
    play.wait(600)

    assert [one.state for one in play.run.deployments] == [
        DeploymentState.DONE,
        DeploymentState.ROLLED_BACK,
        DeploymentState.DONE,
    ]
    assert play.in_traffic == ["v1", "v1"]
    assert play.run.deployments[-1].of == 0
    assert "no further replica became ready in 600 s" in str(play.run.deployments[1].message)


def states(play: ServicePlay) -> list[tuple[DeploymentState, int | None]]:
    return [(one.state, one.of) for one in play.run.deployments]


def test_a_version_with_none_to_go_back_to_fails_and_is_done_once_it_is_ready() -> None:
    play = ServicePlay(1).to_running(0)
    play.deploy("v2").wait(600)
    assert [state for state, _ in states(play)] == [
        DeploymentState.REPLACED,
        DeploymentState.FAILED,
    ]
    assert "no further replica became ready in 600 s" in str(play.run.deployments[-1].message)
    new = next(job for job in play.present if job.spec.image == "v2")
    play.ready(new.index)
    assert play.run.deployments[-1].state is DeploymentState.DONE
    assert play.run.deployments[-1].message is None


def test_the_time_without_a_controller_rolls_nothing_back() -> None:
    play = ServicePlay(1).ready(0).deploy("v2").to_running(1)
    play.now += 3600.0
    play.send(ControllerStarted(run_id=play.run_id)).wait(599.0)
    assert play.run.deployments[-1].state is DeploymentState.ROLLING
    assert play.wait(1.0).run.deployments[1].state is DeploymentState.ROLLED_BACK


def test_a_rollback_by_hand_that_does_not_become_ready_is_taken_back() -> None:
    play = ServicePlay(1).ready(0).deploy("v2").ready(1)
    play.send(RollbackRequested(run_id=play.run_id, to=0, by="bo")).wait(600)
    assert states(play)[2:] == [(DeploymentState.ROLLED_BACK, 0), (DeploymentState.DONE, 1)]
    assert play.in_traffic == ["v2"]


def test_a_rollback_of_the_controllers_own_that_does_not_become_ready_fails() -> None:
    play = ServicePlay(1).ready(0).deploy("v2").to_running(1)
    play.probe(0, passed=False).wait(600)
    assert states(play)[1:] == [(DeploymentState.ROLLED_BACK, None), (DeploymentState.ROLLING, 0)]
    play.wait(600)
    assert states(play)[2:] == [(DeploymentState.FAILED, 0)]
    assert play.probe(0).run.deployments[-1].state is DeploymentState.DONE


def test_the_last_good_deployments_outlive_any_number_of_failed_ones() -> None:
    play = ServicePlay(1).ready(0).deploy("v2").ready(1)
    for number in range(12):
        play.deploy(f"bad{number}")
    kept = play.run.deployments
    assert [one.number for one in kept] == [0, 1, *range(4, 14)]

    play.wait(600)
    assert states(play)[-1] == (DeploymentState.DONE, 1)
    before = rollout.rollback_target(play.run, None)
    assert before is not None
    assert before.number == 0


def rename_group(play: ServicePlay) -> ServicePlay:
    """Deploy a version whose one group has another name."""
    now = play.run.deployments[-1]
    groups = (replace(now.service.groups[0], name="other"),)
    made = replace(
        now,
        service=replace(now.service, groups=groups),
        specs={"other": replace(now.specs["main"], image="v2")},
        at=play.now,
    )
    return play.send(DeployRequested(run_id=play.run_id, deployment=made))


def test_a_removed_group_serves_until_the_deployment_without_it_is_rolled_out() -> None:
    play = rename_group(ServicePlay(2).ready(0))
    play.wait(600)
    assert (states(play)[-1][0], play.in_traffic) == (DeploymentState.FAILED, ["v1"])

    play.ready(2)
    assert play.in_traffic == ["v1", "v2"]
    play.ready(3)
    assert (states(play)[-1][0], play.in_traffic) == (DeploymentState.DONE, ["v2", "v2"])


def drain(play: ServicePlay, *nodes: str) -> ServicePlay:
    play.around = DecisionContext(unusable_nodes=frozenset(nodes), draining_nodes=frozenset(nodes))
    return play.send()


def test_a_replica_leaves_a_draining_node_only_once_another_is_ready() -> None:
    play = drain(ServicePlay(1).ready(0), "n0")
    assert (len(play.present), play.attempt(0).status) == (2, AttemptStatus.RUNNING)
    play.to_running(1, "n1")
    assert play.attempt(0).status is AttemptStatus.RUNNING
    play.probe(1)
    assert play.attempt(0).reason is Reason.NODE_DRAINED
    assert [job.cookie for job in play.present] == [1]
    play.drained(0).clean(0)
    assert len(play.job(0).attempts) == 1
    assert (play.run.status, len(play.run.deployments)) == (RunStatus.RUNNING, 1)


def test_a_drain_that_is_called_off_starts_no_other_replica() -> None:
    play = drain(ServicePlay(1).ready(0), "n0")
    drain(play)
    assert [job.cookie for job in play.present] == [0]
    assert play.attempt(0).status is AttemptStatus.RUNNING


def test_replicas_on_a_draining_node_leave_one_by_one() -> None:
    play = ServicePlay(3).ready(0).ready(1)
    play.to_running(2, "n0").probe(2)
    drain(play, "n0")
    assert len(play.present) == 4
    play.ready(3)
    assert (len(play.in_traffic), len(play.present)) == (3, 4)
    play.ready(4)
    assert (len(play.in_traffic), len(play.present)) == (3, 3)


def test_a_user_brings_an_earlier_deployment_back() -> None:
    play = ServicePlay(1).ready(0).deploy("v2").ready(1)
    assert play.in_traffic == ["v2"]
    play.send(RollbackRequested(run_id=play.run_id, to=0, by="bo")).ready(2)
    assert play.in_traffic == ["v1"]


def test_a_suspended_service_neither_rolls_nor_scales() -> None:
    play = ServicePlay(1, 3).ready(0)
    play.change_run(suspended=True).want(3).deploy("v2")

    assert len(play.present) == 1


def test_a_service_that_has_ended_keeps_no_secret_of_any_deployment() -> None:
    play = ServicePlay(1).ready(0)
    now = play.run.deployments[-1]
    spec = replace(now.specs["main"], env={"A": "canary"})
    play.change_run(deployments=(replace(now, specs={"main": spec}),))
    play.send(play.stop()).drained().clean()

    assert play.run.status is RunStatus.TERMINATED
    assert "canary" not in str(play.run.deployments[-1].specs["main"].env)


def test_equal_reports_decide_equally_in_any_order() -> None:
    play = ServicePlay(1, 4).ready(0)
    reports: list[Report] = [
        ReplicasWanted(run_id=play.run_id, group="main", wanted=3, why="a"),
        WakeRequested(run_id=play.run_id),
        Tick(run_id=play.run_id),
    ]
    ends = []
    for order in (reports, reports[::-1]):
        ids = map(str, range(100))
        ends.append(decide(play.state, order, play.now, ids.__next__).state)
    assert ends[0] == ends[1]


GROUP = ReplicaGroup(name="main", least=1, most=4, scaling=RPS)


def wanted(here: int, load: Load, *, after: float = 1000.0, group: ReplicaGroup = GROUP) -> int:
    scale = GroupScale(group="main", wanted=here, at=START, why="")
    return scaling.decide(group, scale, load, START + after).wanted


@pytest.mark.parametrize(
    ("here", "rps", "then"),
    [(1, 25.0, 3), (1, 100.0, 4), (3, 0.0, 1), (2, 21.0, 2), (2, 10.0, 1), (1, 0.0, 1)],
)
def test_the_number_follows_the_load_within_its_range(here: int, rps: float, then: int) -> None:
    assert wanted(here, Load(covered=60.0, rps=rps)) == then


def test_nothing_changes_without_statistics_of_the_whole_window() -> None:
    assert wanted(2, Load(covered=59.0, rps=100.0)) == 2
    assert wanted(2, Load(covered=60.0)) == 2


def test_each_direction_waits_for_its_delay() -> None:
    load = Load(covered=60.0, rps=25.0)
    assert (wanted(1, load, after=299), wanted(1, load, after=300)) == (1, 3)
    none = Load(covered=60.0, rps=0.0)
    assert (wanted(3, none, after=599), wanted(3, none, after=600)) == (3, 1)


def test_a_group_whose_least_is_zero_sleeps_without_requests() -> None:
    assert wanted(1, Load(covered=60.0, rps=0.0), group=replace(GROUP, least=0)) == 0


@pytest.mark.parametrize("metric", list(ScalingMetric))
def test_a_group_does_not_fall_asleep_while_a_request_waits_for_its_start(
    metric: ScalingMetric,
) -> None:
    group = replace(GROUP, least=0, scaling=Scaling(metric=metric, target=10.0))
    assert wanted(1, Load(covered=60.0, rps=0.0, in_flight=0.02), group=group) == 1
    assert wanted(1, Load(covered=60.0, rps=0.0, in_flight=0.0), group=group) == 0


def test_latency_and_concurrency_are_tracked_too() -> None:
    slow = replace(RPS, metric=ScalingMetric.LATENCY_P95, target=0.5)
    busy = replace(RPS, metric=ScalingMetric.CONCURRENCY, target=2.0)
    latency, concurrency = replace(GROUP, scaling=slow), replace(GROUP, scaling=busy)
    assert wanted(2, Load(covered=60.0, rps=9.0, latency_p95=1.0), group=latency) == 4
    assert wanted(1, Load(covered=60.0, in_flight=5.0), group=concurrency) == 3


def test_a_replica_behind_a_gateway_is_registered_once_the_gateway_confirms_it() -> None:
    play = ServicePlay(1, gateway="main").ready()
    assert play.in_traffic == []
    assert EffectKind.REGISTER_REPLICA in play.wanted()
    assert why_not_ready(play.state.jobs[0], play.attempt()) == (
        "its gateway has not confirmed it yet"
    )

    play.confirmed()

    assert play.in_traffic == ["v1"]
    assert EffectKind.REGISTER_REPLICA not in play.wanted()


def test_a_replica_whose_probe_failed_must_be_confirmed_by_its_gateway_again() -> None:
    play = ServicePlay(1, gateway="main").ready().confirmed().probe(passed=False)
    assert (play.in_traffic, play.attempt().serving.exposed_socket) == ([], None)

    play.probe()

    assert play.in_traffic == []
    assert play.confirmed().in_traffic == ["v1"]


def test_a_confirmation_that_comes_too_late_changes_nothing() -> None:
    play = ServicePlay(1, gateway="main").ready().probe(passed=False)

    assert play.confirmed().attempt().serving.exposed_socket is None


def test_a_replica_that_its_gateway_does_not_confirm_ends_and_is_tried_again() -> None:
    play = ServicePlay(1, gateway="main").ready().not_confirmed("the gateway main is away")
    assert play.wait(299.0).attempt().reason is None

    first = play.wait(1.0).attempt()

    assert first.reason is Reason.GATEWAY_ERROR
    assert first.message == (
        "the gateway main did not confirm it within 300 s: the gateway main is away"
    )
    assert play.clean().state.run.status is not RunStatus.TERMINATING
    assert len(play.state.jobs[0].attempts) == 2


def test_a_controller_that_begins_gives_the_gateway_its_whole_time_again() -> None:
    play = ServicePlay(1, gateway="main").ready().wait(200.0)
    play.send(ControllerStarted(run_id=play.run_id)).wait(250.0)
    assert play.attempt().reason is None

    assert play.wait(50.0).attempt().reason is Reason.GATEWAY_ERROR


def test_an_old_replica_stays_until_the_gateway_has_confirmed_its_successor() -> None:
    play = ServicePlay(1, gateway="main").ready().confirmed().deploy("new")
    play.ready(1)
    assert play.in_traffic == ["v1"]

    play.confirmed(1)

    assert play.in_traffic == ["new"]
