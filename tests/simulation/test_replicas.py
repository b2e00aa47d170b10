"""The checks of services find what they are there to find."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from controller.lifecycle.model import Group, JobSpec, RunState, RunType
from controller.lifecycle.runs.first_state import new_run
from fairlead.model.reasons import Reason
from fairlead.model.service import (
    ProbeResult,
    ReplicaGroup,
    Scaling,
    ScalingMetric,
    Serves,
    ServicePolicy,
)
from fairlead.model.spec import PlannedGroup
from fairlead.model.statuses import AttemptStatus
from tests.simulation.replicas import breaches
from tests.simulation.samples import changed

PASSES = ProbeResult(passes=True, in_a_row=1, since=0.0)
FAILS = ProbeResult(passes=False, in_a_row=0, since=1.0)
READY: dict[str, Any] = {
    "status": AttemptStatus.RUNNING,
    "ready": True,
    "registered_at": 1.0,
    "was_registered": True,
    "probes": (PASSES,),
}


def a_service(replicas: int = 2, least: int = 2) -> RunState:
    """All its replicas get requests, and all are wanted."""
    ids = iter(f"{number:016x}" for number in range(100))
    scaling = Scaling(metric=ScalingMetric.RPS, target=1.0)
    group = ReplicaGroup(name="main", least=least, most=4, scaling=scaling)
    state = new_run(
        name="s",
        user="u",
        groups=[
            PlannedGroup(
                group=Group(name="main", nodes=replicas),
                spec=JobSpec(image="i", serves=Serves(port=80)),
            )
        ],
        now=0.0,
        new_id=lambda: next(ids),
        type=RunType.SERVICE,
        service=ServicePolicy(port=80, groups=(group,)),
    )
    for index in range(replicas):
        state = changed(state, index, **READY)
    return wanting(state, replicas)


def taken(state: RunState, index: int, **changes: Any) -> RunState:
    """The service has ended this replica by plan."""
    jobs = list(state.jobs)
    jobs[index] = replace(jobs[index], scaled_down=True)
    state = replace(state, jobs=tuple(jobs))
    ended: dict[str, Any] = {
        "status": AttemptStatus.TERMINATING,
        "reason": Reason.SCALED_DOWN,
        "ready": False,
        "registered_at": None,
    }
    return changed(state, index, **ended, **changes)


def wanting(state: RunState, number: int) -> RunState:
    (scale,) = state.run.scales
    return replace(state, run=replace(state.run, scales=(replace(scale, wanted=number),)))


def test_a_service_with_all_its_replicas_breaks_nothing() -> None:
    assert list(breaches(a_service(), a_service())) == []


def test_a_replica_that_gets_requests_though_it_is_not_ready_is_found() -> None:
    state = changed(a_service(), 0, ready=False)
    (found,) = breaches(a_service(), state)
    assert found.endswith("gets requests: running None")


def test_a_replica_that_gets_requests_though_it_is_being_stopped_is_found() -> None:
    stopping = {"status": AttemptStatus.TERMINATING, "reason": Reason.SCALED_DOWN}
    (found,) = breaches(a_service(), changed(a_service(), 0, **stopping))
    assert found.endswith("gets requests: terminating scaled_down")


def test_a_wanted_number_out_of_its_range_is_found() -> None:
    assert list(breaches(None, wanting(a_service(), 4))) == []
    for number in (1, 5):
        found = f"group main of s wants {number}: 2..4"
        assert list(breaches(None, wanting(a_service(), number))) == [found]


def test_a_replica_that_is_taken_away_though_too_few_are_left_is_found() -> None:
    before = a_service()
    found = "s took 1 of main away and has 1 of 2"
    assert list(breaches(before, taken(before, 0))) == [found]
    drained = {"reason": Reason.NODE_DRAINED}
    assert list(breaches(before, changed(taken(before, 0), 0, **drained))) == [found]


def test_a_replica_that_is_taken_away_while_enough_are_left_is_no_breach() -> None:
    before = a_service(3)
    assert list(breaches(before, wanting(taken(before, 2), 2))) == []


def test_a_replica_whose_probe_failed_in_the_same_commit_may_be_taken_away() -> None:
    before = a_service()
    assert list(breaches(before, taken(before, 0, probes=(FAILS,)))) == []
    assert list(breaches(before, taken(before, 0, container_gone=True))) == []
