"""The JSON documents that users and their scripts read, as types.

`RunView` is a contract (`inspect --json`): every field is always there, null or empty when it has
nothing to say; times are ISO 8601 in UTC. Fields are added, never renamed or removed. `views` makes
these; the CLI reads them.
"""

from __future__ import annotations

import msgspec

from controller.lifecycle.model import RunType
from controller.lifecycle.reasons import Reason, RunReason
from controller.lifecycle.statuses import AttemptStatus, RunStatus
from shim.schemas import PullProgress


class _View(msgspec.Struct, frozen=True, kw_only=True):
    pass


class IncarnationView(_View, frozen=True):
    number: int
    id: str


class SwitchView(_View, frozen=True):
    reason: str
    attempt_id: str | None
    message: str | None
    at: str


class AttemptView(_View, frozen=True):
    id: str
    status: AttemptStatus
    termination_reason: Reason | None
    message: str | None
    exit_code: int | None
    node: str | None
    allocation_id: str | None
    incarnation: IncarnationView | None
    gpus: tuple[str, ...]
    ports: dict[str, int]
    ssh_host_key: str | None
    ready: bool
    registered_at: str | None
    submitted_at: str
    provisioned_at: str | None
    pulling_at: str | None
    running_at: str | None
    finished_at: str | None


class JobView(_View, frozen=True):
    """`status` is the current attempt's; `pending` while the wait before the next one is going."""

    id: str
    group: str
    replica: int
    cookie: int
    index: int
    rank: int | None
    status: str
    pending_reason: str | None
    attempts: tuple[AttemptView, ...]


class RunView(_View, frozen=True):
    id: str
    name: str
    type: RunType
    user: str
    status: RunStatus
    termination_reason: RunReason | None
    message: str | None
    incarnation: IncarnationView | None
    occurrence: int
    next_triggered_at: str | None
    suspended: bool
    parent_id: str | None
    deployment: int
    switches: tuple[SwitchView, ...]
    jobs: tuple[JobView, ...]


class RunSummary(_View, frozen=True):
    """One line of `ps`."""

    id: str
    name: str
    type: RunType
    user: str
    status: RunStatus
    termination_reason: RunReason | None
    message: str | None
    pending_reason: str | None
    nodes: tuple[str, ...]
    exit_code: int | None
    submitted_at: str
    finished_at: str | None


class SshTarget(_View, frozen=True):
    """Where a user's ssh finds a job. `port` is on the node's loopback. `node_host` None: the node
    is the controller's own machine, and there is nobody to come through."""

    run_name: str
    attempt_id: str
    port: int
    host_key: str
    node_host: str | None
    node_port: int
    node_host_key: str | None
    jump_user: str


class GpuView(_View, frozen=True):
    uuid: str
    name: str
    memory: int
    healthy: bool
    message: str | None
    in_use: bool


class NodeView(_View, frozen=True):
    """CPU in cores, sizes in bytes; `*_allocated` is what runs hold there."""

    id: str
    name: str
    fleet: str
    address: str
    host_key_fingerprint: str | None
    status: str
    message: str | None
    draining: bool
    drain_reason: str | None
    engine: str
    isolation: bool
    cpu: float
    cpu_allocated: float
    memory: int
    memory_allocated: int
    disk: int
    disk_allocated: int
    gpus: tuple[GpuView, ...]
    runs: tuple[str, ...]
    created_at: str
    last_seen_at: str | None


class EventView(_View, frozen=True):
    """One line of a run's story; `seq` is the cursor to go on from."""

    seq: int
    at: str
    run_id: str
    job_id: str | None
    attempt_id: str | None
    kind: str
    from_status: str | None
    to_status: str | None
    reason: str | None
    message: str | None
    cause: str | None


class WatchLine(_View, frozen=True):
    """One line of a watch; a heartbeat has no run. `progress`: bytes of images, by attempt id."""

    run: RunView | None
    progress: dict[str, PullProgress] = {}
