"""The nouns of docs/rules.md 1 as immutable values.

Times are Unix seconds, durations seconds, sizes bytes, CPU is in cores. No field repeats what other
fields tell: failures, preemptions and used resources are derived where they are needed.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from controller.lifecycle.dev_environment import DevEnvironment
from controller.lifecycle.inventory import DEFAULT_FLEET as DEFAULT_FLEET
from controller.lifecycle.inventory import Fleet as Fleet
from controller.lifecycle.inventory import Node as Node
from controller.lifecycle.inventory import NodeAddress as NodeAddress
from controller.lifecycle.inventory import NodeCapacity as NodeCapacity
from controller.lifecycle.inventory import NodeEvent as NodeEvent
from controller.lifecycle.inventory import NodeGpu as NodeGpu
from controller.lifecycle.inventory import NodeStatus as NodeStatus
from controller.lifecycle.inventory import QuarantinedTask as QuarantinedTask
from controller.lifecycle.inventory import Registration as Registration
from controller.lifecycle.needs import Amount as Amount
from controller.lifecycle.needs import Constraint as Constraint
from controller.lifecycle.needs import GpuNeed as GpuNeed
from controller.lifecycle.needs import Operator as Operator
from controller.lifecycle.needs import Resources as Resources
from controller.lifecycle.needs import StartupOrder as StartupOrder
from controller.lifecycle.pending_reasons import PendingReason
from controller.lifecycle.reasons import Reason, RunReason
from controller.lifecycle.reasons import RetryEvent as RetryEvent
from controller.lifecycle.services.policy import (
    DeploymentState,
    GroupScale,
    ProbeResult,
    Serves,
    ServicePolicy,
)
from controller.lifecycle.statuses import AllocationState, AttemptStatus, RunStatus
from runner.schemas import BucketFolder, EnvStyle, Files, Repo, RepoCredentials
from shim.schemas import ContainerOptions, PullPolicy, RegistryAuth, VolumeMount


class RunType(StrEnum):
    TASK = "task"
    SERVICE = "service"
    DEV_ENVIRONMENT = "dev-environment"


class StopCriteria(StrEnum):
    ALL_DONE = "all-done"
    MASTER_DONE = "master-done"


class OnParentEnd(StrEnum):
    TERMINATE = "terminate"
    KEEP = "keep"


class Role(StrEnum):
    """The rights of a user. An admin may change everything."""

    ADMIN = "admin"
    USER = "user"


class Band(StrEnum):
    PRODUCTION = "production"
    INTERACTIVE = "interactive"
    BATCH = "batch"


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a job is tried again (docs/rules.md 3). `max_failures` None: unlimited when `error` is
    listed."""

    on_events: frozenset[RetryEvent] = frozenset({RetryEvent.INTERRUPTION})
    duration: float | None = None
    max_failures: int | None = None
    max_preemptions: int = 100


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The configurable time limits and waits (docs/rules.md 2, 3 and 7)."""

    waiting_instance: float = 120.0
    waiting_container: float = 1200.0
    """Seconds without any progress. It is longer than a shim's own limits, which know the fault,
    and than `reincarnation_timeout`, which charges nothing."""
    waiting_runner: float = 300.0
    node_lost_after: float = 300.0
    drain: float = 60.0
    """Seconds that the requests of a replica have to end before the replica is asked to stop."""
    gateway: float = 300.0
    """Seconds that a gateway has to confirm a replica that is ready."""
    reincarnation_timeout: float = 600.0
    short_life: float = 60.0
    waits: tuple[float, ...] = (0.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0)
    no_capacity_wait: float = 15.0
    jitter: float = 0.2


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs of one kind in a run (docs/rules.md 5).

    `gang_size` None: the group is no gang. Otherwise so many of its `nodes` jobs carry a rank; the
    rest are reserved.
    """

    name: str
    nodes: int = 1
    gang_size: int | None = None
    share_nodes: bool = False
    monitoring_by_rank: bool = False


class RunPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The user's settings that decide about the run's life."""

    retry: RetryPolicy = RetryPolicy()
    stop_duration: float = 300.0
    max_duration: float | None = None
    scheduling_timeout: float | None = None
    stop_criteria: StopCriteria = StopCriteria.ALL_DONE
    max_failed_jobs: int = 0
    max_failed_attempts: int | None = None
    fail_on_job_restart: bool = False
    restart_completed_jobs: bool = False
    schedule: tuple[str, ...] = ()
    """Cron expressions, in UTC."""
    startup_order: StartupOrder = StartupOrder.ANY
    on_parent_end: OnParentEnd = OnParentEnd.TERMINATE
    same_placement: bool = False
    """`placement: cluster`: all jobs in one value of a fleet's placement attribute, gang or not."""
    priority: int = 50
    band: Band = Band.INTERACTIVE
    limits: Limits = Limits()
    dev_environment: DevEnvironment | None = None
    """None: the run is none."""


class JobRepo(Repo, frozen=True, kw_only=True):
    """A repository in the job's container with its credentials, which the runner gets apart."""

    token: str | None = None
    private_key: str | None = None
    known_hosts: str | None = None

    def __repr__(self) -> str:
        return f"JobRepo(path={self.path!r}, url={self.url!r})"

    @property
    def plain(self) -> Repo:
        """Without credentials."""
        return msgspec.convert(self, Repo, from_attributes=True)

    @property
    def credentials(self) -> RepoCredentials | None:
        """None: anybody may fetch it."""
        if not any((self.token, self.private_key, self.known_hosts)):
            return None
        return msgspec.convert(self, RepoCredentials, from_attributes=True)


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A job's specification; it is the same for all jobs of a group.

    Parts that an agent carries out unchanged are the agent's own wire types.
    """

    image: str
    python: str | None = None
    """The version of Python that a venv of the job has; None: the job gets none."""
    setup: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] | None = None
    shell: str | None = None
    env: dict[str, str] = {}
    working_dir: str | None = None
    user: str | None = None
    stop_signal: str = "SIGTERM"
    pull_policy: PullPolicy = PullPolicy.IF_NOT_PRESENT
    registry_auth: RegistryAuth | None = None
    ssh: str = "auto"
    """`auto`, `embedded`, `install` or `off`."""
    ssh_keys: tuple[str, ...] = ()
    """The submitting user's public keys; no other key gives SSH access to the job."""
    resources: Resources = Resources()
    volumes: tuple[VolumeMount, ...] = ()
    container: ContainerOptions = ContainerOptions()
    repos: tuple[JobRepo, ...] = ()
    files: tuple[Files, ...] = ()
    secrets: dict[str, str] = {}
    tty: bool = False
    env_style: tuple[EnvStyle, ...] = ()
    outputs: tuple[str, ...] = ()
    """Paths and patterns of what is kept beside the output folder's content."""
    buckets: tuple[BucketFolder, ...] = ()
    core_dumps: int = 0
    """How many core dumps of its processes are kept with that."""
    outputs_limit: int | None = None
    """Bytes of that."""
    restart_exit_code: int | None = None
    """The exit code with which an interrupted job asks to be started again."""
    log_quota: int | None = None
    """Bytes; None: the runner's own default."""
    fail_on_log_quota: bool = False
    stop_when_unheard: float | None = None
    """`on_disconnect: stop`: seconds without contact to a controller after which the node's shim
    stops the job."""
    constraints: tuple[Constraint, ...] = ()
    fleets: tuple[str, ...] = ()
    """The names of the fleets that may run it; empty: any."""
    serves: Serves | None = None
    """The offer of a service's replica, or of a dev environment that opens in the browser."""

    def __repr__(self) -> str:
        """Show the spec without the values of `env` and `secrets`."""
        return f"JobSpec(image={self.image!r}, commands={self.commands!r})"

    @property
    def blobs(self) -> tuple[str, ...]:
        """The blobs that must have been uploaded for it, each once."""
        of_repos = (blob for repo in self.repos for blob in (repo.archive, repo.diff))
        named = (*of_repos, *(files.archive for files in self.files))
        return tuple(dict.fromkeys(blob for blob in named if blob is not None))


class Incarnation(msgspec.Struct, frozen=True, kw_only=True):
    """One life of a gang between two switches."""

    number: int
    id: str


class Switch(msgspec.Struct, frozen=True, kw_only=True):
    """Why a gang started a new incarnation."""

    reason: str
    attempt_id: str | None
    attempt_reason: Reason | None = None
    message: str | None
    at: float
    incarnation: int = 0
    """The number of the incarnation that began with this switch."""
    whole: bool = False
    """All allocations were given back, and the gang queued again as a whole."""


class Occurrence(msgspec.Struct, frozen=True, kw_only=True):
    """One finished execution of a scheduled run."""

    number: int
    status: RunStatus
    reason: RunReason
    message: str | None
    started_at: float
    finished_at: float


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """The resources that a job holds on a node: CPU, memory, GPUs, ports."""

    id: str
    run_id: str
    job_id: str
    node_id: str
    node_name: str | None = None
    """The node's name at that time: the node may be removed before its history is."""
    state: AllocationState
    resources: Resources
    gpus: tuple[str, ...] = ()
    created_at: float
    released_at: float | None = None
    placement: str | None = None
    """The node's value of the fleet's placement attribute when the allocation was made."""
    monitoring_descriptor: str | None = None
    releasing: bool = False
    """No attempt needs it any more and its shim is being told so; until the shim confirms, it is
    occupied."""
    taken_over: bool = False
    """An attempt took it over from an earlier attempt of the same job."""
    victims: tuple[str, ...] = ()
    """While NOMINATED: the allocations of others that must be gone before it can be held. A
    nomination that ended keeps them: they show that it was never held."""
    freed: bool = False
    """A switch of its gang freed it. It is NOMINATED for the run, not for an attempt, in place of
    its one victim, until the gang is whole again or gives up (`gangs.freed`)."""


class CollectedOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """The stored outputs of an attempt. What is `left_out` was beyond a limit, or no plain file."""

    files: int
    size: int
    """Bytes of their content."""
    left_out: int = 0
    left_out_size: int = 0


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One try of a job; its id is also the id of the shim's task.

    `later_reasons` came after the first reason and were not applied. `container_started`,
    `runner_exited`, `container_gone`, `logs_complete` and `task_removed` are facts seen on the node
    during this attempt; each only ever goes from false to true.
    """

    id: str
    job_id: str
    number: int
    """Counted from 0 within the job."""
    status: AttemptStatus
    occurrence: int = 1
    incarnation: Incarnation | None = None
    rank: int | None = None
    allocation_id: str | None = None
    node_id: str | None = None
    node_name: str | None = None
    reason: Reason | None = None
    message: str | None = None
    later_reasons: tuple[Reason, ...] = ()
    pending_reason: PendingReason | None = None
    exit_code: int | None = None
    remove_at: float | None = None
    gpus: tuple[str, ...] = ()
    ports: dict[str, int] = {}
    ssh_host_key: str | None = None
    address: str | None = None
    """Its address in its run's network on its node; None: it has the node's network, or it is not
    known yet."""
    runner_socket: str | None = None
    image_digest: str | None = None
    """The digest of its image; later attempts of the job in this occurrence use the same."""
    ready: bool = False
    disconnected: bool = False
    cleanup_unknown: bool = False
    allocation_released: bool = msgspec.field(default=False, name="place_released")
    """The shim released its allocation together with its task."""
    credentials_asked: int | None = None
    """The task version at which the shim last asked for the registry's credentials again, as it
    does after a restart; None: it does not wait for them."""
    progress: int = 0
    """The progress of the pull at `progressed_at`: any number that changes while the pull goes
    on."""
    creating_seen: bool = False
    """The shim reported `creating` or later."""
    container_started: bool = False
    runner_exited: bool = False
    container_gone: bool = False
    logs_complete: bool = False
    has_outputs: bool = False
    """The job left outputs on its node."""
    outputs: CollectedOutputs | None = None
    """The outputs as the controller stored them; None: it has stored none."""
    task_removed: bool = False
    deployment: int = 0
    """The version of its service when the attempt was made."""
    probes: tuple[ProbeResult, ...] = ()
    """In the order of the configuration; empty before the first result."""
    registered_at: float | None = None
    """Since when it gets traffic; None: it gets none."""
    was_registered: bool = False
    """It got traffic once."""
    registering_since: float | None = None
    """Since when it is ready and waits for its service's gateway; None: it does not wait."""
    registering_error: str | None = None
    """Why the last try to register it failed, as a sentence."""
    exposed_socket: str | None = None
    """The socket on its node at which the gateway reaches its port; None: the gateway has not
    confirmed it."""
    inactive_since: float | None = None
    """Since when a dev environment with an `inactivity_duration` is not in use; None: it is, or
    nothing is known yet."""
    inactive_seen_at: float | None = None
    """When a committed look last found it unused since then."""
    drains_until: float | None = None
    """It gets no new requests. Its container is not stopped before those in flight have ended, or
    this time has come; None: nothing is in flight."""
    submitted_at: float
    provisioned_at: float | None = None
    pulling_at: float | None = None
    progressed_at: float | None = None
    """When image or container last made progress before the container ran, rounded to a step."""
    container_started_at: float | None = None
    running_at: float | None = None
    terminating_at: float | None = None
    finished_at: float | None = None
    interrupt_requested_at: float | None = None
    """When a user asked to interrupt the job: it ends by itself and can come back."""
    interrupt_ends_at: float | None = None
    """When its runner kills the rest of an interrupted job; None in older rows."""
    interrupt_paused_since: float | None = None
    """When that time was paused, because its node is silent or the run suspended; None: it runs."""
    interrupt_told_by: float | None = None
    """The latest time at which the runner must report how the interrupted job ended."""
    limit_paused_since: float | None = None
    """When its limit was paused: its node is not healthy, the run is suspended, or it waits for its
    turn by `startup_order`; None: the limit runs."""
    limit_paused_total: float = 0.0


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """A digest of a job's older attempts of one occurrence, as decisions need it.

    It is derived from their rows when a state is read, and updated as attempts leave the state. It
    is never stored.
    """

    occurrence: int = 0
    failures: int = 0
    preemptions: int = 0
    failed_incarnations: frozenset[int] = frozenset()
    first_submitted_at: float | None = None
    last_end_at: float | None = None
    """When the last of them that had an allocation ended."""


class PastRunning(msgspec.Struct, frozen=True, kw_only=True):
    """The time for which older attempts of one occurrence were RUNNING, before any attempt that the
    state has.

    It is derived, as `Past` is.
    """

    occurrence: int = 0
    seconds: float = 0.0


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One slot of a run. `attempts` are in the order in which they were made; the last is the
    current one.

    A state has the recent attempts (`lifecycle.compaction`), the store has all.
    """

    id: str
    group: str
    replica: int
    cookie: int
    index: int
    rank: int | None = None
    """Its rank in a gang, or in a service's replica of several nodes; None: it has none."""
    spec: JobSpec
    abandoned: bool = False
    attempts: tuple[Attempt, ...] = ()
    retry_at: float | None = None
    """When its next attempt is made, during a wait (docs/rules.md 3.4)."""
    scaled_down: bool = False
    """`scale`, a rollout or the autoscaler removed this slot; it may come back."""
    deployment: int = 0
    """The version of its service that the replica runs."""
    past: Past = Past()


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a service: all that its replicas are made from, so that it can come back."""

    number: int
    service: ServicePolicy
    specs: dict[str, JobSpec]
    """By the name of the group."""
    policy: RunPolicy
    configuration: dict[str, object]
    by: str
    at: float
    state: DeploymentState = DeploymentState.ROLLING
    progress_at: float
    """When it began, or its last replica became ready."""
    ready: int = 0
    """The most of its replicas that were ready at once while it was rolled out."""
    ended_at: float | None = None
    message: str | None = None
    of: int | None = None
    """The deployment whose version a rollback brought back."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run: a user submits it from one configuration."""

    id: str
    name: str
    type: RunType
    user: str
    status: RunStatus
    reason: RunReason | None = None
    message: str | None = None
    occurrence: int = 1
    incarnation: Incarnation | None = None
    switches: tuple[Switch, ...] = ()
    groups: tuple[Group, ...] = ()
    """In the order of the configuration; empty for a run that was made of single jobs."""
    next_triggered_at: float | None = None
    """When the next occurrence of a scheduled run starts; it is skipped if the last one still goes
    on then."""
    triggered_at: float | None = None
    """When the present occurrence of a scheduled run started; None between occurrences."""
    occurrences: tuple[Occurrence, ...] = ()
    """The latest finished occurrences of a scheduled run."""
    ends_as: RunReason | None = None
    """The way in which a user ended a scheduled run; it applies when the present occurrence is
    over."""
    suspended: bool = False
    resumed_at: float | None = None
    """When its last suspension ended."""
    parent_id: str | None = None
    deployment: int = 0
    """The number of a service's present version."""
    deployments: tuple[Deployment, ...] = ()
    """The latest versions of a service, in order; the last is the present one."""
    scales: tuple[GroupScale, ...] = ()
    """One for each replica group of a service."""
    policy: RunPolicy = RunPolicy()
    configuration: dict[str, object] = {}
    """As the user wrote it, without secrets; it is shown, and no decision reads it."""
    client_key: str | None = None
    submitted_at: float
    finished_at: float | None = None
    version: int = 0
    """It grows by one with each turn that changed the run."""
    past_running: PastRunning = PastRunning()

    @property
    def service(self) -> ServicePolicy | None:
        """The service as its present deployment wants it; None: the run is no service."""
        return self.deployments[-1].service if self.deployments else None


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """One run with all that is decided together with it."""

    run: Run
    jobs: tuple[Job, ...]
    allocations: tuple[Allocation, ...] = ()


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """The use of one allocation of a user from `start` to `end` (None: still). The scheduler
    derives fair shares from it."""

    user: str
    gpus: int
    cpu: float
    start: float
    end: float | None
