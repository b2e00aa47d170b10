"""Jobs: their attempts, allocations and outputs, and the way of ssh to them."""

from __future__ import annotations

import msgspec

from fairlead.documents.base import View
from fairlead.documents.services import ProbeView
from fairlead.model.answers import Amounts
from fairlead.model.job_links import JobLink
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AllocationState, AttemptStatus, IrisState, OutputsState


class IncarnationView(View, frozen=True):
    number: int
    id: str


class AllocationView(View, frozen=True):
    """An allocation: CPU in cores, sizes in bytes. `placement`: the node's value of the fleet's
    placement attribute; `asked`: what the user wrote, beside what the job got."""

    id: str
    job_id: str
    node: str
    state: AllocationState
    gpus: tuple[str, ...]
    cpu: float
    memory: int
    whole_node: bool
    placement: str | None
    monitoring_descriptor: str | None
    created_at: str
    released_at: str | None
    shm_size: int | None
    asked: Amounts | None


class AttemptOutputsView(View, frozen=True):
    """The outputs of an attempt; `count` files of `size` bytes are stored. While they are being
    collected, `received` bytes of `total` are here; else both are null."""

    state: OutputsState
    count: int
    size: int
    left_out: int
    left_out_size: int
    received: int | None = None
    total: int | None = None


class StartEndView(View, frozen=True):
    """How a start ended after which the container waits for the next one. `number` 0: the attempt's
    first."""

    number: int
    at: str
    reason: Reason
    message: str | None
    exit_code: int | None


class StartsView(View, frozen=True):
    """The starts of one attempt's job after its first, counted from 1. `asked`: the last one that a
    user asked for; `begun`: the last one that has begun. `refused`: why the one that was asked for
    never begins. `ended`: the last one that ended. `watched_until`: when the lease of the last
    client that watches ends; null: no client holds one."""

    asked: int
    begun: int
    refused: str | None
    ended: StartEndView | None = None
    watched_until: str | None = None


class AttemptView(View, frozen=True):
    """`state`: Iris's name for it, final as soon as there is a `termination_reason`. `links`: URLs
    of its run in wandb or MLflow that the job itself printed."""

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
    number: int
    occurrence: int
    rank: int | None
    later_reasons: tuple[Reason, ...]
    disconnected: bool
    cleanup_unknown: bool
    image_digest: str | None
    container_started_at: str | None
    interrupt_requested_at: str | None
    terminating_at: str | None
    state: IrisState
    outputs: AttemptOutputsView
    deployment: int
    probes: tuple[ProbeView, ...]
    drains_until: str | None
    links: tuple[JobLink, ...]
    starts: StartsView | None = None


class PastAttemptView(AttemptView, frozen=True, kw_only=True):
    job_id: str


class JobView(View, frozen=True):
    """One job. `attempts` are the recent ones; the last one is current.

    `status` is the current attempt's; it is `pending` during the wait before the next one, or when
    there is none. `state` is Iris's name: `pending` as soon as the current attempt has ended and
    another one will come. An attempt's `rank` never changes; the job's may change with the
    incarnation.
    """

    id: str
    group: str
    replica: int
    cookie: int
    index: int
    rank: int | None
    status: str
    pending_reason: str | None
    attempts: tuple[AttemptView, ...]
    abandoned: bool
    scaled_down: bool
    retry_at: str | None
    state: IrisState
    deployment: int
    not_ready: str | None


class SshTarget(View, frozen=True):
    """The way of a user's ssh to a job. The node reaches it at `port` of `host`: its own loopback,
    or the container's address. `node_host` None: the node is the controller's own machine, and no
    jump host is needed."""

    run_name: str
    attempt_id: str
    port: int
    host_key: str
    node_host: str | None
    node_port: int
    node_host_key: str | None
    jump_user: str
    host: str = "127.0.0.1"


class OutputFileView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    size: int


class OutputsView(msgspec.Struct, frozen=True, kw_only=True):
    """The outputs of one attempt. `count` and `size` (bytes) are of its files, `left_out` counts
    what is beyond the limit or no plain file. `removed`: they were stored and have expired. `files`
    is null where several jobs are listed. `place`: s3://BUCKET/KEY of the tar where the controller
    has moved it to its bucket; it is downloaded from the controller all the same. While outputs are
    being collected, `received` bytes of `total` are here."""

    job_id: str
    group: str
    cookie: int
    attempt_id: str
    attempt: int
    state: OutputsState
    removed: bool
    count: int
    size: int
    left_out: int
    left_out_size: int
    archive_size: int | None
    files: tuple[OutputFileView, ...] | None
    place: str | None = None
    received: int | None = None
    total: int | None = None


class OutputsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    outputs: tuple[OutputsView, ...]
