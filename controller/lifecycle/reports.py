"""Everything that can be reported to a run: the inputs of `turn.decide`.

A report states what was seen or asked, never what should follow from it.
"""

from __future__ import annotations

import msgspec

from controller.lifecycle.model import Allocation
from controller.lifecycle.reasons import Reason


class _Report(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str


class _AttemptReport(_Report, frozen=True, kw_only=True):
    attempt_id: str


class StopRequested(_Report, frozen=True, kw_only=True):
    """A user's `stop`; with `abort`, no grace."""

    abort: bool
    by: str


class CompleteRequested(_Report, frozen=True, kw_only=True):
    """End the run as done now."""

    by: str


class SuspendRequested(_Report, frozen=True, kw_only=True):
    """No placement, retry, trigger or timeout any more; `abort_running` ends what runs, too."""

    abort_running: bool
    by: str


class ResumeRequested(_Report, frozen=True, kw_only=True):
    by: str


class ScaleRequested(_Report, frozen=True, kw_only=True):
    """Independent groups only: so many jobs shall there be; new ones are like the group's first."""

    group: str
    nodes: int
    by: str


class _JobRequest(_Report, frozen=True, kw_only=True):
    job_id: str
    by: str


class JobAbortRequested(_JobRequest, frozen=True, kw_only=True):
    """End this job's attempt at once; it comes back uncharged."""


class JobAbandonRequested(_JobRequest, frozen=True, kw_only=True):
    """The run goes on without this job."""


class JobInterruptRequested(_JobRequest, frozen=True, kw_only=True):
    """Ask the job to end by itself, with its `restart_exit_code` if it wants to come back."""


class ParentEnded(_Report, frozen=True, kw_only=True):
    """The run's parent has ended other than DONE."""

    parent_id: str
    message: str
    """How it ended, for a person."""


class ServerFault(_Report, frozen=True, kw_only=True):
    """The controller cannot go on with the run."""

    message: str
    """Why, for a person."""


class Nominated(_AttemptReport, frozen=True, kw_only=True):
    """The scheduler holds this place (state NOMINATED) for the attempt until its victims left."""

    allocation: Allocation
    pending_reason: str


class NominationEnded(_AttemptReport, frozen=True, kw_only=True):
    """The attempt waits in the queue again."""

    cause: str


class Preempted(_AttemptReport, frozen=True, kw_only=True):
    """A strictly higher band needs this attempt's place."""

    message: str


class NodeDrained(_Report, frozen=True, kw_only=True):
    """The drain's deadline has passed: what still runs there ends as node_drained."""

    node_id: str
    message: str


class GangTooLarge(_Report, frozen=True, kw_only=True):
    """The placement value of a gang's survivors can't hold the whole gang, busy or free."""

    message: str


class Placed(_AttemptReport, frozen=True, kw_only=True):
    """The scheduler holds this allocation for the attempt."""

    allocation: Allocation
    instead_of: tuple[str, ...] = ()
    """The places that a switch had freed, and that this one uses up."""


class FreedPlaceLost(_Report, frozen=True, kw_only=True):
    """The node of a place that a switch had freed takes no work any more."""

    allocation_id: str
    cause: str


class NotPlaced(_AttemptReport, frozen=True, kw_only=True):
    """No place now: the sentence for `pending_reason`."""

    pending_reason: str


class TaskAccepted(_AttemptReport, frozen=True, kw_only=True):
    """The shim has the task on record."""


class TaskRefused(_AttemptReport, frozen=True, kw_only=True):
    """The shim refused the task for good (4xx other than 'fenced' or 'needs_credentials')."""

    reason: Reason
    message: str


class TaskSeen(_AttemptReport, frozen=True, kw_only=True):
    """The task as the shim has it now; facts only, repeated reports change nothing."""

    container_started: bool
    terminated: bool
    runner_socket: str
    reason: str | None = None
    """Why it ended, in the shim's word: `claims` knows which reasons are a shim's to give."""
    message: str | None = None
    exit_code: int | None = None
    gpus: tuple[str, ...] = ()
    ports: dict[str, int] = {}
    ssh_host_key: str | None = None
    image_digest: str | None = None
    gpu_fault: str | None = None
    """The shim cordoned a GPU of its while it lived: what was found."""
    creating: bool = False
    """The image is there, the container is being created or was."""
    needs_credentials: bool = False
    """The shim was restarted and waits for the registry's credentials, which it never keeps."""
    progress: int = 0
    """How far the image is; another number than before means that the pull goes on."""
    version: int = 0
    """The task's own count of its changes: which of two reports is the newer one."""


class TaskMissing(_AttemptReport, frozen=True, kw_only=True):
    """The node's shim was reached and has no such task."""


class RunnerStarted(_AttemptReport, frozen=True, kw_only=True):
    """The runner has started the commands, at `at`."""

    at: float


class RunnerExited(_AttemptReport, frozen=True, kw_only=True):
    """The runner's exit record; also when read from the shim after the container was gone."""

    reason: Reason
    message: str | None = None
    exit_code: int | None = None


class RunnerSilent(_AttemptReport, frozen=True, kw_only=True):
    """The runner did not answer for its limit beside a healthy shim."""


class LogsComplete(_AttemptReport, frozen=True, kw_only=True):
    """Every byte of the log that exists is stored by the controller."""


class TaskRemoved(_AttemptReport, frozen=True, kw_only=True):
    """The task is gone from the shim, and its allocation with it unless that is kept: cleanup is
    confirmed."""

    place_released: bool = True


class PlaceReleased(_Report, frozen=True, kw_only=True):
    """The shim no longer holds this allocation, whose task was gone already."""

    allocation_id: str


class NodeDisconnected(_Report, frozen=True, kw_only=True):
    """The link of the node is down or up again; limits stand still meanwhile."""

    node_id: str
    disconnected: bool
    limits_anew: bool = False
    """The controller itself was away, nobody knows since when: the start limits, which blame the
    node, begin anew when the link is up."""


class NodeGone(_Report, frozen=True, kw_only=True):
    """The node is LOST, has a new boot or install id, or was removed as lost."""

    node_id: str
    reason: Reason
    message: str
    cleanup_confirmed: bool = False
    """Nothing of ours can run there any more (new boot id, empty shim, removed as lost), so that
    its allocations are free and not orphaned."""
    removed: bool = False
    """The node is no longer ours (`node remove --lost`): nothing more will ever be heard of it."""


class Tick(_Report, frozen=True, kw_only=True):
    """A deadline that `decide` had named has passed, or the run's surroundings have changed."""


Report = (
    StopRequested
    | CompleteRequested
    | SuspendRequested
    | ResumeRequested
    | ScaleRequested
    | JobAbortRequested
    | JobAbandonRequested
    | JobInterruptRequested
    | ParentEnded
    | ServerFault
    | Nominated
    | NominationEnded
    | Preempted
    | NodeDrained
    | GangTooLarge
    | Placed
    | NotPlaced
    | FreedPlaceLost
    | TaskAccepted
    | TaskRefused
    | TaskSeen
    | TaskMissing
    | RunnerStarted
    | RunnerExited
    | RunnerSilent
    | LogsComplete
    | TaskRemoved
    | PlaceReleased
    | NodeDisconnected
    | NodeGone
    | Tick
)
