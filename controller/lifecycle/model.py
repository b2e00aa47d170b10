"""The nouns of docs/rules.md 1 as immutable values.

Times are Unix seconds, durations seconds, sizes bytes, CPU is in cores. No field repeats what other
fields tell: failures, preemptions and used resources are derived where they are needed.
"""

from __future__ import annotations

import msgspec

from controller.lifecycle.inventory import DEFAULT_FLEET as DEFAULT_FLEET
from controller.lifecycle.inventory import Fleet as Fleet
from controller.lifecycle.inventory import Node as Node
from controller.lifecycle.inventory import NodeAddress as NodeAddress
from controller.lifecycle.inventory import NodeCapacity as NodeCapacity
from controller.lifecycle.inventory import NodeEvent as NodeEvent
from controller.lifecycle.inventory import NodeGpu as NodeGpu
from controller.lifecycle.inventory import QuarantinedTask as QuarantinedTask
from controller.lifecycle.inventory import Registration as Registration
from controller.lifecycle.pending_reasons import NoNodeConnected, NoNodeInFleets, PendingReason
from controller.lifecycle.predecessors import Predecessor
from controller.lifecycle.ranges import Ranges
from controller.lifecycle.renting_reasons import BuysMachine, MachineReason
from fairlead.model.job_links import JobLink
from fairlead.model.needs import Amount as Amount
from fairlead.model.needs import Constraint as Constraint
from fairlead.model.needs import GpuNeed as GpuNeed
from fairlead.model.needs import Operator as Operator
from fairlead.model.needs import Resources as Resources
from fairlead.model.needs import StartupOrder as StartupOrder
from fairlead.model.reasons import Reason, RunReason
from fairlead.model.reasons import RetryEvent as RetryEvent
from fairlead.model.service import DeploymentState, GroupScale, ProbeResult, ServicePolicy
from fairlead.model.spec import Band as Band
from fairlead.model.spec import Group as Group
from fairlead.model.spec import JobRepo as JobRepo
from fairlead.model.spec import JobSpec as JobSpec
from fairlead.model.spec import Limits as Limits
from fairlead.model.spec import OnParentEnd as OnParentEnd
from fairlead.model.spec import RetryPolicy as RetryPolicy
from fairlead.model.spec import Role as Role
from fairlead.model.spec import RunPolicy as RunPolicy
from fairlead.model.spec import RunType as RunType
from fairlead.model.spec import StopCriteria as StopCriteria
from fairlead.model.starts import Starts
from fairlead.model.statuses import AllocationState, AttemptStatus, RunStatus
from fairlead.model.statuses import NodeStatus as NodeStatus
from fairlead.model.sweep import ParameterSets


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


class Unrentable(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    gc=False,
    rename={"since": "unrentable_since", "why": "unrentable_why"},
):
    """No node could hold the waiting job, and no machine is to be had for it (rule 12.14)."""

    since: float
    why: str


class Interruption(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    gc=False,
    rename={
        "requested_at": "interrupt_requested_at",
        "ends_at": "interrupt_ends_at",
        "paused_since": "interrupt_paused_since",
        "report_by": "interrupt_told_by",
    },
):
    """A user asked the job to end by itself, so that it can come back (docs/rules.md 2.12)."""

    requested_at: float
    ends_at: float | None = None
    """When its runner kills the rest of the job; None in older rows."""
    paused_since: float | None = None
    """When that time was paused, because its node is silent or the run suspended; None: it runs."""
    report_by: float | None = None
    """The latest time at which the runner must report how the job ended."""


class LimitPause(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    gc=False,
    rename={"since": "limit_paused_since", "total": "limit_paused_total"},
):
    """The time for which an attempt's present limit stands still."""

    since: float | None = None
    """When it was paused: its node is not healthy, the run is suspended, or it waits for its turn
    by `startup_order`; None: the limit runs."""
    total: float = 0.0
    """Seconds of earlier pauses of the same limit."""


NO_PAUSE = LimitPause()


class Pull(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How far its node is with image and container, before the container runs."""

    progress: int = 0
    """The progress at `progressed_at`: any number that changes while the pull goes on."""
    progressed_at: float | None = None
    """When image or container last made progress, rounded to a step."""
    creating_seen: bool = False
    """The shim reported `creating` or later."""
    credentials_asked: int | None = None
    """The task version at which the shim last asked for the registry's credentials again, as it
    does after a restart; None: it does not wait for them."""


class TaskDetails(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the attempt's task has on its node, and how it is reached there."""

    gpus: tuple[str, ...] = ()
    ports: dict[str, int] = {}
    ssh_host_key: str | None = None
    ssh_host: str = "127.0.0.1"
    """Where its node reaches its SSH server."""
    address: str | None = None
    """Its address in its run's network on its node; None: it has the node's network, or it is not
    known yet."""
    runner_socket: str | None = None
    image_digest: str | None = None
    """The digest of its image; later attempts of the job in this occurrence use the same."""


class Seen(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    gc=False,
    rename={"allocation_released": "place_released"},
):
    """The facts seen on the node during this attempt; each only ever goes from false to true."""

    container_started: bool = False
    container_started_at: float | None = None
    runner_exited: bool = False
    container_gone: bool = False
    logs_complete: bool = False
    has_outputs: bool = False
    """The job left outputs on its node."""
    outputs: CollectedOutputs | None = None
    """The outputs as the controller stored them; None: it has stored none."""
    task_removed: bool = False
    allocation_released: bool = False
    """The shim released its allocation together with its task."""


class Serving(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Whether a replica of a service, or an IDE in the browser, gets requests."""

    probes: tuple[ProbeResult, ...] = ()
    """In the order of the configuration; empty before the first result."""
    ready: bool = False
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


class Inactivity(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    gc=False,
    rename={"since": "inactive_since", "seen_at": "inactive_seen_at"},
):
    """A dev environment with an `inactivity_duration` is not in use."""

    since: float
    seen_at: float | None = None
    """When a committed look last found it unused since then."""


class SignalledEnd(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An end of which the job is told by its signal (docs/rules.md 4.20)."""

    cause: Reason
    number: int = 0
    """Counted from 0 among those of this cause."""
    at: float
    """When the signal was due."""
    ends_at: float
    """When its stop signal comes, as foreseen then."""
    sent: bool = False
    """Its runner has it."""

    @property
    def id(self) -> str:
        """How its runner knows it."""
        return f"{self.cause} {self.number}"


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One try of a job; its id is also the id of the shim's task.

    A part without content is one shared default, so most attempts hold few objects. The store keeps
    the parts' fields next to the attempt's own, under the names that `rename` gives them.
    """

    id: str
    job_id: str
    number: int
    """Counted from 0 within the job."""
    status: AttemptStatus
    occurrence: int = 1
    incarnation: Incarnation | None = None
    rank: int | None = None
    deployment: int = 0
    """The version of its service when the attempt was made."""
    allocation_id: str | None = None
    node_id: str | None = None
    node_name: str | None = None
    reason: Reason | None = None
    message: str | None = None
    later_reasons: tuple[Reason, ...] = ()
    """Reasons that came after the first one and were not applied."""
    pending_reason: PendingReason | None = None
    exit_code: int | None = None
    remove_at: float | None = None
    drains_until: float | None = None
    """It gets no new requests. Its container is not stopped before those in flight have ended, or
    this time has come; None: nothing is in flight."""
    disconnected: bool = False
    cleanup_unknown: bool = False
    limit_pause: LimitPause = NO_PAUSE
    pull: Pull = Pull()
    task: TaskDetails = TaskDetails()
    seen: Seen = Seen()
    serving: Serving = Serving()
    unrentable: Unrentable | None = None
    """None: a node could hold it, or a machine may come for it."""
    renting: MachineReason | None = None
    """What is rented for it while it waits, or why nothing is; None: nothing is asked for."""
    inactivity: Inactivity | None = None
    """None: it is in use, nothing is known yet, or nothing looks."""
    signalled: tuple[SignalledEnd, ...] = ()
    """The latest of each cause."""
    interruption: Interruption | None = None
    carrier: str | None = None
    """The attempt in whose container its job runs (docs/rules.md 11.14). Empty: it waits outside of
    the queue; None: it gets an allocation of its own."""
    carries_until: float | None = None
    """Its job has ended, and until then its container takes jobs of other sets; 0: it takes no more
    and is to end."""
    starts: Starts | None = None
    """The starts in this attempt's container after the first; None: nobody asked for one."""
    links: tuple[JobLink, ...] = ()
    """Links to its run in another tool, that the job printed: data of the job."""
    submitted_at: float
    provisioned_at: float | None = None
    pulling_at: float | None = None
    running_at: float | None = None
    terminating_at: float | None = None
    finished_at: float | None = None

    @property
    def waits_for(self) -> str | None:
        """Return why it has no allocation yet, as a sentence (docs/rules.md 12.17).

        A machine that is on its way is the whole answer. So is the market's where no node is there;
        else what the nodes lack comes first.
        """
        pending, renting = self.pending_reason, self.renting
        if renting is None:
            return None if pending is None else pending.sentence()
        if pending is None or isinstance(pending, NoNodeConnected | NoNodeInFleets):
            return renting.sentence()
        if isinstance(renting, BuysMachine):
            return renting.sentence()
        return f"{pending.sentence()}; {renting.sentence()}"


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
    ran: bool = False
    """One of them was RUNNING once. What a user's retry takes out of all counts is here too."""


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

    A state has the recent attempts (`lifecycle.runs.compaction`), the store has all.
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
    counts_from: int = 0
    """The number of the first attempt that limits count: a user retried a set of a sweep."""

    @property
    def has_run(self) -> bool:
        """Whether it was RUNNING once."""
        return self.past.ran or any(one.running_at is not None for one in self.attempts)


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """Which sets of a sweep have begun, and what bounds it (docs/rules.md 11)."""

    total: int
    nodes: int = 1
    """The number of jobs of each set."""
    begun: int = 0
    """The sets with lower numbers have begun, or were stopped before."""
    ahead: Ranges = ()
    """The sets with other numbers that have begun: each waited only for its own predecessor."""
    again: tuple[int, ...] = ()
    """The sets that wait to begin again, in their order."""
    stopped: Ranges = ()
    """The sets that were stopped before they began."""
    max_parallel: int | None = None
    stop_after_failures: int | None = None
    reuse_container: bool = False
    """Jobs run one after another in one container (docs/rules.md 11.14)."""


class SweepContent(msgspec.Struct, frozen=True, kw_only=True):
    """All that the jobs of a sweep are made from. It is stored once and changes only when the run
    has ended, and its values that may be secret are forgotten."""

    sets: ParameterSets
    spec: JobSpec


class EndedSets(msgspec.Struct, frozen=True, kw_only=True):
    """The sets of a live sweep of which nothing is left to decide, unless a user retries one.

    It is derived, as `Past` is: so a turn of a sweep costs as much as its live jobs. A set that
    waits to begin again is in none of the ranges but `ran`.
    """

    jobs: tuple[Job, ...] = ()
    done: Ranges = ()
    failed: Ranges = ()
    stopped: Ranges = ()
    ran: Ranges = ()
    """Those of which a job was RUNNING once."""


NOTHING_ENDED = EndedSets()


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


class TakenOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """A run whose outputs the jobs of another one get."""

    run_id: str
    name: str


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
    after: tuple[Predecessor, ...] = ()
    """The runs that must come first."""
    outputs_from: tuple[TakenOutputs, ...] = ()
    deployment: int = 0
    """The number of a service's present version."""
    deployments: tuple[Deployment, ...] = ()
    """The latest versions of a service, in order; the last is the present one."""
    scales: tuple[GroupScale, ...] = ()
    """One for each replica group of a service."""
    sweep: Sweep | None = None
    """None: the run is no sweep."""
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
    sweep: SweepContent | None = None
    ended: EndedSets = NOTHING_ENDED

    @property
    def all_jobs(self) -> tuple[Job, ...]:
        """The jobs, with those of a sweep's ended sets, in the order of their indices."""
        if not self.ended.jobs:
            return self.jobs
        return tuple(sorted((*self.ended.jobs, *self.jobs), key=lambda job: job.index))


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """The use of one allocation of a user from `start` to `end` (None: still). The scheduler
    derives fair shares from it."""

    user: str
    gpus: int
    cpu: float
    start: float
    end: float | None
