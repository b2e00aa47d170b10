"""The contract of `inspect --json`, written out once by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.api.views import run_summary, run_view
from controller.clock import iso
from controller.lifecycle.model import (
    Allocation,
    Attempt,
    Group,
    Incarnation,
    Job,
    JobSpec,
    Occurrence,
    Resources,
    Run,
    RunPolicy,
    RunState,
    RunType,
    Switch,
    TaskDetails,
)
from fairlead.model.reasons import Reason, RunReason
from fairlead.model.statuses import AllocationState, AttemptStatus, RunStatus

FULL = RunState(
    run=Run(
        id="r1",
        name="wise-otter-1",
        type=RunType.TASK,
        user="ada",
        configuration={
            "commands": ["train"],
            "repos": [{"local_path": ".", "uploaded": {"archive": "a" * 64}}],
        },
        status=RunStatus.FAILED,
        reason=RunReason.JOB_FAILED,
        message="a sentence",
        incarnation=Incarnation(number=2, id="i2"),
        switches=(Switch(reason="job_failed", attempt_id="a0", message=None, at=1.5),),
        next_triggered_at=60.0,
        submitted_at=0.0,
        finished_at=100.0,
        groups=(Group(name="main", nodes=2, gang_size=1),),
        triggered_at=5.0,
        occurrences=(
            Occurrence(
                number=1,
                status=RunStatus.DONE,
                reason=RunReason.ALL_JOBS_DONE,
                message=None,
                started_at=1.0,
                finished_at=2.0,
            ),
        ),
        policy=RunPolicy(schedule=("* * * * *",)),
    ),
    allocations=tuple(
        Allocation(
            id=id,
            run_id="r1",
            job_id="j1",
            node_id="n1",
            state=state,
            resources=Resources(),
            gpus=("GPU-1",),
            created_at=1.0,
            placement="rack-1",
        )
        for id, state in (("al0", AllocationState.RELEASED), ("al1", AllocationState.HELD))
    ),
    jobs=(
        Job(
            id="j1",
            group="main",
            replica=0,
            cookie=0,
            index=0,
            spec=JobSpec(image="busybox"),
            attempts=(
                Attempt(
                    id="a1",
                    job_id="j1",
                    number=0,
                    status=AttemptStatus.FAILED,
                    incarnation=Incarnation(number=2, id="i2"),
                    allocation_id="al1",
                    node_id="n1",
                    reason=Reason.CONTAINER_EXITED_WITH_ERROR,
                    message="exit code 7",
                    exit_code=7,
                    task=TaskDetails(
                        gpus=("GPU-1",), ports={"22": 4022}, ssh_host_key="ssh-ed25519 AAAA"
                    ),
                    submitted_at=0.0,
                    provisioned_at=1.0,
                    pulling_at=2.0,
                    running_at=3.0004,
                    finished_at=1767225600.0,
                    later_reasons=(Reason.PREEMPTED,),
                    rank=0,
                ),
            ),
        ),
    ),
)

GOLDEN: dict[str, Any] = {
    "id": "r1",
    "name": "wise-otter-1",
    "type": "task",
    "user": "ada",
    "status": "failed",
    "termination_reason": "job_failed",
    "message": "a sentence",
    "incarnation": {"number": 2, "id": "i2"},
    "gathering": None,
    "gives_up_at": None,
    "occurrence": 1,
    "next_triggered_at": "1970-01-01T00:01:00.000Z",
    "suspended": False,
    "parent_id": None,
    "deployment": 0,
    "switches": [
        {
            "reason": "job_failed",
            "attempt_id": "a0",
            "attempt_reason": None,
            "message": None,
            "at": "1970-01-01T00:00:01.500Z",
            "incarnation": 0,
            "whole": False,
        }
    ],
    "jobs": [
        {
            "id": "j1",
            "group": "main",
            "replica": 0,
            "cookie": 0,
            "index": 0,
            "rank": None,
            "status": "failed",
            "pending_reason": None,
            "attempts": [
                {
                    "id": "a1",
                    "status": "failed",
                    "termination_reason": "container_exited_with_error",
                    "message": "exit code 7",
                    "exit_code": 7,
                    "node": "n-one",
                    "allocation_id": "al1",
                    "incarnation": {"number": 2, "id": "i2"},
                    "gpus": ["GPU-1"],
                    "ports": {"22": 4022},
                    "ssh_host_key": "ssh-ed25519 AAAA",
                    "ready": False,
                    "registered_at": None,
                    "submitted_at": "1970-01-01T00:00:00.000Z",
                    "provisioned_at": "1970-01-01T00:00:01.000Z",
                    "pulling_at": "1970-01-01T00:00:02.000Z",
                    "running_at": "1970-01-01T00:00:03.000Z",
                    "finished_at": "2026-01-01T00:00:00.000Z",
                    "number": 0,
                    "occurrence": 1,
                    "rank": 0,
                    "later_reasons": ["preempted"],
                    "disconnected": False,
                    "cleanup_unknown": False,
                    "image_digest": None,
                    "container_started_at": None,
                    "interrupt_requested_at": None,
                    "terminating_at": None,
                    "state": "failed",
                    "outputs": {
                        "state": "none",
                        "count": 0,
                        "size": 0,
                        "left_out": 0,
                        "left_out_size": 0,
                        "received": None,
                        "total": None,
                    },
                    "deployment": 0,
                    "probes": [],
                    "drains_until": None,
                    "links": [],
                    "starts": None,
                }
            ],
            "abandoned": False,
            "scaled_down": False,
            "retry_at": None,
            "state": "failed",
            "deployment": 0,
            "not_ready": None,
        }
    ],
    "groups": [{"name": "main", "nodes": 2, "gang_size": 1, "share_nodes": False}],
    "allocations": [
        {
            "id": "al1",
            "job_id": "j1",
            "node": "n-one",
            "state": "held",
            "gpus": ["GPU-1"],
            "cpu": 1.0,
            "memory": 1 << 30,
            "whole_node": False,
            "placement": "rack-1",
            "monitoring_descriptor": None,
            "created_at": "1970-01-01T00:00:01.000Z",
            "released_at": None,
            "shm_size": None,
            "asked": {"cpu": 1.0, "memory": 1 << 30, "shm_size": None},
        }
    ],
    "occurrences": [
        {
            "number": 1,
            "status": "done",
            "termination_reason": "all_jobs_done",
            "message": None,
            "started_at": "1970-01-01T00:00:01.000Z",
            "finished_at": "1970-01-01T00:00:02.000Z",
        }
    ],
    "triggered_at": "1970-01-01T00:00:05.000Z",
    "schedule": ["* * * * *"],
    "children": [{"id": "r1", "name": "n", "status": "submitted"}],
    "priority": 50,
    "band": "interactive",
    "submitted_at": "1970-01-01T00:00:00.000Z",
    "finished_at": "1970-01-01T00:01:40.000Z",
    "configuration": {"commands": ["train"], "repos": [{"local_path": "."}]},
    "scales": [],
    "deployments": [],
    "dev_environment": None,
    "url": None,
    "after": [],
    "begins_at": None,
    "start_before": None,
    "sweep": None,
}


def waiting(retry_at: float | None = None) -> RunState:
    attempt = Attempt(
        id="a1", job_id="j1", number=0, status=AttemptStatus.SUBMITTED, submitted_at=0.0
    )
    job = msgspec.structs.replace(FULL.jobs[0], attempts=(attempt,), retry_at=retry_at)
    run = Run(
        id="r1",
        name="n",
        type=RunType.TASK,
        user="ada",
        status=RunStatus.SUBMITTED,
        submitted_at=0.0,
    )
    return RunState(run=run, jobs=(job,))


def test_inspect_shows_exactly_the_contract() -> None:
    shown = msgspec.json.encode(run_view(FULL, {"n1": "n-one"}, [waiting()]))
    assert msgspec.json.decode(shown) == GOLDEN


def test_an_unknown_value_is_null_or_empty_and_never_absent() -> None:
    shown = msgspec.json.decode(msgspec.json.encode(run_view(waiting(), {})))
    assert shown.keys() == GOLDEN.keys()
    assert shown["jobs"][0].keys() == GOLDEN["jobs"][0].keys()
    attempt = shown["jobs"][0]["attempts"][0]
    assert attempt.keys() == GOLDEN["jobs"][0]["attempts"][0].keys()
    assert (attempt["gpus"], attempt["ports"], attempt["node"]) == ([], {}, None)


def test_a_node_that_was_removed_is_shown_by_the_name_that_it_had() -> None:
    attempt = msgspec.structs.replace(FULL.jobs[0].attempts[0], node_name="n-one")
    job = msgspec.structs.replace(FULL.jobs[0], attempts=(attempt,))
    state = msgspec.structs.replace(FULL, jobs=(job,))
    assert run_view(state, {}).jobs[0].attempts[0].node == "n-one"
    assert run_summary(state, {}).nodes == ("n-one",)


def test_a_removed_node_whose_name_nobody_wrote_down_is_shown_by_its_id() -> None:
    assert run_view(FULL, {}).jobs[0].attempts[0].node == "n1"


def test_a_job_that_waits_for_its_next_attempt_is_pending_and_says_until_when() -> None:
    job = run_view(waiting(retry_at=60.0), {}).jobs[0]
    assert job.status == "pending"
    assert "1970-01-01T00:01:00.000Z" in (job.pending_reason or "")


def test_the_summary_names_nodes_and_exit_code() -> None:
    summary = run_summary(FULL, {"n1": "n-one"})
    assert (summary.nodes, summary.exit_code) == (("n-one",), 7)
    assert (summary.jobs, summary.jobs_running) == (1, 0)


@pytest.mark.parametrize(
    ("status", "nodes"), [(AttemptStatus.TERMINATING, ("n-one",)), (AttemptStatus.TERMINATED, ())]
)
def test_the_summary_names_the_node_of_a_job_that_is_scaled_down_until_it_is_gone(
    status: AttemptStatus, nodes: tuple[str, ...]
) -> None:
    attempt = msgspec.structs.replace(FULL.jobs[0].attempts[-1], status=status)
    job = msgspec.structs.replace(FULL.jobs[0], attempts=(attempt,), scaled_down=True)
    state = msgspec.structs.replace(FULL, jobs=(job,))
    assert run_summary(state, {"n1": "n-one"}).nodes == nodes


def test_a_suspended_run_has_no_next_trigger() -> None:
    run = msgspec.structs.replace(FULL.run, suspended=True)
    state = msgspec.structs.replace(FULL, run=run)
    assert run_view(state, {}).next_triggered_at is None
    assert run_summary(state, {}).next_triggered_at is None


def test_times_are_rounded_to_milliseconds() -> None:
    assert iso(0.9996) == "1970-01-01T00:00:01.000Z"


@given(st.floats(0, 4_000_000_000))
def test_a_time_reads_as_python_writes_it(time: float) -> None:
    moment = datetime.fromtimestamp(round(time, 3), UTC)
    assert iso(time) == moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
