"""Runs, their batches, events and watches."""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.documents.base import View
from fairlead.documents.jobs import AllocationView, IncarnationView, JobView
from fairlead.documents.services import DeploymentView, ScaleView
from fairlead.documents.sweeps import SweepView
from fairlead.model.beginning import SameJob, When
from fairlead.model.dev_environment import Ide
from fairlead.model.job_links import JobLink
from fairlead.model.reasons import Reason, RunReason
from fairlead.model.spec import Band, RunType
from fairlead.model.statuses import RunStatus
from fairlead.wire.errors import ErrorDetail
from fairlead.wire.shim import PullProgress

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


class SwitchView(View, frozen=True):
    """Why a gang started again. `incarnation`: the number that began; `whole`: all allocations were
    given back first."""

    reason: str
    attempt_id: str | None
    attempt_reason: Reason | None
    message: str | None
    at: str
    incarnation: int
    whole: bool


class GroupView(View, frozen=True):
    """`gang_size` null: no gang; otherwise so many of its `nodes` jobs carry a rank."""

    name: str
    nodes: int
    gang_size: int | None
    share_nodes: bool


class OccurrenceView(View, frozen=True):
    """One finished execution of a scheduled run."""

    number: int
    status: RunStatus
    termination_reason: RunReason
    message: str | None
    started_at: str
    finished_at: str


class ChildView(View, frozen=True):
    id: str
    name: str
    status: RunStatus


class DevEnvironmentView(View, frozen=True):
    """A dev environment. `path`: where its IDE opens in the browser, below the controller's URL;
    null: it does not. `inactivity_duration`: seconds. `inactive_since`: null while it is in use."""

    ide: Ide | None
    folder: str
    path: str | None
    inactivity_duration: float | None
    inactive_since: str | None


class AfterView(View, frozen=True):
    """A run that must come first. `run_id` is what its name meant at the submission; `met`: its
    condition came true."""

    run_id: str
    name: str
    when: When
    job: SameJob
    met: bool


class RunView(View, frozen=True):
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


class RetriedView(RunView, frozen=True):
    """The run that has the retried parameter sets. `left_out`: why other chosen sets stay as they
    are, as sentences: what they wait for must be retried first."""

    left_out: tuple[str, ...] = ()


class RunSummary(View, frozen=True):
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


class EventView(View, frozen=True):
    """One event of a run; `seq` is the cursor from which to continue. `because`: the cause as a
    sentence. `run_id` is empty for an event that is of no run, which admins see."""

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


class EventLine(View, frozen=True):
    """One line of a stream; a heartbeat has no event."""

    event: EventView | None


class WatchLine(View, frozen=True):
    """One line of a watch; a heartbeat has no run. `progress`: bytes of images being pulled and of
    outputs being collected, by attempt id."""

    run: RunView | None
    progress: dict[str, PullProgress] = msgspec.field(default_factory=dict)
