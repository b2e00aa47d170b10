"""A run with all that is decided together with it."""

from __future__ import annotations

import msgspec

from controller.lifecycle.model.attempt import Incarnation
from controller.lifecycle.model.job import Allocation, Job
from controller.lifecycle.model.sweep import NOTHING_ENDED, EndedSets, Sweep, SweepContent
from controller.lifecycle.predecessors import Predecessor
from fairlead.model.reasons import Reason, RunReason
from fairlead.model.service import DeploymentState, GroupScale, ServicePolicy
from fairlead.model.spec import Group, JobSpec, RunPolicy, RunType
from fairlead.model.statuses import RunStatus


class Switch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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


class Occurrence(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One finished execution of a scheduled run."""

    number: int
    status: RunStatus
    reason: RunReason
    message: str | None
    started_at: float
    finished_at: float


class PastRunning(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The time for which older attempts of one occurrence were RUNNING, before any attempt that the
    state has.

    It is derived, as `Past` is.
    """

    occurrence: int = 0
    seconds: float = 0.0


class Deployment(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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


class TakenOutputs(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A run whose outputs the jobs of another one get."""

    run_id: str
    name: str


class Run(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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
    order_keys: tuple[str, ...] = ()
    """Of the latest orders that were carried out."""
    submitted_at: float
    finished_at: float | None = None
    version: int = 0
    """It grows by one with each turn that changed the run."""
    past_running: PastRunning = PastRunning()

    @property
    def service(self) -> ServicePolicy | None:
        """The service as its present deployment wants it; None: the run is no service."""
        return self.deployments[-1].service if self.deployments else None


class RunState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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

    @property
    def uploads(self) -> frozenset[str]:
        """The digests of what its jobs get, also of jobs that are not made yet, and of a service's
        versions that can come back."""
        specs = {id(job.spec): job.spec for job in self.jobs}
        if self.sweep is not None:
            specs[id(self.sweep.spec)] = self.sweep.spec
        for deployment in self.run.deployments:
            specs.update((id(spec), spec) for spec in deployment.specs.values())
        return frozenset(digest for spec in specs.values() for digest in spec.blobs)


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """The use of one allocation of a user from `start` to `end` (None: still). The scheduler
    derives fair shares from it."""

    user: str
    gpus: int
    cpu: float
    start: float
    end: float | None
