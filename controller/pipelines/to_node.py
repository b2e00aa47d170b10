"""Requests to shim and runner, made from a run's committed state.

A multi-node job gets the addresses, ranks and GPUs of its peers, and a key of its run.
"""

from __future__ import annotations

import base64
import struct
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Network, ip_address
from typing import Protocol

import asyncssh
import msgspec
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from controller.configuration.stored_secrets import resolved
from controller.lifecycle.model import Allocation, Attempt, Job, JobSpec, Node, RunState
from controller.lifecycle.statuses import FINAL_ATTEMPT_STATUSES
from runner.schemas import (
    ClusterInfo,
    ClusterKey,
    GangInfo,
    SubmitRequest,
)
from runner.schemas import JobSpec as RunnerJob
from shim.schemas import (
    CLUSTER_SSH_PORT,
    ContainerOptions,
    GpuRequest,
    SshMode,
    SshRequest,
    TaskRequest,
    TaskResources,
)


class RetryLater(Exception):
    """The node could not do it now; the message says why."""


class Secrets(Protocol):
    """The stored secrets of users."""

    def value(self, user: str, name: str) -> str:
        """Return the value for a run of this user. Raises SecretMissing."""


class AttemptContext(msgspec.Struct, frozen=True):
    """One attempt with its job and its run."""

    state: RunState
    job: Job
    attempt: Attempt
    masked: tuple[str, ...] = ()
    """Values of stored secrets, once `with_secrets` has filled them in."""

    def with_secrets(self, secrets: Secrets) -> AttemptContext:
        """Return the context with the values of the secrets that its job names: what it makes goes
        to the node, and is neither stored nor shown. Raises SecretMissing."""
        user = self.state.run.user
        spec, values = resolved(self.job.spec, lambda name: secrets.value(user, name))
        if not values:
            return self
        job = msgspec.structs.replace(self.job, spec=spec)
        return AttemptContext(self.state, job, self.attempt, values)

    def __repr__(self) -> str:
        return f"AttemptContext(attempt={self.attempt.id!r})"

    @property
    def allocation(self) -> Allocation | None:
        for allocation in self.state.allocations:
            if allocation.id == self.attempt.allocation_id:
                return allocation
        return None

    @property
    def incarnation_number(self) -> int:
        """The attempt's own incarnation: its task is made under this number."""
        return 0 if self.attempt.incarnation is None else self.attempt.incarnation.number

    @property
    def spoken_incarnation(self) -> int:
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
    for job in state.jobs:
        for attempt in job.attempts:
            if attempt.id == attempt_id:
                return AttemptContext(state, job, attempt)
    return None


def runner_socket(view: AttemptContext) -> str:
    """Return where the runner listens. Raises RetryLater until the shim has reported it."""
    if not view.attempt.runner_socket:
        raise RetryLater(f"attempt {view.attempt.id} has no runner yet")
    return view.attempt.runner_socket


def task_request(view: AttemptContext, cluster_key: str | None = None) -> TaskRequest:
    """Return the request for the attempt's task. `cluster_key`: the public key with which the run's
    jobs on other nodes log in."""
    allocation = view.allocation
    if allocation is None:
        raise ValueError(f"attempt {view.attempt.id} holds no allocation")
    spec = view.job.spec
    need = allocation.resources
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
        pull_policy=spec.pull_policy,
        registry_auth=spec.registry_auth,
        hostname=view.state.run.name,
        ssh=_ssh(spec, cluster_key),
        image_digest=pinned_digest(view),
        volumes=spec.volumes,
        container=_container(spec),
        stop_when_unheard_seconds=spec.stop_when_unheard,
        needs_host_network=need.host_network,
    )


def pinned_digest(view: AttemptContext) -> str | None:
    """Return the image digest of an earlier attempt of the job; None: there is none, or the first
    attempt asks.

    A tag that moves must not change what is retried.
    """
    for attempt in view.job.attempts:
        if attempt.id == view.attempt.id:
            return None
        if attempt.occurrence == view.attempt.occurrence and attempt.image_digest is not None:
            return attempt.image_digest
    return None


def _container(spec: JobSpec) -> ContainerOptions:
    """Without the right to change users the container starts as the job's user."""
    if not spec.container.cap_drop:
        return spec.container
    return msgspec.structs.replace(spec.container, user=spec.user)


def _ssh(spec: JobSpec, cluster_key: str | None) -> SshRequest | None:
    """Return the SSH settings; None when SSH is off or there is no key."""
    if spec.ssh == "off" or not (spec.ssh_keys or cluster_key):
        return None
    return SshRequest(
        authorized_keys=spec.ssh_keys, mode=SshMode(spec.ssh), cluster_key=cluster_key
    )


_TYPE = b"ssh-ed25519"
_MAGIC = b"openssh-key-v1\0"
_NO_CIPHER = b"none"
_BLOCK = 8
_SEED_BYTES, _CHECK_BYTES = 32, 4
_LINE = 70


def secret_of(identity: asyncssh.SSHKey) -> bytes:
    """Return the secret from which the keys of runs are derived: the controller's own key."""
    return identity.export_private_key("pkcs8-der")


def cluster_key(secret: bytes, run_id: str) -> ClusterKey:
    """Return the run's Ed25519 key pair. Without `secret`, neither `run_id` nor the keys of other
    runs tell anything about it."""
    purpose = b"fairlead: SSH between the nodes of the run " + run_id.encode()
    length = _SEED_BYTES + _CHECK_BYTES
    derived = HKDF(algorithm=hashes.SHA256(), length=length, salt=None, info=purpose).derive(secret)
    seed, check = derived[:_SEED_BYTES], derived[_SEED_BYTES:]
    point = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    public = _string(_TYPE) + _string(point)
    return ClusterKey(
        private=_openssh(seed, check, point, public),
        public=f"{_TYPE.decode()} {base64.b64encode(public).decode()}",
    )


def _openssh(seed: bytes, check: bytes, point: bytes, public: bytes) -> str:
    """Encode the key in OpenSSH's format (PROTOCOL.key), without a cipher and without a comment."""
    inner = check * 2 + _string(_TYPE) + _string(point) + _string(seed + point) + _string(b"")
    inner += bytes(range(1, _BLOCK - len(inner) % _BLOCK + 1)) if len(inner) % _BLOCK else b""
    head = _MAGIC + _string(_NO_CIPHER) * 2 + _string(b"") + struct.pack(">I", 1)
    text = base64.b64encode(head + _string(public) + _string(inner)).decode()
    lines = "\n".join(textwrap.wrap(text, _LINE))
    return f"-----BEGIN OPENSSH PRIVATE KEY-----\n{lines}\n-----END OPENSSH PRIVATE KEY-----\n"


def _string(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


_LOOPBACK = "127.0.0.1"


class Clusters:
    """Knows what multi-node jobs must learn about their peers.

    `nodes` by id, as they are now. `secret`: what the runs' keys are derived from. `networks`:
    preferred networks for the jobs' addresses, the best first.
    """

    def __init__(
        self, nodes: Mapping[str, Node], secret: bytes, networks: Sequence[IPv4Network] = ()
    ) -> None:
        self._nodes = nodes
        self._secret = secret
        self._networks = networks

    def info(self, view: AttemptContext) -> ClusterInfo | None:
        """Return what the job learns of its peers; None for a job without peers. Raises RetryLater
        while a peer has no allocation yet."""
        if not is_clustered(view):
            return None
        peers = list(_peers(view))
        ips = tuple(self._address(attempt) for attempt in peers)
        gpus = tuple(_gpus(view.state, attempt) for attempt in peers)
        rank = next((n for n, one in enumerate(peers) if one.id == view.attempt.id), None)
        return ClusterInfo(
            ips=ips,
            master_ip=ips[0] if ips else _LOOPBACK,
            rank=rank,
            gpus_per_node=_gpus(view.state, view.attempt),
            gpus=gpus,
            ssh_port=CLUSTER_SSH_PORT,
        )

    def key(self, view: AttemptContext) -> ClusterKey | None:
        """Return the run's key; None for a job that other nodes cannot reach, or that wants no
        SSH."""
        allocation = view.allocation
        shares = allocation is None or not allocation.resources.whole_node
        if shares or view.job.spec.ssh == "off" or not is_clustered(view):
            return None
        return cluster_key(self._secret, view.state.run.id)

    def _address(self, attempt: Attempt) -> str:
        node = self._nodes.get(attempt.node_id or "")
        return _LOOPBACK if node is None else address(node, self._networks)


def is_clustered(view: AttemptContext) -> bool:
    """Return whether the job and jobs on other nodes learn of each other."""
    run = view.state.run
    together = view.attempt.incarnation is not None or run.policy.same_placement
    return together and len(view.state.jobs) > 1


def address(node: Node, networks: Sequence[IPv4Network] = ()) -> str:
    """Return the address at which jobs on other nodes reach jobs on this one.

    It is the node's address in the preferred network, else the one that the controller uses if it
    is the node's own, else its first.
    """
    own, host = node.capacity.addresses, node.address.host
    for network in networks:
        for one in own:
            if ip_address(one) in network:
                return one
    if host in own:
        return host
    return own[0] if own else host or _LOOPBACK


def _peers(view: AttemptContext) -> Iterator[Attempt]:
    """Yield the latest attempts in the order of their ranks over all groups, which is the order of
    the groups."""
    for job in _in_order(view.state):
        attempt = _latest_with(job, view.attempt)
        if attempt is None:
            continue
        if view.attempt.incarnation is None:
            if attempt.node_id is not None:
                yield attempt
        elif attempt.rank is not None:
            if attempt.node_id is None and attempt.reason is not None:
                continue  # abandoned before it was placed: no job waits for it
            if attempt.node_id is None:
                raise RetryLater(f"the gang of attempt {view.attempt.id} is not placed yet")
            yield attempt


def _in_order(state: RunState) -> list[Job]:
    order = {group.name: number for number, group in enumerate(state.run.groups)}
    return sorted(state.jobs, key=lambda job: (order.get(job.group, 0), _rank(job), job.index))


def _rank(job: Job) -> int:
    rank = job.attempts[-1].rank if job.attempts else None
    return job.index if rank is None else rank


def _latest_with(job: Job, attempt: Attempt) -> Attempt | None:
    """Return the job's latest attempt of the same occurrence and incarnation."""
    for one in reversed(job.attempts):
        if one.occurrence == attempt.occurrence and one.incarnation == attempt.incarnation:
            return one
    return None


def _gpus(state: RunState, attempt: Attempt) -> int:
    for allocation in state.allocations:
        if allocation.id == attempt.allocation_id:
            return len(allocation.gpus)
    return len(attempt.gpus)


def submit_request(
    view: AttemptContext, cluster: ClusterInfo | None = None, key: ClusterKey | None = None
) -> SubmitRequest:
    """Return the request that starts the job. `cluster` and `key` are for a multi-node job."""
    spec = view.job.spec
    return SubmitRequest(
        job=_job(view, spec),
        secrets=spec.secrets,
        masked=view.masked,
        repo_credentials={
            repo.path: keys for repo in spec.repos if (keys := repo.credentials) is not None
        },
        cluster=cluster,
        cluster_key=key,
    )


def _job(view: AttemptContext, spec: JobSpec) -> RunnerJob:
    run, job, allocation = view.state.run, view.job, view.allocation
    slots = [other for other in view.state.jobs if not other.scaled_down]
    return RunnerJob(
        run_id=run.id,
        run_name=run.name,
        job_id=job.id,
        attempt_id=view.attempt.id,
        group=job.group,
        cookie=job.cookie,
        index=job.index,
        job_count=len(slots),
        group_job_count=sum(other.group == job.group for other in slots),
        commands=spec.commands,
        entrypoint=spec.entrypoint,
        shell=spec.shell,
        env=spec.env,
        working_dir=spec.working_dir,
        user=spec.user,
        max_duration=run.policy.max_duration,
        stop_signal=spec.stop_signal,
        repos=tuple(repo.plain for repo in spec.repos),
        files=spec.files,
        tty=spec.tty,
        restart_exit_code=spec.restart_exit_code,
        log_quota=spec.log_quota,
        fail_on_log_quota=spec.fail_on_log_quota,
        env_style=spec.env_style,
        gang=_gang(view),
        monitoring_descriptor=None if allocation is None else allocation.monitoring_descriptor,
    )


def _gang(view: AttemptContext) -> GangInfo | None:
    """Return the gang's data; None for a job without incarnations. Ranks of a plain group next to a
    gang are counted in that group."""
    incarnation = view.attempt.incarnation
    if incarnation is None:
        return None
    sizes = {group.name: group.gang_size for group in view.state.run.groups}
    return GangInfo(
        incarnation=incarnation.id,
        incarnation_number=incarnation.number,
        size=sum(size or 0 for size in sizes.values()),
        group_size=sizes.get(view.job.group),
        rank=view.attempt.rank,
    )
