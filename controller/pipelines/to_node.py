"""Requests to shim and runner, made from a run's committed state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Protocol

import msgspec

from controller.lifecycle.model import Allocation, Attempt, Job, JobSpec, Resources, RunState
from fairlead.configuration.text.stored_secrets import resolved
from fairlead.configuration.values.sweep import filled
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES
from fairlead.model.sweep import Value
from fairlead.wire.job import ClusterInfo, ClusterKey, Files, GangInfo, JobProgram, SubmitRequest
from fairlead.wire.job import JobSpec as RunnerJob
from fairlead.wire.shim import (
    ContainerOptions,
    GpuRequest,
    SshMode,
    SshRequest,
    TaskRequest,
    TaskResources,
)


class RetryLater(Exception):
    """The node could not do it now; the message says why."""


class SecretSource(Protocol):
    """The stored secrets of users."""

    def value(self, user: str | None, name: str) -> str:
        """Return the value for a run of this user; None: of the secret that all users share. Raises
        SecretMissing."""


class AttemptContext(msgspec.Struct, frozen=True):
    """One attempt with its job and its run."""

    state: RunState
    job: Job
    attempt: Attempt
    masked: tuple[str, ...] = ()
    """Values of stored secrets, once `with_secrets` has filled them in."""

    def with_secrets(self, secrets: SecretSource) -> AttemptContext:
        """Return the context with the values of the secrets that its job names: what it makes goes
        to the node, and is neither stored nor shown. Raises SecretMissing."""
        user = self.state.run.user
        spec, values = resolved(self.job.spec, lambda name: secrets.value(user, name))
        if not values:
            return self
        job = msgspec.structs.replace(self.job, spec=spec)
        return AttemptContext(self.state, job, self.attempt, values)

    # The default one would print the values of secrets into logs and tracebacks.
    def __repr__(self) -> str:
        return f"AttemptContext(attempt={self.attempt.id!r})"

    @property
    def allocation(self) -> Allocation | None:
        """The attempt's own allocation, or the one of its carrier."""
        holder = find(self.state, self.attempt.carrier) if self.attempt.carrier else self
        for allocation in self.state.allocations:
            if holder is not None and allocation.id == holder.attempt.allocation_id:
                return allocation
        return None

    @property
    def parameters(self) -> dict[str, Value] | None:
        """The parameter set of the job; None: its run is no sweep."""
        content = self.state.sweep
        return None if content is None else content.sets.at(self.job.replica)

    @property
    def incarnation_number(self) -> int:
        """The attempt's own incarnation: its task is made under this number."""
        return 0 if self.attempt.incarnation is None else self.attempt.incarnation.number

    @property
    def run_incarnation(self) -> int:
        """The run's present incarnation: every request about a task of the run carries it, because
        a shim refuses an older one."""
        incarnation = self.state.run.incarnation
        return 0 if incarnation is None else incarnation.number


def live_attempts(state: RunState) -> Iterator[AttemptContext]:
    for job in state.jobs:
        for attempt in job.attempts:
            if attempt.status not in FINAL_ATTEMPT_STATUSES:
                yield AttemptContext(state, job, attempt)


def find(state: RunState, attempt_id: str) -> AttemptContext | None:
    # A node may still report on a set of a sweep that has ended: it is known, and no stray task.
    for job in chain(state.jobs, state.ended.jobs):
        for attempt in job.attempts:
            if attempt.id == attempt_id:
                return AttemptContext(state, job, attempt)
    return None


def current(known: Mapping[str, RunState], context: AttemptContext) -> Attempt | None:
    """Return the attempt as the last commit has it; None if its run is not among `known`."""
    state = known.get(context.state.run.id)
    found = None if state is None else find(state, context.attempt.id)
    return None if found is None else found.attempt


def runner_socket(context: AttemptContext) -> str:
    """Return where the runner listens. Raises RetryLater until the shim has reported it."""
    if not context.attempt.task.runner_socket:
        raise RetryLater(f"attempt {context.attempt.id} has no runner yet")
    return context.attempt.task.runner_socket


def task_request(
    context: AttemptContext, cluster_key: str | None = None, terminal_key: str | None = None
) -> TaskRequest:
    """Return the request for the attempt's task. `cluster_key`: the public key with which the run's
    jobs on other nodes log in."""
    allocation = context.allocation
    if allocation is None:
        raise ValueError(f"attempt {context.attempt.id} holds no allocation")
    spec = context.job.spec
    need = allocation.resources
    return TaskRequest(
        run_id=context.state.run.id,
        run_name=context.state.run.name,
        allocation_id=allocation.id,
        image=spec.image,
        resources=TaskResources(
            gpu=GpuRequest(uuids=allocation.gpus, vendor=need.gpu.vendor),
            **{name: getattr(need, name) for name in _AMOUNTS},
        ),
        pull_policy=spec.pull_policy,
        registry_auth=spec.registry_auth,
        hostname=context.state.run.name,
        # A session would be a stranger's processes among those that tell whether a job was clean.
        ssh=None if _reuses(context) else _ssh(spec, cluster_key, terminal_key),
        image_digest=pinned_digest(context),
        volumes=spec.volumes,
        container=_container(spec),
        stop_when_unheard_seconds=spec.stop_when_unheard,
        needs_host_network=need.host_network,
        needs_of_engine=need.engine,
        python=spec.python,
        carries_jobs=_reuses(context),
    )


def pinned_digest(context: AttemptContext) -> str | None:
    """Return the image digest of an earlier attempt of the job; None: there is none, or the first
    attempt asks.

    A tag that moves must not change what is retried.
    """
    for attempt in context.job.attempts:
        if attempt.id == context.attempt.id:
            return None
        digest = attempt.task.image_digest
        if attempt.occurrence == context.attempt.occurrence and digest is not None:
            return digest
    return None


def _container(spec: JobSpec) -> ContainerOptions:
    """Without the right to change users the container starts as the job's user."""
    if not spec.container.cap_drop:
        return spec.container
    return msgspec.structs.replace(spec.container, user=spec.user)


def may_have_ssh(context: AttemptContext, cluster_key: str | None) -> bool:
    """Return whether the attempt's container has an SSH server, given a key for terminals."""
    spec = context.job.spec
    asked = bool(spec.ssh_keys or cluster_key) or spec.ssh != SshMode.AUTO
    return asked and spec.ssh != "off" and not _reuses(context)


def _ssh(spec: JobSpec, cluster_key: str | None, terminal_key: str | None) -> SshRequest | None:
    """Return the SSH settings; None when SSH is off, or there is no key and it was not asked for.

    A job that asks for a server by name gets one without a user's key too, for terminals.
    """
    wanted = spec.ssh_keys or cluster_key or (terminal_key and spec.ssh != SshMode.AUTO)
    if spec.ssh == "off" or not wanted:
        return None
    return SshRequest(
        authorized_keys=spec.ssh_keys,
        mode=SshMode(spec.ssh),
        cluster_key=cluster_key,
        terminal_key=terminal_key,
    )


def submit_request(
    context: AttemptContext,
    cluster: ClusterInfo | None = None,
    key: ClusterKey | None = None,
    inputs: Sequence[Files] = (),
) -> SubmitRequest:
    """Return the request that starts the job. `cluster` and `key` are for a multi-node job,
    `inputs`: outputs of other runs."""
    one = context.parameters
    spec = context.job.spec if one is None else filled(context.job.spec, one)
    if inputs:
        spec = msgspec.structs.replace(spec, files=(*spec.files, *inputs))
    return SubmitRequest(
        job=_job(context, spec),
        secrets=spec.secrets,
        masked=context.masked,
        repo_credentials={
            repo.path: keys for repo in spec.repos if (keys := repo.credentials) is not None
        },
        cluster=cluster,
        cluster_key=key,
    )


def _job(context: AttemptContext, spec: JobSpec) -> RunnerJob:
    run, job, allocation = context.state.run, context.job, context.allocation
    slots = [other for other in context.state.jobs if not other.scaled_down]
    in_all, in_group = len(slots), sum(other.group == job.group for other in slots)
    if run.sweep is not None:
        in_all = in_group = run.sweep.total * run.sweep.nodes
    return RunnerJob(
        run_id=run.id,
        run_name=run.name,
        job_id=job.id,
        attempt_id=context.attempt.id,
        group=job.group,
        cookie=job.cookie,
        index=job.index,
        job_count=in_all,
        group_job_count=in_group,
        parameters=context.parameters,
        parameter_set=None if run.sweep is None else job.replica,
        # The runner ends its job by itself if no controller does (docs/rules.md 4.12), but for one
        # that comes back: its runner's end would be a failure (4.19).
        max_duration=None if run.policy.requeues else run.policy.max_duration,
        stop_duration=run.policy.stop_duration,
        repos=tuple(repo.plain for repo in spec.repos),
        gang=_gang(context),
        monitoring_descriptor=None if allocation is None else allocation.monitoring_descriptor,
        gpus=0 if allocation is None else len(allocation.gpus),
        reuse_container=_reuses(context),
        restarts=_restarts(context),
        keeps_for=run.policy.keeps_for,
        **{name: getattr(spec, name) for name in JobProgram.__struct_fields__},
    )


def _reuses(context: AttemptContext) -> bool:
    sweep = context.state.run.sweep
    return sweep is not None and sweep.reuse_container


def _restarts(context: AttemptContext) -> int:
    """Return how many attempts of the job there were before, in this occurrence of a schedule."""
    now = context.attempt
    if now.occurrence <= 1:
        return now.number
    same = (one.number for one in context.job.attempts if one.occurrence == now.occurrence)
    return now.number - min(same, default=now.number)


def _shared(of_the_agent: type[msgspec.Struct], ours: type[msgspec.Struct]) -> Iterator[str]:
    """Yield the fields that the agent gets as they are: what has one name is one thing."""
    yield from (name for name in of_the_agent.__struct_fields__ if name in ours.__struct_fields__)


_AMOUNTS = tuple(name for name in _shared(TaskResources, Resources) if name != "gpu")


def _gang(context: AttemptContext) -> GangInfo | None:
    """Return the gang's data; None for a job without incarnations. Ranks of a plain group next to a
    gang are counted in that group."""
    incarnation = context.attempt.incarnation
    if incarnation is None:
        return None
    sizes = {group.name: group.gang_size for group in context.state.run.groups}
    return GangInfo(
        incarnation=incarnation.id,
        incarnation_number=incarnation.number,
        size=sum(size or 0 for size in sizes.values()),
        group_size=sizes.get(context.job.group),
        rank=context.attempt.rank,
    )
