"""Each performer against a node that behaves, and against one that does not."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller.blobs import BlobStore
from controller.lifecycle import reports
from controller.lifecycle.model import Node, RunState, SignalledEnd
from controller.pipelines import from_node, to_node
from controller.pipelines.performers import job_running
from controller.pipelines.performers.job_running import (
    JobSignaller,
    JobStarter,
    RunnerFollower,
    TaskSubmitter,
)
from controller.pipelines.performers.job_terminating import (
    LAST_MOMENT,
    AllocationReleaser,
    JobStopper,
    TaskRemover,
    TaskTerminator,
)
from controller.pipelines.to_node import RetryLater
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AttemptStatus
from fairlead.wire.engine_abilities import EngineAbility
from fairlead.wire.job import EndSignal
from fairlead.wire.node import GpuInfo, HostNetwork
from fairlead.wire.runner import ExitRecord, RunnerState, SignalRequest, StatusEvent
from fairlead.wire.shim import Fence, RegistryAuth, TaskStatus
from runner.client import SILENCE, RunnerError, RunnerUnavailable
from shim.client import ShimError, ShimUnavailable
from tests.doubles.clock import NOW, ManualClock
from tests.doubles.node import FakeConnection, status
from tests.doubles.secrets import NO_SECRETS, GivenSecrets
from tests.doubles.shim import node_info
from tests.support.waiting import eventually
from tests.unit.pipelines.parts import (
    ALONE,
    SOCKET,
    NotedPipeline,
    a_node,
    attempt_of,
    context_of,
    placed,
    task_of,
)

FENCE = Fence(1, 7)
NO_BLOBS = BlobStore(Path("/nonexistent"))
CONFLICT = ShimError("conflict", "another body", 409)
BROKEN = ShimError("bad_answer", "status 500", 500)
EXIT = ExitRecord(reason="done_by_runner", exit_code=0, finished_at=NOW, log_end=30)


# -- submit ------------------------------------------------------------------------------------


async def test_the_shim_gets_the_task_with_fence_place_and_image(node: FakeConnection) -> None:
    state = placed(AttemptStatus.PROVISIONING)
    pipeline = NotedPipeline()
    await TaskSubmitter(pipeline, FENCE, ALONE, NO_SECRETS)(context_of(state), node)
    (request,) = node.shim.requests
    assert (request.run_id, request.allocation_id) == (state.run.id, state.allocations[0].id)
    assert (request.image, node.shim.fences) == ("busybox", [(FENCE, 0)])
    assert isinstance(pipeline.posted[0], reports.TaskAccepted)


@pytest.mark.parametrize(
    "refusal",
    [
        ShimError("no_capacity", "full", 409),
        ShimError("draining", "draining", 409),
        ShimError("fenced", "older", 409),
        BROKEN,
    ],
)
async def test_a_refusal_that_can_pass_is_tried_again(
    node: FakeConnection, refusal: ShimError
) -> None:
    pipeline = NotedPipeline()
    node.shim.refusal = refusal
    with pytest.raises(RetryLater, match=refusal.message):
        await TaskSubmitter(pipeline, FENCE, ALONE, NO_SECRETS)(
            context_of(placed(AttemptStatus.PROVISIONING)), node
        )
    assert pipeline.posted == []


async def test_a_refusal_for_good_is_reported_with_the_shims_words(node: FakeConnection) -> None:
    pipeline = NotedPipeline()
    node.shim.refusal = CONFLICT
    await TaskSubmitter(pipeline, FENCE, ALONE, NO_SECRETS)(
        context_of(placed(AttemptStatus.PROVISIONING)), node
    )
    (refused,) = pipeline.posted
    assert isinstance(refused, reports.TaskRefused)
    assert (refused.reason, refused.message) == (Reason.CREATING_CONTAINER_ERROR, "another body")


@pytest.mark.parametrize(
    ("recalled_at", "reason"),
    [(None, Reason.NODE_DRAINED), (1_750_000_030.0, Reason.INTERRUPTED_BY_NO_CAPACITY)],
)
async def test_a_job_that_a_drained_node_no_longer_takes_loses_its_place(
    node: FakeConnection, recalled_at: float | None, reason: Reason
) -> None:
    pipeline = NotedPipeline()
    pipeline.nodes["n1"] = a_node(draining=True, recalled_at=recalled_at)
    node.shim.refusal = ShimError("draining", "the node is draining", 409)
    await TaskSubmitter(pipeline, FENCE, ALONE, NO_SECRETS)(
        context_of(placed(AttemptStatus.PROVISIONING)), node
    )
    (refused,) = pipeline.posted
    assert isinstance(refused, reports.TaskRefused)
    assert (refused.reason, refused.message) == (reason, "the node is draining")


def a_gpu(*, healthy: bool, held: bool = False) -> GpuInfo:
    return GpuInfo(uuid="G", index=0, name="H200", memory=1 << 30, healthy=healthy, held=held)


NOT_OFFERED = ShimError("no_capacity", "gpu: G (not offered)", 409, "resources.gpu.uuids")


async def test_a_job_whose_gpu_broke_before_its_node_took_it_loses_its_place(
    node: FakeConnection,
) -> None:
    """Its node was silent when the GPU was given to it, and says only now that it is broken."""
    pipeline = NotedPipeline()
    node.shim.refusal = NOT_OFFERED
    node.shim.info = msgspec.structs.replace(node.shim.info, gpus=(a_gpu(healthy=False),))
    state = placed(AttemptStatus.PROVISIONING, gpus=("G",))
    await TaskSubmitter(pipeline, FENCE, ALONE, NO_SECRETS)(context_of(state), node)
    (refused,) = pipeline.posted
    assert isinstance(refused, reports.TaskRefused)
    assert (refused.reason, refused.message) == (Reason.GPU_UNHEALTHY, "gpu: G (not offered)")


async def test_a_job_whose_gpu_was_split_anew_before_its_node_took_it_loses_its_place(
    node: FakeConnection,
) -> None:
    pipeline = NotedPipeline()
    node.shim.refusal = ShimError("no_capacity", "gpu: G (not on this node)", 409)
    state = placed(AttemptStatus.PROVISIONING, gpus=("G",))
    await TaskSubmitter(pipeline, FENCE, ALONE, NO_SECRETS)(context_of(state), node)
    (refused,) = pipeline.posted
    assert isinstance(refused, reports.TaskRefused)
    assert (refused.reason, refused.message) == (Reason.GPU_UNHEALTHY, "gpu: G (not on this node)")


@pytest.mark.parametrize("code", ["no_host_network", "engine_lacks"])
async def test_a_job_whose_node_cannot_give_what_it_needs_any_more_loses_its_place(
    node: FakeConnection, code: str
) -> None:
    """Its operator said so, or took another engine, after the place was given."""
    pipeline = NotedPipeline()
    node.shim.refusal = ShimError(code, "(--host-network never)", 409)
    await TaskSubmitter(pipeline, FENCE, ALONE, NO_SECRETS)(
        context_of(placed(AttemptStatus.PROVISIONING)), node
    )
    (refused,) = pipeline.posted
    assert isinstance(refused, reports.TaskRefused)
    assert (refused.reason, refused.message) == (
        Reason.INSTANCE_UNREACHABLE,
        "(--host-network never)",
    )


FULL = ShimError("no_network", "all 2 networks for runs are in use", 409)


def with_networks(count: int) -> Node:
    node = a_node()
    return msgspec.structs.replace(
        node, capacity=msgspec.structs.replace(node.capacity, networks=count)
    )


async def test_a_job_whose_node_has_room_for_fewer_networks_now_loses_its_place(
    node: FakeConnection,
) -> None:
    """Other networks of its engine have taken the addresses meanwhile."""
    pipeline = NotedPipeline()
    pipeline.nodes["n1"] = with_networks(3)
    node.shim.refusal = FULL
    node.shim.info = msgspec.structs.replace(node.shim.info, networks=2)
    await TaskSubmitter(pipeline, FENCE, ALONE, NO_SECRETS)(
        context_of(placed(AttemptStatus.PROVISIONING)), node
    )
    (refused,) = pipeline.posted
    assert isinstance(refused, reports.TaskRefused)
    assert (refused.reason, refused.message) == (Reason.INTERRUPTED_BY_NO_CAPACITY, FULL.message)


async def test_a_network_that_a_stale_task_still_has_is_waited_for(node: FakeConnection) -> None:
    pipeline = NotedPipeline()
    pipeline.nodes["n1"] = with_networks(2)
    node.shim.refusal = FULL
    node.shim.info = msgspec.structs.replace(node.shim.info, networks=2)
    with pytest.raises(RetryLater, match="all 2 networks"):
        await TaskSubmitter(pipeline, FENCE, ALONE, NO_SECRETS)(
            context_of(placed(AttemptStatus.PROVISIONING)), node
        )
    assert pipeline.posted == []


@pytest.mark.parametrize("reached", [False, True])
def test_the_node_is_told_whether_peers_reach_the_job_at_its_address(reached: bool) -> None:
    state = placed(AttemptStatus.PROVISIONING)
    (place,) = state.allocations
    resources = msgspec.structs.replace(place.resources, host_network=reached)
    place = msgspec.structs.replace(place, resources=resources)
    state = msgspec.structs.replace(state, allocations=(place,))
    assert to_node.task_request(context_of(state)).needs_host_network is reached


def test_the_node_is_told_what_the_job_needs_of_its_engine() -> None:
    state = placed(AttemptStatus.PROVISIONING)
    (place,) = state.allocations
    resources = msgspec.structs.replace(place.resources, engine=(EngineAbility.VOLUMES,))
    place = msgspec.structs.replace(place, resources=resources)
    state = msgspec.structs.replace(state, allocations=(place,))
    assert to_node.task_request(context_of(state)).needs_of_engine == ("volumes",)


@pytest.mark.parametrize(
    ("said", "isolation", "lacks"),
    [
        ((), True, (EngineAbility.SIGNAL,)),
        (
            ("volumes", "of a later shim"),
            True,
            (EngineAbility.VOLUMES, EngineAbility.SIGNAL),
        ),
        (None, True, (EngineAbility.SIGNAL,)),
        (None, False, tuple(EngineAbility)),
    ],
)
def test_what_a_nodes_engine_cannot_do_is_known(
    said: tuple[str, ...] | None, isolation: bool, lacks: tuple[EngineAbility, ...]
) -> None:
    """An older shim says nothing; without isolation it is the process engine."""
    info = node_info(engine_lacks=said, abilities=(), isolation=isolation)
    assert from_node.capacity(info).engine_lacks == lacks


def test_a_later_ability_is_there_where_the_shim_says_so() -> None:
    info = node_info(engine_lacks=("images",), abilities=("signal", "of a later shim"))
    assert from_node.capacity(info).engine_lacks == (EngineAbility.IMAGES,)


@pytest.mark.parametrize(
    ("kind", "why"), [("agent", None), ("docker", "no nft"), (None, None), ("a later kind", None)]
)
def test_who_connects_containers_is_known_where_the_shim_tells(
    kind: str | None, why: str | None
) -> None:
    capacity = from_node.capacity(node_info(network_kind=kind, network_why=why))
    assert (capacity.network_kind, capacity.network_why) == (kind, why)


@pytest.mark.parametrize(("said", "has"), [(True, True), (False, False), (None, True)])
def test_infiniband_that_an_older_shim_does_not_tell_counts_as_there(
    said: bool | None, has: bool
) -> None:
    assert from_node.capacity(node_info(infiniband=said)).infiniband is has


@pytest.mark.parametrize("said", list(HostNetwork))
def test_a_nodes_answer_about_its_network_is_known(said: HostNetwork) -> None:
    known = from_node.capacity(node_info(host_network=said)).host_network
    assert known is (said is HostNetwork.WHOLE_NODE)


async def test_a_job_waits_for_a_gpu_whose_memory_is_still_being_freed(
    node: FakeConnection,
) -> None:
    pipeline = NotedPipeline()
    node.shim.refusal = NOT_OFFERED
    info = msgspec.structs.replace(node.shim.info, gpus=(a_gpu(healthy=True, held=True),))
    node.shim.info = info
    state = placed(AttemptStatus.PROVISIONING, gpus=("G",))
    with pytest.raises(RetryLater, match="not offered"):
        await TaskSubmitter(pipeline, FENCE, ALONE, NO_SECRETS)(context_of(state), node)
    assert pipeline.posted == []


def test_credentials_reach_the_request_and_no_text_of_it() -> None:
    state = placed(AttemptStatus.PROVISIONING)
    job = state.jobs[0]
    auth = RegistryAuth(username="ann", password="hunter2")
    spec = msgspec.structs.replace(job.spec, registry_auth=auth)
    state = msgspec.structs.replace(state, jobs=(msgspec.structs.replace(job, spec=spec),))
    request = to_node.task_request(context_of(state))
    assert request.registry_auth is not None
    assert request.registry_auth.password == "hunter2"
    assert "hunter2" not in repr(request) + repr(state)


def naming_secrets(status: AttemptStatus) -> RunState:
    state = placed(status)
    job = state.jobs[0]
    auth = RegistryAuth(username="ann", password="${{ secrets.PULL }}")
    env = {"PLAIN": "1", "TOKEN": "${{ secrets.HF }}"}
    spec = msgspec.structs.replace(job.spec, registry_auth=auth, env=env)
    return msgspec.structs.replace(state, jobs=(msgspec.structs.replace(job, spec=spec),))


STORED = {"PULL": "hunter2", "HF": "canary", "UNUSED": "unused"}


async def test_stored_secrets_reach_the_pull_and_the_job_that_name_them(
    node: FakeConnection,
) -> None:
    secrets, pipeline = GivenSecrets(STORED), NotedPipeline()
    state = naming_secrets(AttemptStatus.PROVISIONING)
    await TaskSubmitter(pipeline, FENCE, ALONE, secrets)(context_of(state), node)
    (sent,) = node.shim.requests
    assert sent.registry_auth is not None
    assert sent.registry_auth.password == "hunter2"
    assert b"canary" not in msgspec.json.encode(sent)
    state = naming_secrets(AttemptStatus.PULLING)
    await JobStarter(pipeline, ManualClock(), NO_BLOBS, ALONE, secrets)(context_of(state), node)
    (request,) = node.the_runner.submitted
    assert (request.job.env, request.secrets) == ({"PLAIN": "1"}, {"TOKEN": "canary"})
    assert "canary" in request.masked
    assert b"unused" not in msgspec.json.encode(request)
    assert "canary" not in repr(pipeline.posted) + repr(request)


async def test_a_secret_that_was_deleted_ends_the_start_with_its_name(node: FakeConnection) -> None:
    secrets, pipeline = GivenSecrets({"PULL": "hunter2"}), NotedPipeline()
    state = naming_secrets(AttemptStatus.PROVISIONING)
    await TaskSubmitter(pipeline, FENCE, ALONE, secrets)(context_of(state), node)
    state = naming_secrets(AttemptStatus.PULLING)
    await JobStarter(pipeline, ManualClock(), NO_BLOBS, ALONE, secrets)(context_of(state), node)
    refused, exited = pipeline.posted
    assert isinstance(refused, reports.TaskRefused)
    assert isinstance(exited, reports.RunnerExited)
    assert refused.reason is exited.reason is Reason.SECRET_MISSING
    assert "there is no secret HF" in refused.message
    assert (node.shim.requests, node.the_runner.submitted) == ([], [])


# -- start -------------------------------------------------------------------------------------


async def test_the_runner_gets_the_job_and_is_started(node: FakeConnection) -> None:
    state = placed(AttemptStatus.PULLING)
    pipeline = NotedPipeline()
    await JobStarter(pipeline, ManualClock(), NO_BLOBS, ALONE, NO_SECRETS)(context_of(state), node)
    assert node.the_runner.asked == ["start"]
    (request,) = node.the_runner.submitted
    assert (request.job.run_name, request.job.commands) == ("hello", ("true",))
    assert (request.job.job_count, request.job.attempt_id) == (1, attempt_of(state).id)
    (started,) = pipeline.posted
    assert isinstance(started, reports.RunnerStarted)
    assert started.at == NOW


async def test_a_runner_is_not_asked_before_its_shim_says_that_it_listens(
    node: FakeConnection,
) -> None:
    state = placed(AttemptStatus.PULLING)
    info = task_of(state, runner_listens=False)
    node.runners.note(info)
    node.the_runner.failures = [RunnerUnavailable("asked too early")]
    starter = JobStarter(NotedPipeline(), ManualClock(), NO_BLOBS, ALONE, NO_SECRETS)
    start = asyncio.create_task(starter(context_of(state), node))
    await asyncio.sleep(0)
    node.the_runner.failures.clear()
    node.runners.note(msgspec.structs.replace(info, runner_listens=True))
    await start
    assert node.the_runner.asked == ["start"]


async def test_a_start_ends_its_wait_with_the_connection(node: FakeConnection) -> None:
    state = placed(AttemptStatus.PULLING)
    node.runners.note(task_of(state, runner_listens=False))
    node.runners.close()
    starter = JobStarter(NotedPipeline(), ManualClock(), NO_BLOBS, ALONE, NO_SECRETS)
    with pytest.raises(RetryLater, match="the connection to the node was lost"):
        await starter(context_of(state), node)
    assert node.the_runner.asked == []


async def test_a_runner_of_an_older_shim_is_asked_until_it_listens(
    node: FakeConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_running, "START_PAUSE_SECONDS", 0.0)
    node.the_runner.failures = [RunnerUnavailable("not yet")] * 5
    pipeline = NotedPipeline()
    await JobStarter(pipeline, ManualClock(), NO_BLOBS, ALONE, NO_SECRETS)(
        context_of(placed(AttemptStatus.PULLING)), node
    )
    assert isinstance(pipeline.posted[0], reports.RunnerStarted)


async def test_a_runner_that_never_listens_is_unavailable(
    node: FakeConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_running, "START_PAUSE_SECONDS", 0.0)
    node.the_runner.failures = [RunnerUnavailable("never")] * 1000
    pipeline = NotedPipeline()
    with pytest.raises(RunnerUnavailable, match="never"):
        await JobStarter(pipeline, ManualClock(), NO_BLOBS, ALONE, NO_SECRETS)(
            context_of(placed(AttemptStatus.PULLING)), node
        )
    assert pipeline.posted == []


async def test_a_runner_that_refuses_the_job_ends_it(node: FakeConnection) -> None:
    node.the_runner.failures = [RunnerError("bad_user", "no user ann", 422)]
    pipeline = NotedPipeline()
    await JobStarter(pipeline, ManualClock(), NO_BLOBS, ALONE, NO_SECRETS)(
        context_of(placed(AttemptStatus.PULLING)), node
    )
    (exited,) = pipeline.posted
    assert isinstance(exited, reports.RunnerExited)
    assert exited.reason is Reason.EXECUTOR_ERROR
    assert "no user ann" in (exited.message or "")


async def test_a_runner_that_stumbles_is_tried_again(node: FakeConnection) -> None:
    node.the_runner.failures = [RunnerError("bad_answer", "HTTP status 500", 500)]
    pipeline = NotedPipeline()
    with pytest.raises(RetryLater):
        await JobStarter(pipeline, ManualClock(), NO_BLOBS, ALONE, NO_SECRETS)(
            context_of(placed(AttemptStatus.PULLING)), node
        )
    assert pipeline.posted == []


async def test_nobody_connects_to_a_runner_whose_socket_is_not_known(node: FakeConnection) -> None:
    context = context_of(placed(AttemptStatus.PULLING, runner_socket=None))
    with pytest.raises(RetryLater, match="no runner yet"):
        await JobStarter(NotedPipeline(), ManualClock(), NO_BLOBS, ALONE, NO_SECRETS)(context, node)
    assert node.the_runner.asked == []


# -- follow ------------------------------------------------------------------------------------


async def test_the_runners_exit_is_reported_once(node: FakeConnection) -> None:
    node.the_runner.statuses = [
        status(RunnerState.RUNNING),
        status(RunnerState.SERVING_LOGS, EXIT),
        status(RunnerState.SERVING_LOGS, EXIT),
    ]
    pipeline = NotedPipeline()
    await RunnerFollower(pipeline, ManualClock())(context_of(placed(AttemptStatus.RUNNING)), node)
    (exited,) = pipeline.posted
    assert isinstance(exited, reports.RunnerExited)
    assert (exited.reason, exited.exit_code) == (Reason.DONE_BY_RUNNER, 0)


async def test_the_shim_judges_an_attempt_whose_container_is_being_stopped(
    node: FakeConnection,
) -> None:
    """An engine that ends is no failure of the job; a stop that was asked for has its reason."""
    stopped = msgspec.structs.replace(
        EXIT, reason="container_exited_with_error", exit_code=143, container_stopped=True
    )
    node.the_runner.statuses = [status(RunnerState.SERVING_LOGS, stopped)]
    pipeline = NotedPipeline()
    follow = RunnerFollower(pipeline, ManualClock())
    with pytest.raises(RetryLater, match="the shim's events say why"):
        await follow(context_of(placed(AttemptStatus.RUNNING)), node)
    assert pipeline.posted == []
    await follow(
        context_of(placed(AttemptStatus.TERMINATING, reason=Reason.TERMINATED_BY_USER)), node
    )
    assert [type(report) for report in pipeline.posted] == [reports.RunnerExited]


def test_an_exit_record_with_a_reason_of_the_jobs_invention_is_an_executor_error() -> None:
    forged = msgspec.structs.replace(EXIT, reason="preempted_by_me", message="x" * 5000)
    report = from_node.runner_exited("r", "a", forged)
    assert report.reason is Reason.EXECUTOR_ERROR
    assert len(report.message or "") == from_node.MAX_MESSAGE
    assert (report.message or "").endswith("xxx… (cut: 5000 characters)")
    assert from_node.exit_report("r", "a", "{damaged") is None


@pytest.mark.parametrize("exit_code", [10**40, 1 << 31, 256, -1])
def test_an_exit_code_that_no_process_has_is_not_taken_over(exit_code: int) -> None:
    report = from_node.runner_exited("r", "a", msgspec.structs.replace(EXIT, exit_code=exit_code))
    assert (report.reason, report.exit_code) == (Reason.EXECUTOR_ERROR, None)
    assert report.message == "the exit record gives an impossible exit code"


@pytest.mark.parametrize("text", ["[" * 50_000, '{"x":' + "[" * 50_000, '"\ud800"'])
def test_an_exit_record_that_nobody_can_decode_is_none(text: str) -> None:
    assert from_node.exit_report("r", "a", text) is None


async def test_a_status_stream_that_ends_too_early_is_followed_again(node: FakeConnection) -> None:
    node.the_runner.statuses = [status(RunnerState.RUNNING)]
    with pytest.raises(RetryLater, match="before the job did"):
        await RunnerFollower(NotedPipeline(), ManualClock())(
            context_of(placed(AttemptStatus.RUNNING)), node
        )


async def test_a_runner_silent_for_its_limit_beside_a_healthy_shim_is_reported(
    node: FakeConnection,
) -> None:
    state = placed(AttemptStatus.RUNNING)
    clock, pipeline = ManualClock(), NotedPipeline()
    follow = RunnerFollower(pipeline, clock)
    node.the_runner.statuses = [RunnerUnavailable("gone")]
    for seconds in (0.0, state.run.policy.limits.waiting_runner - 1):
        clock.time = NOW + seconds
        with pytest.raises(RunnerUnavailable):
            await follow(context_of(state), node)
    assert pipeline.posted == []
    clock.time = NOW + state.run.policy.limits.waiting_runner
    with pytest.raises(RunnerUnavailable):
        await follow(context_of(state), node)
    assert [type(report) for report in pipeline.posted] == [reports.RunnerSilent]


class LastWord:
    """A runner that says one thing more; `after` seconds later its stream counts as lost."""

    def __init__(self, clock: ManualClock, after: float) -> None:
        self._clock = clock
        self._after = after

    async def status_events(self, after: int = 0) -> AsyncIterator[StatusEvent]:
        yield status(RunnerState.RUNNING)
        self._clock.time += self._after
        raise RunnerUnavailable("silent")


@pytest.mark.parametrize(
    ("passed", "left"),
    [(SILENCE, 300.0 - SILENCE), (10_000.0, 300.0 - SILENCE), (10.0, 290.0)],
    ids=["silent stream", "controller was paused", "connection closed"],
)
async def test_the_silence_of_a_runner_counts_from_its_last_word(
    node: FakeConnection, monkeypatch: pytest.MonkeyPatch, passed: float, left: float
) -> None:
    state = placed(AttemptStatus.RUNNING)
    assert state.run.policy.limits.waiting_runner == 300.0
    clock, pipeline = ManualClock(), NotedPipeline()
    follow = RunnerFollower(pipeline, clock)
    spoke = LastWord(clock, passed)
    monkeypatch.setattr(node, "runner", lambda path: spoke)
    with pytest.raises(RunnerUnavailable):
        await follow(context_of(state), node)
    monkeypatch.undo()
    node.the_runner.statuses = [RunnerUnavailable("gone")]
    for seconds in (left - 1, 1):
        assert pipeline.posted == []
        clock.time += seconds
        with pytest.raises(RunnerUnavailable):
            await follow(context_of(state), node)
    assert [type(report) for report in pipeline.posted] == [reports.RunnerSilent]


async def test_the_time_without_a_connection_is_no_silence_of_the_runner(
    node: FakeConnection,
) -> None:
    state = placed(AttemptStatus.RUNNING)
    clock, pipeline = ManualClock(), NotedPipeline()
    follow = RunnerFollower(pipeline, clock)
    for connection in (node, FakeConnection()):
        connection.the_runner.statuses = [RunnerUnavailable("cut")]
        with pytest.raises(RunnerUnavailable):
            await follow(context_of(state), connection)
        clock.time += 10_000
    assert pipeline.posted == []


async def test_a_runner_that_spoke_begins_its_silence_anew(node: FakeConnection) -> None:
    state = placed(AttemptStatus.RUNNING)
    clock, pipeline = ManualClock(), NotedPipeline()
    follow = RunnerFollower(pipeline, clock)
    node.the_runner.statuses = [status(RunnerState.RUNNING), RunnerUnavailable("cut")]
    for _ in range(3):
        with pytest.raises(RunnerUnavailable):
            await follow(context_of(state), node)
        clock.time += 200
    assert pipeline.posted == []


# -- end ---------------------------------------------------------------------------------------


async def test_the_job_is_stopped_with_the_grace_that_is_left(node: FakeConnection) -> None:
    clock = ManualClock(NOW + 4)
    stop = JobStopper(NotedPipeline(), clock)
    context = context_of(placed(AttemptStatus.TERMINATING, remove_at=NOW + 304))
    for moment in (NOW + 4, NOW + 299, NOW + 360):
        clock.time = moment
        await stop(context, node)
    assert node.the_runner.stops == [("SIGTERM", 300.0), ("SIGTERM", 5.0), ("SIGTERM", 0.0)]


def signalled(status: AttemptStatus, **attempt: Any) -> RunState:
    """A job whose `signal` is due, ten minutes before its end, with five minutes of grace."""
    noted = (SignalledEnd(cause=Reason.PREEMPTED, at=NOW, ends_at=NOW + 290),)
    state = placed(status, signalled=noted, **attempt)
    job = state.jobs[0]
    spec = msgspec.structs.replace(job.spec, signal=EndSignal(name="SIGUSR1", before=600.0))
    return msgspec.structs.replace(state, jobs=(msgspec.structs.replace(job, spec=spec),))


async def test_the_job_gets_its_signal_before_an_end_and_the_runner_is_said_to_have_it(
    node: FakeConnection,
) -> None:
    state, pipeline = signalled(AttemptStatus.RUNNING), NotedPipeline()
    await node.the_runner.start(to_node.submit_request(context_of(state)))
    for _ in range(2):
        await JobSignaller(pipeline, ManualClock(NOW + 90))(context_of(state), node)
    (request,) = node.the_runner.signals.values()
    assert request == SignalRequest(id="preempted 0", cause="preempted", ends_in=200.0)
    attempt = attempt_of(state)
    report = reports.JobSignalled(run_id=state.run.id, attempt_id=attempt.id, ids=("preempted 0",))
    assert pipeline.posted == [report, report]


async def test_an_end_that_was_not_foreseen_sends_the_signal_first_and_the_stop_waits(
    node: FakeConnection,
) -> None:
    state = signalled(
        AttemptStatus.TERMINATING,
        reason=Reason.PREEMPTED,
        running_at=NOW - 60,
        terminating_at=NOW,
        remove_at=NOW + 300,
    )
    await node.the_runner.start(to_node.submit_request(context_of(state)))
    await JobStopper(NotedPipeline(), ManualClock(NOW + 90))(context_of(state), node)
    assert node.the_runner.asked == ["start", "signal", "stop"]
    assert (node.the_runner.stops, node.the_runner.delays) == ([("SIGTERM", 210.0)], [200.0])


async def test_an_older_runner_keeps_no_stop_waiting(node: FakeConnection) -> None:
    state = signalled(AttemptStatus.TERMINATING, reason=Reason.PREEMPTED, remove_at=NOW + 300)
    node.the_runner.failures = [RunnerError("not_found", "no such path", 404)]
    await JobStopper(NotedPipeline(), ManualClock())(context_of(state), node)
    assert node.the_runner.asked == ["stop"]


async def test_a_runner_that_refuses_to_stop_is_asked_again(node: FakeConnection) -> None:
    node.the_runner.failures = [RunnerError("busy", "not now", 409)]
    with pytest.raises(RetryLater, match="not now"):
        await JobStopper(NotedPipeline(), ManualClock())(
            context_of(placed(AttemptStatus.TERMINATING, remove_at=NOW + 10)), node
        )
    assert node.the_runner.stops == []


async def test_the_shim_ends_the_container_and_is_told_why(node: FakeConnection) -> None:
    state = placed(AttemptStatus.TERMINATING, reason=Reason.ABORTED_BY_USER, message="by ann")
    pipeline = NotedPipeline()
    node.shim.listing[attempt_of(state).id] = task_of(state)
    await TaskTerminator(pipeline, FENCE)(context_of(state), node)
    (order,) = node.shim.orders
    assert (order.grace, order.reason, order.message) == (0.0, "aborted_by_user", "by ann")
    seen = pipeline.posted[-1]
    assert isinstance(seen, reports.TaskSeen)
    assert seen.terminated


@pytest.mark.parametrize(
    ("reason", "later", "grace", "moment"),
    [
        (Reason.TERMINATED_BY_USER, (), 10.0, LAST_MOMENT),
        (Reason.TERMINATED_BY_USER, (), 0.0, 0.0),
        (Reason.TERMINATED_BY_USER, (Reason.ABORTED_BY_USER,), 10.0, 0.0),
        (Reason.ABORTED_BY_USER, (), 0.0, 0.0),
    ],
)
async def test_a_job_that_used_its_grace_up_has_a_moment_in_which_its_end_is_noted(
    node: FakeConnection, reason: Reason, later: tuple[Reason, ...], grace: float, moment: float
) -> None:
    state = placed(
        AttemptStatus.TERMINATING,
        reason=reason,
        later_reasons=later,
        terminating_at=NOW,
        remove_at=NOW + grace,
    )
    node.shim.listing[attempt_of(state).id] = task_of(state)
    await TaskTerminator(NotedPipeline(), FENCE)(context_of(state), node)
    assert [order.grace for order in node.shim.orders] == [moment]


async def test_ending_a_task_that_is_gone_reports_it_missing(node: FakeConnection) -> None:
    pipeline = NotedPipeline()
    await TaskTerminator(pipeline, FENCE)(context_of(placed(AttemptStatus.TERMINATING)), node)
    assert [type(report) for report in pipeline.posted] == [reports.TaskMissing]


async def test_a_place_that_is_kept_outlives_its_task(node: FakeConnection) -> None:
    state = placed(AttemptStatus.TERMINATING, container_gone=True, reason=Reason.SIBLING_FAILED)
    node.shim.listing[attempt_of(state).id] = task_of(state, TaskStatus.TERMINATED)
    pipeline = NotedPipeline()
    await TaskRemover(pipeline, FENCE)(context_of(state), node)
    assert node.shim.asked == [("remove", attempt_of(state).id)]
    (removed,) = pipeline.posted
    assert isinstance(removed, reports.TaskRemoved)
    assert removed.allocation_released is False


async def test_a_place_without_a_task_is_released_by_itself(node: FakeConnection) -> None:
    state = placed(AttemptStatus.FAILED)
    pipeline = NotedPipeline()
    await AllocationReleaser(pipeline, FENCE)(context_of(state), node)
    assert node.shim.asked == [("release", state.allocations[0].id)]
    assert pipeline.posted == [
        reports.AllocationReleased(run_id=state.run.id, allocation_id=state.allocations[0].id)
    ]


@pytest.mark.parametrize("performer", [TaskTerminator, TaskRemover])
async def test_a_shim_that_refuses_the_end_is_asked_again(
    node: FakeConnection, performer: type[TaskTerminator] | type[TaskRemover]
) -> None:
    pipeline = NotedPipeline()
    node.shim.refusal = CONFLICT
    with pytest.raises(RetryLater, match="another body"):
        await performer(pipeline, FENCE)(context_of(placed(AttemptStatus.TERMINATING)), node)
    node.shim.refusal = ShimUnavailable("cut")
    with pytest.raises(ShimUnavailable):
        await performer(pipeline, FENCE)(context_of(placed(AttemptStatus.TERMINATING)), node)
    assert pipeline.posted == []


async def test_the_removal_of_a_task_does_not_wait_for_the_release_of_its_place(
    node: FakeConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = placed(AttemptStatus.TERMINATING, container_gone=True)
    attempt = attempt_of(state)
    node.shim.listing[attempt.id] = task_of(state, TaskStatus.TERMINATED)

    async def release(allocation_id: str, **asked: object) -> None:
        await eventually(lambda: ("remove", attempt.id) in node.shim.asked)

    monkeypatch.setattr(node.shim, "release_allocation", release)
    pipeline = NotedPipeline()
    await TaskRemover(pipeline, FENCE)(context_of(state), node)
    assert [type(report) for report in pipeline.posted] == [reports.TaskRemoved]


async def test_a_task_counts_as_removed_only_once_its_place_is_released(
    node: FakeConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = placed(AttemptStatus.TERMINATING, container_gone=True)

    async def release(allocation_id: str, **asked: object) -> None:
        raise ShimUnavailable("cut")

    monkeypatch.setattr(node.shim, "release_allocation", release)
    pipeline = NotedPipeline()
    with pytest.raises(ShimUnavailable):
        await TaskRemover(pipeline, FENCE)(context_of(state), node)
    assert (node.shim.asked, pipeline.posted) == ([("remove", attempt_of(state).id)], [])


@pytest.mark.parametrize("still_there", [True, False])
async def test_task_and_place_are_given_back_also_when_the_task_is_gone_already(
    node: FakeConnection, still_there: bool
) -> None:
    state = placed(AttemptStatus.TERMINATING, container_gone=True)
    pipeline = NotedPipeline()
    if still_there:
        node.shim.listing[attempt_of(state).id] = task_of(state, TaskStatus.TERMINATED)
    await TaskRemover(pipeline, FENCE)(context_of(state), node)
    assert node.shim.asked == [
        ("release", state.allocations[0].id),
        ("remove", attempt_of(state).id),
    ]
    assert node.forgotten == [SOCKET]
    assert [type(report) for report in pipeline.posted] == [reports.TaskRemoved]


async def test_a_removal_that_is_cancelled_before_it_begins_leaves_no_coroutine_unawaited(
    node: FakeConnection, recwarn: pytest.WarningsRecorder
) -> None:
    state = placed(AttemptStatus.TERMINATING, container_gone=True)
    removing = asyncio.create_task(TaskRemover(NotedPipeline(), FENCE)(context_of(state), node))
    # After one step it has made its two works, which have not begun.
    await asyncio.sleep(0)
    removing.cancel()
    await asyncio.wait((removing,))
    del removing
    gc.collect()
    assert (node.shim.asked, list(recwarn)) == ([], [])
