"""Between the wire and the core: what a node says becomes reports, what the core holds becomes
requests. Pure functions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from typing import overload

import msgspec

from controller.lifecycle import reports
from controller.lifecycle.model import (
    Allocation,
    Attempt,
    Job,
    JobSpec,
    NodeCapacity,
    NodeGpu,
    RunState,
)
from controller.lifecycle.reasons import Reason
from controller.lifecycle.statuses import FINAL_ATTEMPT_STATUSES
from controller.pipelines.performing import TryAgain
from runner.schemas import ExitRecord
from shim.schemas import (
    ContainerOptions,
    GpuInfo,
    GpuLink,
    GpuRequest,
    HostNetwork,
    NodeInfo,
    PullPolicy,
    RegistryAuth,
    SshMode,
    SshRequest,
    TaskInfo,
    TaskRequest,
    TaskResources,
    TaskStatus,
    Ulimit,
    VolumeKind,
    VolumeMount,
)

MAX_MESSAGE = 2000
_EXIT_CODES = range(256)
_NOT_JSON = (msgspec.DecodeError, UnicodeError, RecursionError)


class View(msgspec.Struct, frozen=True):
    """One attempt with what surrounds it."""

    state: RunState
    job: Job
    attempt: Attempt

    @property
    def allocation(self) -> Allocation | None:
        for allocation in self.state.allocations:
            if allocation.id == self.attempt.allocation_id:
                return allocation
        return None

    @property
    def incarnation_number(self) -> int:
        """The attempt's own: under which its task is made."""
        return 0 if self.attempt.incarnation is None else self.attempt.incarnation.number

    @property
    def spoken_incarnation(self) -> int:
        """The run's present one: what a shim is told with a request about any of its tasks, for it
        refuses an older one than it knows."""
        incarnation = self.state.run.incarnation
        return 0 if incarnation is None else incarnation.number


def live_attempts(state: RunState) -> Iterator[View]:
    for job in state.jobs:
        for attempt in job.attempts:
            if attempt.status not in FINAL_ATTEMPT_STATUSES:
                yield View(state, job, attempt)


def find(state: RunState, attempt_id: str) -> View | None:
    for job in state.jobs:
        for attempt in job.attempts:
            if attempt.id == attempt_id:
                return View(state, job, attempt)
    return None


def runner_socket(view: View) -> str:
    """Raises TryAgain until the shim has said where the runner listens."""
    if not view.attempt.runner_socket:
        raise TryAgain(f"attempt {view.attempt.id} has no runner yet")
    return view.attempt.runner_socket


def known_reason(text: str | None) -> Reason | None:
    """A reason of a newer runner that we do not know is none; its message still tells."""
    try:
        return None if text is None else Reason(text)
    except ValueError:
        return None


def task_reports(info: TaskInfo) -> list[reports.Report]:
    """The exit record first: it outranks what the shim concludes from the container."""
    found: list[reports.Report] = [
        reports.TaskAccepted(run_id=info.run_id, attempt_id=info.id),
    ]
    terminated = info.status is TaskStatus.TERMINATED
    if terminated and info.exit_record is not None:
        exited = exit_report(info.run_id, info.id, info.exit_record)
        if exited is not None:
            found.append(exited)
    found.append(
        reports.TaskSeen(
            run_id=info.run_id,
            attempt_id=info.id,
            creating=info.times.creating_at is not None,
            needs_credentials=info.needs_credentials,
            progress=0 if info.pull is None else info.pull.downloaded + info.pull.extracted,
            version=info.version,
            gpu_fault=readable(info.gpu_fault),
            container_started=info.times.running_at is not None,
            terminated=terminated,
            runner_socket=info.runner_socket,
            reason=readable(info.reason),
            message=readable(info.message),
            exit_code=_possible(info.exit_code),
            gpus=info.gpus,
            ports=info.ports,
            ssh_host_key=info.ssh_host_key,
            image_digest=info.image_digest,
        )
    )
    return found


def exit_report(run_id: str, attempt_id: str, text: str) -> reports.RunnerExited | None:
    """None for a record that the job has damaged: then only the shim's word counts."""
    try:
        record = msgspec.json.decode(text, type=ExitRecord)
    except _NOT_JSON:
        return None
    return runner_exited(run_id, attempt_id, record)


def runner_exited(run_id: str, attempt_id: str, record: ExitRecord) -> reports.RunnerExited:
    """What the record says may be the job's invention: a number that no process ever ends with
    would be one that no database holds."""
    reason, message = known_reason(record.reason), readable(record.message)
    exit_code = _possible(record.exit_code)
    if exit_code != record.exit_code:
        reason, message = None, "the exit record gives an exit code that cannot be"
    return reports.RunnerExited(
        run_id=run_id,
        attempt_id=attempt_id,
        reason=reason or Reason.EXECUTOR_ERROR,
        message=message,
        exit_code=exit_code,
    )


@overload
def readable(text: str) -> str: ...
@overload
def readable(text: None) -> None: ...
@overload
def readable(text: str | None) -> str | None: ...
def readable(text: str | None) -> str | None:
    """A node's or a job's words, but not without end."""
    if text is None or len(text) <= MAX_MESSAGE:
        return text
    mark = f"… (cut: {len(text)} characters)"
    return text[: MAX_MESSAGE - len(mark)] + mark


def _possible(exit_code: int | None) -> int | None:
    return exit_code if exit_code in _EXIT_CODES else None


def task_request(view: View, cluster_key: str | None = None) -> TaskRequest:
    """`cluster_key`: the public key with which the run's jobs on other nodes come in."""
    allocation = view.allocation
    if allocation is None:
        raise ValueError(f"attempt {view.attempt.id} holds no allocation")
    spec = view.job.spec
    need = allocation.resources
    auth = spec.registry_auth
    return TaskRequest(
        run_id=view.state.run.id,
        run_name=view.state.run.name,
        allocation_id=allocation.id,
        image=spec.image,
        resources=TaskResources(
            cpu=need.cpu,
            memory=need.memory,
            shm_size=need.shm_size,
            disk=need.disk,
            gpu=GpuRequest(uuids=allocation.gpus),
            infiniband=need.infiniband,
            whole_node=need.whole_node,
        ),
        pull_policy=PullPolicy(spec.pull_policy),
        registry_auth=None
        if auth is None
        else RegistryAuth(username=auth.username, password=auth.password),
        hostname=view.state.run.name,
        ssh=_ssh(spec, cluster_key),
        image_digest=pinned_digest(view),
        volumes=tuple(
            VolumeMount(
                kind=VolumeKind(volume.kind),
                target=volume.target,
                source=volume.source,
                read_only=volume.read_only,
                optional=volume.optional,
                size=volume.size,
            )
            for volume in spec.volumes
        ),
        container=_container(spec),
        stop_when_unheard_seconds=spec.stop_when_unheard,
        needs_host_network=need.host_network,
    )


def pinned_digest(view: View) -> str | None:
    """Of the job's first attempt that knew: a tag that moves must not change what is retried. The
    attempt's own stays what it was when its task was made."""
    for attempt in view.job.attempts:
        if attempt.id == view.attempt.id:
            return None
        if attempt.occurrence == view.attempt.occurrence and attempt.image_digest is not None:
            return attempt.image_digest
    return None


def _container(spec: JobSpec) -> ContainerOptions:
    wanted = spec.container
    return ContainerOptions(
        privileged=wanted.privileged,
        cap_add=wanted.cap_add,
        cap_drop=wanted.cap_drop,
        ulimits=tuple(Ulimit(name=u.name, soft=u.soft, hard=u.hard) for u in wanted.ulimits),
        pids_limit=wanted.pids_limit,
        read_only_root=wanted.read_only_root,
        init=wanted.init,
        user=spec.user if wanted.cap_drop else None,
    )


def _ssh(spec: JobSpec, cluster_key: str | None) -> SshRequest | None:
    """Without a key nobody could come in."""
    if spec.ssh == "off" or not (spec.ssh_keys or cluster_key):
        return None
    return SshRequest(
        authorized_keys=spec.ssh_keys, mode=SshMode(spec.ssh), cluster_key=cluster_key
    )


_NEARNESS = {
    GpuLink.NVLINK: 7,
    GpuLink.SAME_BOARD: 6,
    GpuLink.ONE_SWITCH: 5,
    GpuLink.SWITCHES: 4,
    GpuLink.HOST_BRIDGE: 3,
    GpuLink.NUMA_NODE: 2,
    GpuLink.SYSTEM: 1,
}
_SAME_GPU = 8


def near(gpu: GpuInfo, gpus: Iterable[GpuInfo]) -> dict[str, int]:
    """MIG instances of one GPU are the nearest; where no link is known, the NUMA node counts."""
    found = {uuid: _NEARNESS[link] for uuid, link in gpu.links.items()}
    for other in gpus:
        if other.uuid == gpu.uuid:
            continue
        if gpu.mig_parent is not None and gpu.mig_parent == other.mig_parent:
            found[other.uuid] = _SAME_GPU
        elif other.uuid not in found and gpu.numa is not None and gpu.numa == other.numa:
            found[other.uuid] = _NEARNESS[GpuLink.NUMA_NODE]
    return found


def capacity(info: NodeInfo) -> NodeCapacity:
    return NodeCapacity(
        cpu=info.cpu,
        memory=info.memory,
        disk=info.disk,
        gpus=tuple(
            NodeGpu(
                uuid=gpu.uuid,
                name=gpu.name,
                memory=gpu.memory,
                compute_capability=gpu.compute_capability,
                healthy=gpu.healthy and not gpu.held,
                message=readable(gpu.message),
                mig_parent=gpu.mig_parent,
                near=near(gpu, info.gpus),
            )
            for gpu in info.gpus
        ),
        blocks=info.blocks,
        engine=info.engine.value,
        isolation=info.isolation,
        host_network=info.host_network is not HostNetwork.NEVER,
        addresses=tuple(one for one in info.addresses if _is_address(one)),
    )


def _is_address(text: str) -> bool:
    """What a node says of itself reaches the files of jobs on other nodes."""
    with contextlib.suppress(ValueError):
        return str(ip_address(text)) == text and "%" not in text
    return False
