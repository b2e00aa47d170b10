"""Reports are the inputs of `decide.decide`: everything that can be reported to a run.

A report states what was seen or asked, never what should follow from it.
"""

from __future__ import annotations

import msgspec

from controller.lifecycle.model import Allocation, CollectedOutputs, Deployment, JobSpec
from controller.lifecycle.pending_reasons import PendingReason
from controller.lifecycle.predecessors import Predecessor
from controller.lifecycle.renting_reasons import MachineReason
from fairlead.model.job_links import JobLink
from fairlead.model.reasons import Reason


class _Report(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str


class _AttemptReport(_Report, frozen=True, kw_only=True):
    attempt_id: str


class Order(_Report, frozen=True, kw_only=True):
    """A user sets how the run goes on. `order_key`: the same when it is repeated; empty: it is not
    known by one."""

    by: str
    order_key: str = ""


class StopRequested(Order, frozen=True, kw_only=True):
    """A user stops the run; with `abort` there is no grace."""

    abort: bool


class CompleteRequested(Order, frozen=True, kw_only=True):
    """A user ends the run as done now."""


class SuspendRequested(Order, frozen=True, kw_only=True):
    """A user suspends the run: no placement, retry, trigger or timeout. `abort_running` also ends
    running jobs."""

    abort_running: bool


class ResumeRequested(Order, frozen=True, kw_only=True):
    """A user resumes the run."""


class ScaleRequested(Order, frozen=True, kw_only=True):
    """A user sets the number of jobs of an independent group; new jobs are like the group's
    first."""

    group: str
    nodes: int


class _JobRequest(_Report, frozen=True, kw_only=True):
    job_id: str
    by: str


class JobAbortRequested(_JobRequest, frozen=True, kw_only=True):
    """A user ends this job's attempt at once; the job comes back uncharged."""


class JobAbandonRequested(_JobRequest, frozen=True, kw_only=True):
    """A user lets the run go on without this job."""


class JobInterruptRequested(_JobRequest, frozen=True, kw_only=True):
    """A user asks the job to end by itself, with its `restart_exit_code` if it wants to come
    back."""


class ProbeSeen(_AttemptReport, frozen=True, kw_only=True):
    """One try of a probe of a service's replica; `probe` is its index in the job's `serves`."""

    probe: int
    passed: bool
    message: str | None = None
    """Why it failed, as a sentence."""


class ReplicaRegistered(_AttemptReport, frozen=True, kw_only=True):
    """The gateway of its service sends requests to the replica, through this socket of its node."""

    socket: str


class RegistrationFailed(_AttemptReport, frozen=True, kw_only=True):
    """A try to register the replica with its gateway failed; it is repeated."""

    why: str


class JobSignalled(_AttemptReport, frozen=True, kw_only=True):
    """The runner has the signals before these ends (`SignalledEnd.id`)."""

    ids: tuple[str, ...]


class ReplicaDrained(_AttemptReport, frozen=True, kw_only=True):
    """No request is in flight at a replica that gets no new ones."""


class InactivitySeen(_AttemptReport, frozen=True, kw_only=True):
    """A look at a dev environment: since when it is not in use; None: it is."""

    at: float
    idle_since: float | None


class ReplicasWanted(_Report, frozen=True, kw_only=True):
    """The load of a replica group needs this many replicas."""

    group: str
    wanted: int
    why: str


class WakeRequested(_Report, frozen=True, kw_only=True):
    """A request waits for a replica of a service that has none."""


class DeployRequested(_Report, frozen=True, kw_only=True):
    """A user changes a service in place. The deployment's number and times are set when it
    begins."""

    deployment: Deployment


class RollbackRequested(_Report, frozen=True, kw_only=True):
    """A user brings an earlier deployment of a service back; `to` is its number."""

    to: int
    by: str


class ParentEnded(_Report, frozen=True, kw_only=True):
    """The run's parent ended in another status than DONE."""

    parent_id: str
    message: str
    """A sentence that says how the parent ended."""


class ServerFault(_Report, frozen=True, kw_only=True):
    """The controller cannot go on with the run."""

    message: str
    """Why, as a sentence."""


class SetsStopped(_Report, frozen=True, kw_only=True):
    """A user stops chosen sets of a sweep, given as ranges (first, last) of their numbers."""

    sets: tuple[tuple[int, int], ...]
    by: str


class SetsRetried(_Report, frozen=True, kw_only=True):
    """A user asks for chosen sets of a sweep again, given as ranges (first, last).

    `instead`: of the runs that come first, some that have ended, each with the one that comes in
    its place. If they are no longer these, or nothing is known of such a run, nothing changes.
    """

    sets: tuple[tuple[int, int], ...]
    by: str
    instead: tuple[tuple[Predecessor, Predecessor], ...] = ()


class StartAgainRequested(_AttemptReport, frozen=True, kw_only=True):
    """A user starts the running job again in its container, with what has changed of it."""

    spec: JobSpec
    configuration: dict[str, object]
    by: str
    at: float


class StartedAgain(_AttemptReport, frozen=True, kw_only=True):
    """The runner has started the job again; `number` as it was asked for."""

    number: int


class StartAgainRefused(_AttemptReport, frozen=True, kw_only=True):
    """The job cannot start again in its container."""

    number: int
    message: str


class StartEnded(_AttemptReport, frozen=True, kw_only=True):
    """The job's commands have ended at the Unix time `at`, as the runner says, and its container
    waits for the next start. `number` as of that start; 0: the first."""

    number: int
    at: float
    reason: Reason
    message: str | None = None
    exit_code: int | None = None


class WatcherSeen(_Report, frozen=True, kw_only=True):
    """A client watches the run, and counts as there until then; not after `at`: it leaves."""

    watcher: str
    until: float
    at: float


class SweepResized(_Report, frozen=True, kw_only=True):
    """A user changes how many sets of a sweep may be active at once; None: no number bounds it."""

    max_parallel: int | None
    by: str


class Nominated(_AttemptReport, frozen=True, kw_only=True):
    """The scheduler keeps this allocation (NOMINATED) for the attempt until its victims have
    left."""

    allocation: Allocation
    pending_reason: PendingReason


class NominationEnded(_AttemptReport, frozen=True, kw_only=True):
    """The nomination of the attempt ended; it waits in the queue again."""

    cause: str


class Preempted(_AttemptReport, frozen=True, kw_only=True):
    """A strictly higher band needs this attempt's allocation."""

    message: str


class NodeDrained(_Report, frozen=True, kw_only=True):
    """The drain deadline of a node has passed: jobs that still run there end as node_drained."""

    node_id: str
    message: str


class GangTooLarge(_Report, frozen=True, kw_only=True):
    """The placement value of a gang's survivors cannot hold the whole gang, busy or free."""

    message: str


class Placed(_AttemptReport, frozen=True, kw_only=True):
    """The scheduler holds this allocation for the attempt."""

    allocation: Allocation
    instead_of: tuple[str, ...] = ()
    """The allocations freed by a switch that this one uses up."""


class FreedAllocationLost(_Report, frozen=True, kw_only=True):
    """The node of an allocation that a switch had freed takes no more work."""

    allocation_id: str
    cause: str


class NotPlaced(_AttemptReport, frozen=True, kw_only=True):
    """The attempt gets no allocation now; `pending_reason` says why."""

    pending_reason: PendingReason


class MachineAnswered(_AttemptReport, frozen=True, kw_only=True):
    """The market was asked for a machine for the waiting attempt, or for the successor of one that
    stops because its machine is taken back. `why`: none is to be had, and no
    node could hold the attempt; None: there may be one again. `is_ordered`: there may be one only
    if it comes as ordered. `renting`: what is rented for it, or
    why nothing is; None: nothing is asked for."""

    why: str | None
    is_ordered: bool = False
    renting: MachineReason | None = None


class TaskAccepted(_AttemptReport, frozen=True, kw_only=True):
    """The shim has recorded the task."""


class TaskRefused(_AttemptReport, frozen=True, kw_only=True):
    """The shim refused the task for good (4xx other than 'fenced' or 'needs_credentials')."""

    reason: Reason
    message: str


class TaskSeen(_AttemptReport, frozen=True, kw_only=True):
    """The task as the shim has it now. It holds facts only; a repeated report changes nothing."""

    container_started: bool
    terminated: bool
    runner_socket: str
    reason: str | None = None
    """Why it ended, in the shim's words: `claims` knows which reasons a shim may give."""
    message: str | None = None
    exit_code: int | None = None
    gpus: tuple[str, ...] = ()
    ports: dict[str, int] = {}
    ssh_host_key: str | None = None
    ssh_host: str | None = None
    address: str | None = None
    image_digest: str | None = None
    has_outputs: bool = False
    """The job has ended and left outputs."""
    gpu_fault: str | None = None
    """The fault for which the shim cordoned one of its GPUs while the task lived."""
    creating: bool = False
    """The image is there; the container is being created or was created."""
    needs_credentials: bool = False
    """The shim was restarted and waits for the registry's credentials, which it never keeps."""
    progress: int = 0
    """The progress of the pull; a changed number means that the pull goes on."""
    version: int = 0
    """The task's own count of its changes; the report with the greater one is newer."""


class TaskMissing(_AttemptReport, frozen=True, kw_only=True):
    """The node's shim was reached and has no such task."""


class RunnerStarted(_AttemptReport, frozen=True, kw_only=True):
    """The runner started the commands at the Unix time `at`."""

    at: float


class RunnerExited(_AttemptReport, frozen=True, kw_only=True):
    """The runner's exit record, from the runner or, once the container is gone, from the shim."""

    reason: Reason
    message: str | None = None
    exit_code: int | None = None


class LeftClean(_AttemptReport, frozen=True, kw_only=True):
    """The job has ended and left nothing behind, and its runner waits for other jobs. It comes in
    the turn of RunnerExited."""


class Carried(_AttemptReport, frozen=True, kw_only=True):
    """What a carrier's runner says about a job of its batch that has begun or was given back.

    `returned`: it has not begun and never will there. `stored`: it has ended, nothing of it is
    left, and the controller has its whole log; its RunnerExited comes in the same turn or before.
    `outputs_lost`: it left outputs that could not be read.
    """

    carrier_id: str
    started_at: float | None = None
    returned: bool = False
    stored: bool = False
    outputs_lost: bool = False


class NotReusable(_AttemptReport, frozen=True, kw_only=True):
    """The container of this carrier takes no more jobs."""


class RunnerSilent(_AttemptReport, frozen=True, kw_only=True):
    """The runner did not answer within its limit although the shim is healthy."""


class LogsComplete(_AttemptReport, frozen=True, kw_only=True):
    """The controller has stored every byte of the log."""


class LinksFound(_AttemptReport, frozen=True, kw_only=True):
    """The job printed links to its run in another tool; these are all that are known."""

    links: tuple[JobLink, ...]


class OutputsCollected(_AttemptReport, frozen=True, kw_only=True):
    """The controller has stored the outputs, as far as the limits allow."""

    outputs: CollectedOutputs


class TaskRemoved(_AttemptReport, frozen=True, kw_only=True):
    """The shim removed the task, and its allocation unless that is kept: cleanup is confirmed."""

    allocation_released: bool = True


class AllocationReleased(_Report, frozen=True, kw_only=True):
    """The shim no longer holds this allocation, whose task was already gone."""

    allocation_id: str


class NodeDisconnected(_Report, frozen=True, kw_only=True):
    """The node's link is down, or up again; limits stand still meanwhile."""

    node_id: str
    disconnected: bool
    limits_anew: bool = False
    """The controller itself was away for an unknown time: the start limits, which blame the node,
    begin again when the link is up."""


class NodeGone(_Report, frozen=True, kw_only=True):
    """The node is LOST, has a new boot id or install id, or was removed as lost."""

    node_id: str
    reason: Reason
    message: str
    cleanup_confirmed: bool = False
    """Nothing of Fairlead can run there any more (new boot id, empty shim, removed as lost), so its
    allocations are free and not orphaned."""
    removed: bool = False
    """The node was removed (`node remove --lost`): no report about it will come."""


class EngineGone(_Report, frozen=True, kw_only=True):
    """The node is connected, and its engine has been away for as long as a node may be silent."""

    node_id: str
    message: str


class ControllerStarted(_Report, frozen=True, kw_only=True):
    """A controller begins its work, after a time in which nothing was decided."""


class Tick(_Report, frozen=True, kw_only=True):
    """A deadline that `decide` named has passed, or the facts in its `DecisionContext` changed."""


Report = (
    StopRequested
    | CompleteRequested
    | SuspendRequested
    | ResumeRequested
    | ScaleRequested
    | JobAbortRequested
    | JobAbandonRequested
    | JobInterruptRequested
    | SetsStopped
    | SetsRetried
    | SweepResized
    | StartAgainRequested
    | StartedAgain
    | StartAgainRefused
    | StartEnded
    | WatcherSeen
    | MachineAnswered
    | ProbeSeen
    | ReplicaRegistered
    | RegistrationFailed
    | ReplicaDrained
    | JobSignalled
    | InactivitySeen
    | ReplicasWanted
    | WakeRequested
    | DeployRequested
    | RollbackRequested
    | ParentEnded
    | ServerFault
    | Nominated
    | NominationEnded
    | Preempted
    | NodeDrained
    | GangTooLarge
    | Placed
    | NotPlaced
    | FreedAllocationLost
    | TaskAccepted
    | TaskRefused
    | TaskSeen
    | TaskMissing
    | RunnerStarted
    | RunnerExited
    | RunnerSilent
    | LeftClean
    | Carried
    | NotReusable
    | LogsComplete
    | LinksFound
    | OutputsCollected
    | TaskRemoved
    | AllocationReleased
    | NodeDisconnected
    | NodeGone
    | EngineGone
    | ControllerStarted
    | Tick
)
