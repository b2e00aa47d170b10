"""The JSON documents that users and their scripts read, as types.

`RunView` is a contract (`inspect --json`): every field is always there, null or empty when it has
no value; times are ISO 8601 in UTC. Fields are added, never renamed or removed. `views` makes these
documents; the CLI and the client read them. They stand in one module, apart from the routes that
answer with them, because a user's command loads them and must load no server.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from fairlead.model.answers import Amounts, OfferedPlace, PlannedPlace, PlannedRent, Waiting
from fairlead.model.beginning import SameJob, When
from fairlead.model.costs import CostRow
from fairlead.model.dev_environment import Ide
from fairlead.model.job_links import JobLink
from fairlead.model.reasons import Reason, RunReason
from fairlead.model.service import DeploymentState
from fairlead.model.spec import Band, Role, RunType
from fairlead.model.statuses import (
    AllocationState,
    AttemptStatus,
    IrisState,
    OutputsState,
    RunStatus,
)
from fairlead.model.sweep import SetStatus
from fairlead.wire.errors import ErrorDetail
from fairlead.wire.gateway import Certificate
from fairlead.wire.shim import GpuMetrics, PullProgress


class _View(msgspec.Struct, frozen=True, kw_only=True):
    pass


class IncarnationView(_View, frozen=True):
    number: int
    id: str


class SwitchView(_View, frozen=True):
    """Why a gang started again. `incarnation`: the number that began; `whole`: all allocations were
    given back first."""

    reason: str
    attempt_id: str | None
    attempt_reason: Reason | None
    message: str | None
    at: str
    incarnation: int
    whole: bool


class GroupView(_View, frozen=True):
    """`gang_size` null: no gang; otherwise so many of its `nodes` jobs carry a rank."""

    name: str
    nodes: int
    gang_size: int | None
    share_nodes: bool


class AllocationView(_View, frozen=True):
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


MAX_BATCH = 1000
"""Runs in one request."""


class BatchItem(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one of several submissions.

    `status`: what a request of its own would have been answered with. With 201 `id` and `name` are
    those of the new run, with 200 (`if_exists: keep`) and 202 (`replace`) those of the live one;
    else `error` says what is wrong.
    """

    status: int
    id: str | None = None
    name: str | None = None
    error: ErrorDetail | None = None


class BatchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One result for each submission, in their order."""

    results: tuple[BatchItem, ...]


class OccurrenceView(_View, frozen=True):
    """One finished execution of a scheduled run."""

    number: int
    status: RunStatus
    termination_reason: RunReason
    message: str | None
    started_at: str
    finished_at: str


class ChildView(_View, frozen=True):
    id: str
    name: str
    status: RunStatus


class AttemptOutputsView(_View, frozen=True):
    """The outputs of an attempt; `count` files of `size` bytes are stored. While they are being
    collected, `received` bytes of `total` are here; else both are null."""

    state: OutputsState
    count: int
    size: int
    left_out: int
    left_out_size: int
    received: int | None = None
    total: int | None = None


class ProbeView(_View, frozen=True):
    """The latest result of one probe of a replica; `since`: when it changed to that."""

    passes: bool
    in_a_row: int
    since: str
    message: str | None


class ScaleView(_View, frozen=True):
    """How many replicas a group of a service shall have; `at`: when that changed."""

    group: str
    wanted: int
    at: str
    why: str


class DeploymentView(_View, frozen=True):
    """One version of a service. `of`: the deployment that a rollback brought back."""

    number: int
    state: DeploymentState
    by: str
    at: str
    ended_at: str | None
    message: str | None
    of: int | None


class AttemptView(_View, frozen=True):
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


class PastAttemptView(AttemptView, frozen=True):
    job_id: str


class JobView(_View, frozen=True):
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


class DevEnvironmentView(_View, frozen=True):
    """A dev environment. `path`: where its IDE opens in the browser, below the controller's URL;
    null: it does not. `inactivity_duration`: seconds. `inactive_since`: null while it is in use."""

    ide: Ide | None
    folder: str
    path: str | None
    inactivity_duration: float | None
    inactive_since: str | None


class AfterView(_View, frozen=True):
    """A run that must come first. `run_id` is what its name meant at the submission; `met`: its
    condition came true."""

    run_id: str
    name: str
    when: When
    job: SameJob
    met: bool


class SetView(_View, frozen=True):
    """A parameter set of a sweep. `jobs`: its jobs' ids, by their ranks; empty while it has not
    begun. What follows is of the attempt that decided: the first that failed, else the
    latest of rank 0."""

    number: int
    parameters: dict[str, str | int | float | bool]
    status: SetStatus
    jobs: tuple[str, ...]
    attempt_id: str | None
    attempt: int | None
    node: str | None
    exit_code: int | None
    termination_reason: Reason | None
    message: str | None
    running_at: str | None
    ended_at: str | None
    finished_at: str | None
    outputs: AttemptOutputsView | None


class SweepView(_View, frozen=True):
    """A sweep: how many sets there are of each status. `seconds_left`: an estimate from the sets
    that ended last; null: none has ended yet, or nothing runs. `waits_for`: what waiting sets
    wait for before they may begin."""

    names: tuple[str, ...]
    total: int
    nodes: int
    waiting: int
    active: int
    done: int
    failed: int
    stopped: int
    max_parallel: int | None
    stop_after_failures: int | None
    seconds_left: float | None
    waits_for: str | None = None


class RunView(_View, frozen=True):
    """One run. `allocations` are those not released yet, `children` the live runs with this one as
    their parent, `occurrences` the latest finished ones of a scheduled run.

    `triggered_at`: when the present occurrence began; `next_triggered_at`: null while nothing
    triggers it, for example while it is suspended. `configuration`: as it was submitted, with its
    secrets and the values of its variables hidden. `gathering`: what a gang that holds allocations
    and is not whole waits for; at `gives_up_at` it releases them unless a pull or a placement makes
    progress.
    """

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
    gathering: str | None
    gives_up_at: str | None
    groups: tuple[GroupView, ...]
    allocations: tuple[AllocationView, ...]
    occurrences: tuple[OccurrenceView, ...]
    triggered_at: str | None
    schedule: tuple[str, ...]
    children: tuple[ChildView, ...]
    priority: int
    band: Band
    submitted_at: str
    finished_at: str | None
    configuration: dict[str, Any]
    scales: tuple[ScaleView, ...]
    deployments: tuple[DeploymentView, ...]
    dev_environment: DevEnvironmentView | None
    url: str | None = None
    """The address of the service at a host name of its own."""
    after: tuple[AfterView, ...] = ()
    """The runs that must come first."""
    begins_at: str | None = None
    """The earliest time at which its jobs begin."""
    start_before: str | None = None
    """The time by which a job must have been running."""
    sweep: SweepView | None = None
    """A sweep's sets. While it lives, the lines of its watch have the jobs of the sets that have
    not ended, and the run itself those of all sets that have begun."""


class RunSummary(_View, frozen=True):
    """One line of `ps`. `jobs` counts those that were not scaled down; `links`: the first ones that
    its jobs printed, of their runs in wandb or MLflow."""

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
    jobs: int
    jobs_running: int
    suspended: bool
    next_triggered_at: str | None
    parent_id: str | None
    sweep: SweepView | None = None
    links: tuple[JobLink, ...] = ()


class SshTarget(_View, frozen=True):
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


class GpuView(_View, frozen=True):
    uuid: str
    name: str
    memory: int
    healthy: bool
    message: str | None
    in_use: bool


class NodeEventView(_View, frozen=True):
    """An event in the history of a node. `why`: the reason; `by`: the user who asked for it."""

    at: str
    what: str
    why: str | None
    by: str | None


class NodeImageView(_View, frozen=True):
    """An image that the node's fleet has it pull ahead. `state`: `here`, `pulling`, `waiting`,
    `failed` (it is tried again) or `not asked`; `message`: why."""

    image: str
    state: str
    message: str | None
    since: str | None


class NodeAllowsView(_View, frozen=True):
    """What the node's operator allows jobs to have; raw sockets: in the node's own network."""

    privileged: bool
    raw_sockets: bool
    volume_prefixes: tuple[str, ...]


class NodeView(_View, frozen=True):
    """CPU in cores, sizes in bytes; `*_allocated` is what runs hold there. `unfit`: why the health
    check gives it no work. `attributes` are its own. `ended_runs`: runs that may have something
    left there; `quarantined` counts tasks that this controller does not know."""

    id: str
    name: str
    fleet: str
    address: str
    host_key_fingerprint: str | None
    status: str
    message: str | None
    draining: bool
    drain_reason: str | None
    drain_deadline: str | None
    cordoned: bool
    cordon_reason: str | None
    unfit: str | None
    attributes: dict[str, str]
    engine: str
    isolation: bool
    host_network: bool
    cpu: float
    cpu_allocated: float
    memory: int
    memory_allocated: int
    disk: int
    disk_allocated: int
    gpus: tuple[GpuView, ...]
    runs: tuple[str, ...]
    ended_runs: tuple[str, ...]
    quarantined: int
    created_at: str
    last_seen_at: str | None
    controllers: tuple[str, ...] = ()
    """Fingerprints of the keys with which controllers may log in there, this one's included; empty:
    the node does not tell."""
    networks: int | None = None
    """How many runs can have a network of their own there at once; None: no limit."""
    network_kind: str | None = None
    """Who connects containers there: `docker` (the engine) or `agent` (the shim); None: the node
    does not tell."""
    network_why: str | None = None
    """Why the shim does not, where it chose so."""
    engine_lacks: tuple[str, ...] = ()
    """What its engine cannot do."""
    allows: NodeAllowsView | None = None
    """None: the node does not tell."""
    register_until: str | None = None
    """The end of the time in which an expected node can be registered."""
    events: tuple[NodeEventView, ...] = ()
    """Its latest events, the newest last; lists of nodes leave them out."""
    images: tuple[NodeImageView, ...] = ()
    """What its fleet has it pull ahead; lists of nodes leave it out."""


class QuarantinedTaskView(_View, frozen=True):
    """A task on a node that this controller does not know. `status` is the shim's name."""

    id: str
    run_id: str
    run_name: str
    status: str
    cpu: float
    memory: int
    gpus: tuple[str, ...]
    submitted_at: str
    stopping: bool


class FleetMachinesView(_View, frozen=True):
    """What machines a fleet may rent. Prices are per machine and hour; `per_hour` and `per_month`
    are its budget, and `month_cost` what its machines have cost in this month of UTC."""

    provider: str
    min: int
    max: int
    spot: str
    idle_duration: float
    max_price: float | None
    per_hour: float | None
    per_month: float | None
    month_cost: float


class MachineView(_View, frozen=True):
    """A rented machine. `price` is per hour; `cost` is what it has cost so far. `trouble`: why the
    last call to its provider failed."""

    id: str
    name: str
    fleet: str
    status: str
    provider: str
    instance_type: str
    region: str
    zone: str | None
    spot: bool
    price: float
    cost: float
    instance_id: str | None
    end: str | None
    message: str | None
    trouble: str | None
    ordered_at: str
    joined_at: str | None
    idle_since: str | None
    terminated_at: str | None


class CostsView(_View, frozen=True):
    """What rented machines have cost, the dearest first."""

    rows: tuple[CostRow, ...]
    total: float


class OrphanView(_View, frozen=True):
    """A machine at a provider that no record knows. `ends_at` null: only an admin ends it."""

    provider: str
    instance_id: str
    machine_id: str | None
    created_at: str
    seen_at: str
    ends_at: str | None
    is_duplicate: bool
    quarantined: bool


class ProviderFindingView(_View, frozen=True):
    """What was tried at a provider. `fault`: what is wrong with it; null: nothing. `note`: what an
    operator should know of it."""

    what: str
    fault: str | None
    note: str | None


class ProviderCheckView(_View, frozen=True):
    findings: tuple[ProviderFindingView, ...]


class ProviderTrialView(_View, frozen=True):
    """A machine that is made to check its provider, and ended. `steps`: what was done so far."""

    steps: tuple[str, ...]
    fault: str | None
    is_over: bool


class CatalogSource(StrEnum):
    """Where a provider's prices come from."""

    RELEASE = "release"
    """A file of this release."""
    API = "api"
    """What was last read from the provider's API."""
    PROVIDER = "provider"
    """The provider tells them with each list of its offers."""


class ProviderOfferView(_View, frozen=True):
    """A type of machine that a provider rents in one zone. `price` is per hour; `memory` and `disk`
    are bytes that jobs can have. `gpu`: as a job's file names it; null: none."""

    instance_type: str
    region: str
    zone: str | None
    spot: bool
    price: float
    cpu: float
    memory: int
    disk: int
    gpu: str | None


class ProviderOffersView(_View, frozen=True):
    """What a provider rents. `read_at`: when its prices were read from its API; null: never, or
    each time. `notes`: what is to be known of them, as sentences."""

    source: CatalogSource
    read_at: str | None
    notes: tuple[str, ...]
    offers: tuple[ProviderOfferView, ...]


class FleetView(_View, frozen=True):
    """`placement`: the attribute whose value the nodes of one gang share. `nodes`: their names."""

    name: str
    placement: str | None
    attributes: dict[str, str]
    nodes: tuple[str, ...]
    machines: FleetMachinesView | None = None
    """What it may rent; null: nothing."""
    images: tuple[str, ...] = ()
    """The images that its nodes pull ahead."""


class EventView(_View, frozen=True):
    """One event of a run; `seq` is the cursor from which to continue. `because`: the cause as a
    sentence."""

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
    because: str


class EventLine(_View, frozen=True):
    """One line of a stream; a heartbeat has no event."""

    event: EventView | None


class JobUseView(_View, frozen=True):
    """A job's use, in seconds and bytes; null where the node does not count it. `message`: why
    there are no values. `memory` includes the file cache, `memory_working_set` only what the job
    needs."""

    job_id: str
    group: str
    cookie: int
    rank: int | None
    attempt_id: str
    node: str
    message: str | None
    at: str | None
    cpu_seconds: float | None
    memory: int | None
    memory_working_set: int | None
    memory_peak: int | None
    memory_limit: int | None
    oom_kills: int | None
    connections: int | None
    gpus: tuple[GpuMetrics, ...]


class MetricsAnswer(_View, frozen=True):
    jobs: tuple[JobUseView, ...]


class MetricPoint(_View, frozen=True):
    """A job's use in a span of time that ends at `at`: `cpu` in cores and `gpu_utilization` in
    percent are means, bytes are the most. GPU values are over all its GPUs; null: not known."""

    at: str
    cpu: float | None
    memory: int | None
    gpu_utilization: float | None
    gpu_memory: int | None


class GpuMetricPoint(_View, frozen=True):
    """A GPU's use in a span of time that ends at `at`: `utilization` in percent is the mean,
    `memory` in bytes the most; null: not known."""

    at: str
    utilization: float | None
    memory: int | None


class GpuMetricsHistory(_View, frozen=True):
    uuid: str
    points: tuple[GpuMetricPoint, ...]


class JobMetricsHistory(_View, frozen=True):
    """`gpus`: of each of its GPUs, if that was asked for."""

    job_id: str
    group: str
    cookie: int
    rank: int | None
    attempt_id: str
    attempt: int
    points: tuple[MetricPoint, ...]
    gpus: tuple[GpuMetricsHistory, ...] = ()


class MetricsHistoryAnswer(_View, frozen=True):
    """`until`: the end of the time that was asked for, which is the jobs' own if they ended."""

    jobs: tuple[JobMetricsHistory, ...]
    until: str | None = None


class WatchLine(_View, frozen=True):
    """One line of a watch; a heartbeat has no run. `progress`: bytes of images being pulled and of
    outputs being collected, by attempt id."""

    run: RunView | None
    progress: dict[str, PullProgress] = {}


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


class UserView(msgspec.Struct, frozen=True, kw_only=True):
    """`bands`: those granted beyond the bands that every user may use."""

    name: str
    role: Role
    bands: tuple[Band, ...]
    created_at: str


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    user: str
    label: str
    created_at: str
    expires_at: str | None


class SecretView(msgspec.Struct, frozen=True, kw_only=True):
    """A stored secret without its value. `shared`: all users' runs may name it."""

    name: str
    shared: bool
    created_at: str
    updated_at: str


class NewTokenView(TokenView, frozen=True, kw_only=True):
    """`token` is the secret itself; no other answer has it."""

    token: str


class NewUserView(UserView, frozen=True, kw_only=True):
    token: NewTokenView


class ControllerView(msgspec.Struct, frozen=True, kw_only=True):
    """A controller among those that share a database. `status`: leads, waits or gone."""

    id: str
    url: str
    version: str
    status: str
    started_at: str
    last_seen_at: str


class HostCertificateView(msgspec.Struct, frozen=True, kw_only=True):
    """The certificate that a service's host shows at its gateway; `error`: why it shows none."""

    host: str
    issuer: str | None
    expires_at: str | None
    error: str | None


class GatewayView(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway. `status`: connected or away; `message`: why it is away, or what of its settings it
    could not apply. `key`: by which its agent logs in at nodes. `services`: the live ones that use
    it."""

    name: str
    domain: str
    host: str | None
    port: int | None
    local_socket: str | None
    certificate: Certificate
    default: bool
    status: str
    message: str | None
    version: str | None
    key: str | None
    services: tuple[str, ...]
    created_at: str
    certificates: tuple[HostCertificateView, ...] = ()


class ServiceKeyView(msgspec.Struct, frozen=True, kw_only=True):
    """A key that opens one service; `user` is the service's owner."""

    id: str
    service: str
    user: str
    label: str
    created_at: str


class NewServiceKeyView(ServiceKeyView, frozen=True, kw_only=True):
    """`secret` is the key itself; no other answer has it. `live`: whether the owner has a service
    of this name now; a key that is made earlier opens the next one."""

    secret: str
    live: bool = True


class CallerView(UserView, frozen=True, kw_only=True):
    """`token`: the one that the request was made with."""

    token: TokenView


class LoginLinkView(msgspec.Struct, frozen=True, kw_only=True):
    """A link that logs a browser in to the dashboard, once. `path` is a secret until then."""

    path: str
    expires_at: str


class UnderWayView(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that wait for something other than an allocation.

    `until`: when the first of them ends as `ends_as`, unless what it waits for comes before;
    without `ends_as`: when it goes on.
    """

    jobs: tuple[str, ...]
    status: AttemptStatus
    what: str
    until: str | None
    ends_as: Reason | None


class ExplainView(msgspec.Struct, frozen=True, kw_only=True):
    """`about`: what the run waits for besides allocations; always set when `waiting` is empty."""

    run: str
    name: str
    status: RunStatus
    about: str | None
    waiting: tuple[Waiting, ...]
    under_way: tuple[UnderWayView, ...] = ()


class GroupPlanView(_View, frozen=True):
    """The environment of a group's jobs at their start. `image`: null where the nodes to which they
    would go have no images. `python`: the version in their venv; null: they have none. `setup`: the
    number of its commands."""

    group: str
    image: str | None
    python: str | None
    setup: int


class SweepPlanView(_View, frozen=True):
    """`parallel`: how many sets are active at once at most; null: as many as there is room for.
    `reuse_container`: they run one after another in as many containers."""

    sets: int
    parallel: int | None
    reuse_container: bool


class PlanView(msgspec.Struct, frozen=True, kw_only=True):
    """`refused`: why a submit would be refused, and `field` the field; then `jobs` is empty."""

    jobs: tuple[PlannedPlace, ...]
    refused: str | None
    field: str | None
    warning: str | None
    groups: tuple[GroupPlanView, ...] = ()
    rent: PlannedRent | None = None
    """What would be rented for it; null: this controller rents nothing."""
    sweep: SweepPlanView | None = None
    """Null: it is no sweep."""


class OffersView(msgspec.Struct, frozen=True, kw_only=True):
    """Where the jobs of a run could go, in the order in which the places are tried."""

    places: tuple[OfferedPlace, ...]


class ServiceGroupView(_View, frozen=True):
    """One replica group. The statistics are of the last minute; null: there are none yet. `next` is
    what the autoscaler wants now, and `next_at` when a delay lets it."""

    name: str
    least: int
    most: int
    wanted: int
    why: str
    rps: float | None
    errors: int
    in_flight: int
    latency_p50: float | None
    latency_p95: float | None
    next: int
    next_why: str
    next_at: str | None
    nodes: int = 1


class ReplicaView(_View, frozen=True):
    """One replica; `not_ready` null: it gets requests. `node` is that of the job that gets them,
    `nodes` are those of all its jobs, in the order of their ranks."""

    group: str
    replica: int
    deployment: int
    status: str
    node: str | None
    registered_at: str | None
    not_ready: str | None
    nodes: tuple[str, ...] = ()
    ejected_until: str | None = None
    """It is ready and gets no requests until then, because it answered with errors alone."""


class ServiceView(_View, frozen=True):
    """A service with its replicas, its load and its versions, the latest last."""

    id: str
    name: str
    user: str
    status: RunStatus
    path: str
    model: str | None
    auth: bool
    deployment: int
    groups: tuple[ServiceGroupView, ...]
    replicas: tuple[ReplicaView, ...]
    deployments: tuple[DeploymentView, ...]
    gateway: str | None
    url: str | None
    """Its address at a host name of its own."""


class ChangeView(_View, frozen=True):
    field: str
    before: Any
    after: Any


class DeployView(_View, frozen=True):
    """The changes of a deployment; none was made when nothing changes, or when only asked."""

    service: ServiceView
    changes: tuple[ChangeView, ...]
