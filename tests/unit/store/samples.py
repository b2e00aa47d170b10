"""Runs with something in every field, so that a field that is lost on the way is noticed."""

from __future__ import annotations

import msgspec

from controller.lifecycle.events import Event, EventKind
from controller.lifecycle.model import (
    Allocation,
    Attempt,
    Band,
    GpuNeed,
    Incarnation,
    Job,
    JobSpec,
    LimitPause,
    Node,
    NodeAddress,
    NodeCapacity,
    NodeGpu,
    NodeStatus,
    Resources,
    RetryEvent,
    RetryPolicy,
    Run,
    RunPolicy,
    RunState,
    RunType,
    Seen,
    Serving,
    StopCriteria,
    Sweep,
    SweepContent,
    Switch,
    TaskDetails,
)
from controller.lifecycle.pending_reasons import NoNodeConnected
from controller.store.base import Changes
from fairlead.model.job_links import JobLink, LinkKind
from fairlead.model.reasons import Reason, RunReason
from fairlead.model.starts import StartEnd, Starts, Watcher
from fairlead.model.statuses import AllocationState, AttemptStatus, RunStatus
from fairlead.model.sweep import ParameterSets
from fairlead.wire.shim import PullPolicy, RegistryAuth

SECRET = "hunter2-is-secret"
RESOURCES = Resources(
    cpu=2.5,
    memory=8_000_000_000,
    disk=5,
    shm_size=64 << 20,
    gpu=GpuNeed(count=2, names=("A100",), min_memory=80, min_compute_capability="8.0"),
)


def a_run(
    run_id: str = "run1",
    *,
    name: str = "wise-otter-1",
    user: str = "ada",
    status: RunStatus = RunStatus.RUNNING,
    submitted_at: float = 100.25,
    client_key: str | None = None,
) -> RunState:
    """One job with a finished and a running attempt, and the place of each."""
    job_id = f"{run_id}-job"
    places = (
        a_place(run_id, "1", state=AllocationState.RELEASED, released_at=150.0),
        a_place(run_id, "2", state=AllocationState.HELD),
    )
    attempts = (
        an_attempt(run_id, 0, status=AttemptStatus.FAILED, finished_at=150.0),
        an_attempt(run_id, 1, status=AttemptStatus.RUNNING),
    )
    return RunState(
        run=Run(
            id=run_id,
            name=name,
            type=RunType.TASK,
            user=user,
            status=status,
            reason=RunReason.JOB_FAILED,
            message="a message with ünicode and 'quotes'",
            occurrence=2,
            incarnation=Incarnation(number=3, id="inc"),
            switches=(Switch(reason="job_failed", attempt_id="a", message=None, at=1.5),),
            next_triggered_at=7.0,
            suspended=True,
            parent_id="parent",
            deployment=4,
            policy=RunPolicy(
                retry=RetryPolicy(
                    on_events=frozenset({RetryEvent.ERROR}), duration=5.0, max_failures=2
                ),
                stop_duration=1.0,
                stop_criteria=StopCriteria.MASTER_DONE,
                schedule=("* * * * *",),
                band=Band.BATCH,
            ),
            configuration={"type": "task", "env": {"A": "***"}, "commands": ["a", "b"]},
            client_key=client_key,
            submitted_at=submitted_at,
            finished_at=200.0,
            version=9,
        ),
        jobs=(a_job(job_id, attempts),),
        allocations=places,
    )


def a_job(job_id: str, attempts: tuple[Attempt, ...]) -> Job:
    return Job(
        id=job_id,
        group="main",
        replica=1,
        cookie=2,
        index=3,
        rank=4,
        spec=JobSpec(
            image="busybox",
            commands=("echo a", "echo b"),
            entrypoint=("a", "b"),
            shell="/bin/sh",
            env={"A": "b"},
            working_dir="/w",
            user="1000:1000",
            stop_signal="SIGINT",
            pull_policy=PullPolicy.ALWAYS,
            registry_auth=RegistryAuth(username="u", password="p"),
            resources=RESOURCES,
        ),
        abandoned=True,
        attempts=attempts,
        retry_at=12.0,
    )


def an_attempt(
    run_id: str, number: int, *, status: AttemptStatus, finished_at: float | None = None
) -> Attempt:
    return Attempt(
        id=f"{run_id}-attempt-{number}",
        job_id=f"{run_id}-job",
        number=number,
        status=status,
        occurrence=2,
        incarnation=Incarnation(number=1, id="inc"),
        rank=0,
        allocation_id=f"{run_id}-place-{number + 1}",
        node_id="node1",
        reason=Reason.CONTAINER_EXITED_WITH_ERROR,
        message="exited with 7",
        later_reasons=(Reason.TERMINATED_BY_USER,),
        pending_reason=NoNodeConnected(),
        exit_code=7,
        remove_at=1.0,
        starts=Starts(
            asked=3,
            begun=2,
            refused="no git",
            ended=StartEnd(
                number=2,
                at=104.5,
                reason=Reason.CONTAINER_EXITED_WITH_ERROR,
                message="the job ended with exit code 7",
                exit_code=7,
            ),
            watchers=(Watcher(id="here", until=164.5), Watcher(id="there", until=150.0)),
        ),
        links=(JobLink(kind=LinkKind.WANDB, url="https://wandb.ai/a/b/runs/c"),),
        disconnected=True,
        cleanup_unknown=True,
        task=TaskDetails(
            gpus=("GPU-1",),
            ports={"ssh": 40022},
            ssh_host_key="ssh-ed25519 AAAA",
            address="172.30.252.2",
            runner_socket="/run/x.sock",
        ),
        seen=Seen(
            container_started=True,
            container_started_at=103.0,
            runner_exited=True,
            container_gone=True,
            logs_complete=True,
            task_removed=True,
        ),
        serving=Serving(ready=True, registered_at=1.0),
        submitted_at=100.0,
        provisioned_at=101.0,
        pulling_at=102.0,
        running_at=104.0,
        terminating_at=105.0,
        finished_at=finished_at,
        limit_pause=LimitPause(since=1.0, total=2.0),
    )


def a_place(
    run_id: str, name: str, *, state: AllocationState, released_at: float | None = None
) -> Allocation:
    return Allocation(
        id=f"{run_id}-place-{name}",
        run_id=run_id,
        job_id=f"{run_id}-job",
        node_id="node1",
        state=state,
        resources=RESOURCES,
        gpus=("GPU-1", "GPU-2"),
        created_at=100.0,
        released_at=released_at,
        monitoring_descriptor="m",
    )


def a_node(node_id: str = "node1", *, name: str = "n1") -> Node:
    return Node(
        id=node_id,
        name=name,
        fleet="f",
        address=NodeAddress(
            shim_socket="/run/shim.sock",
            host="10.0.0.1",
            port=2222,
            user="tunnel",
            host_key="ssh-ed25519 AAAA",
        ),
        attributes={"zone": "a"},
        status=NodeStatus.CONNECTED,
        draining=True,
        drain_reason="d",
        boot_id="b",
        install_id="i",
        capacity=NodeCapacity(
            cpu=4.0,
            memory=5,
            disk=6,
            gpus=(NodeGpu(uuid="GPU-1", name="A100", memory=80, compute_capability="8.0"),),
            engine="docker",
            isolation=False,
            addresses=("10.0.0.1",),
        ),
        message="m",
        created_at=1.0,
        last_seen_at=2.0,
    )


def an_event(run_id: str = "run1", cause: str = "submitted", attempt_id: str | None = "a") -> Event:
    return Event(
        run_id=run_id,
        job_id="j",
        attempt_id=attempt_id,
        at=100.5,
        kind=EventKind.ATTEMPT,
        from_status="submitted",
        to_status="provisioning",
        reason="r",
        message="m",
        cause=cause,
    )


def submission(*states: RunState) -> Changes:
    return Changes(runs={state.run.id: (None, state) for state in states})


def change(old: RunState, new: RunState) -> Changes:
    return Changes(runs={new.run.id: (old, new)})


def with_status(state: RunState, status: RunStatus) -> RunState:
    run = msgspec.structs.replace(state.run, status=status, version=state.run.version + 1)
    return msgspec.structs.replace(state, run=run)


def with_history(state: RunState, attempts: int, *, day: float = 86400.0) -> RunState:
    """Its job had so many attempts, one a day, each an occurrence with a place and an end of its
    own; the last one runs."""
    run_id, last = state.run.id, attempts - 1
    made = [
        msgspec.structs.replace(
            an_attempt(run_id, n, status=AttemptStatus.FAILED, finished_at=n * day + 9.0),
            occurrence=n + 1,
            submitted_at=n * day,
            cleanup_unknown=False,
        )
        for n in range(last)
    ]
    live = msgspec.structs.replace(
        an_attempt(run_id, last, status=AttemptStatus.RUNNING),
        occurrence=attempts,
        submitted_at=last * day,
    )
    places = [
        a_place(run_id, str(n + 1), state=AllocationState.RELEASED, released_at=n * day + 9.0)
        for n in range(last)
    ]
    held = a_place(run_id, str(attempts), state=AllocationState.HELD)
    return msgspec.structs.replace(
        state,
        run=msgspec.structs.replace(state.run, occurrence=attempts, finished_at=None),
        jobs=(msgspec.structs.replace(state.jobs[0], attempts=(*made, live)),),
        allocations=(*places, held),
    )


def with_secret(run: RunState, secret: str = SECRET) -> RunState:
    spec = msgspec.structs.replace(run.jobs[0].spec, secrets={"S": secret})
    job = msgspec.structs.replace(run.jobs[0], spec=spec)
    return msgspec.structs.replace(run, jobs=(job, *run.jobs[1:]))


def a_sweep(run_id: str = "r") -> RunState:
    """Two parameter sets, of which the first has begun."""
    spec = JobSpec(image="busybox", env={"KEY": "value"})
    state = a_run(run_id)
    job = msgspec.structs.replace(
        state.jobs[0],
        id=f"{run_id}-j",
        group="main",
        replica=0,
        cookie=0,
        index=0,
        spec=spec,
        attempts=(),
    )
    return msgspec.structs.replace(
        state,
        run=msgspec.structs.replace(
            state.run,
            status=RunStatus.RUNNING,
            sweep=Sweep(total=2, begun=1, again=(0,), stopped=((1, 1),), max_parallel=1),
        ),
        jobs=(job,),
        allocations=(),
        sweep=SweepContent(sets=ParameterSets.of(["lr"], [[0.1], ["ä\u2028"]]), spec=spec),
    )
