"""What a run's configuration asks for: its policy, its groups, and the specification of their jobs.

Times and durations are seconds, sizes bytes, CPU is in cores.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from fairlead.model.beginning import After, Moment
from fairlead.model.dev_environment import DevEnvironment
from fairlead.model.needs import (
    NO_RENT_LIMITS,
    Constraint,
    RentLimits,
    Resources,
    StartupOrder,
)
from fairlead.model.reasons import RetryEvent
from fairlead.model.service import Serves
from fairlead.wire.job import JobProgram, Repo, RepoCredentials
from fairlead.wire.shim import ContainerOptions, PullPolicy, RegistryAuth, VolumeMount


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


class OnTimeLimit(StrEnum):
    """What `max_duration` does to a job."""

    END = "end"
    REQUEUE = "requeue"
    """The job is asked to end, and gets another attempt, uncharged."""


class Band(StrEnum):
    PRODUCTION = "production"
    INTERACTIVE = "interactive"
    BATCH = "batch"


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """When a job is tried again (docs/rules.md 3). `max_failures` None: unlimited when `error` is
    listed."""

    on_events: frozenset[RetryEvent] = frozenset({RetryEvent.INTERRUPTION})
    duration: float | None = None
    max_failures: int | None = None
    max_preemptions: int = 100


class Limits(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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
    no_capacity: float = 900.0
    """Seconds without any machine to rent for a job that no node could hold."""
    jitter: float = 0.2


class Group(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Jobs of one kind in a run (docs/rules.md 5).

    `gang_size` None: the group is no gang. Otherwise so many of its `nodes` jobs carry a rank; the
    rest are reserved.
    """

    name: str
    nodes: int = 1
    gang_size: int | None = None
    share_nodes: bool = False
    monitoring_by_rank: bool = False


class RunPolicy(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The user's settings that decide about the run's life."""

    retry: RetryPolicy = RetryPolicy()
    stop_duration: float = 300.0
    max_duration: float | None = None
    on_time_limit: OnTimeLimit = OnTimeLimit.END
    scheduling_timeout: float | None = None
    stop_criteria: StopCriteria = StopCriteria.ALL_DONE
    max_failed_jobs: int = 0
    max_failed_attempts: int | None = None
    fail_on_job_restart: bool = False
    restart_completed_jobs: bool = False
    schedule: tuple[str, ...] = ()
    """Cron expressions, in UTC."""
    after: tuple[After, ...] = ()
    outputs_from: tuple[str, ...] = ()
    """The names or ids of the runs whose outputs the jobs get."""
    begin: Moment | None = None
    """The earliest time for the first attempts."""
    start_before: Moment | None = None
    """The time by which a job must have been RUNNING."""
    startup_order: StartupOrder = StartupOrder.ANY
    on_parent_end: OnParentEnd = OnParentEnd.TERMINATE
    same_placement: bool = False
    """`placement: cluster`: all jobs in one value of a fleet's placement attribute, gang or not."""
    priority: int = 50
    band: Band = Band.INTERACTIVE
    limits: Limits = Limits()
    dev_environment: DevEnvironment | None = None
    """None: the run is none."""
    keeps_for: float | None = None
    """Seconds for which the job's container waits, after its end, to start it again
    (docs/rules.md 2.15); None: it does not."""

    @property
    def requeues(self) -> bool:
        """Whether a job comes back after its `max_duration`."""
        return self.on_time_limit is OnTimeLimit.REQUEUE

    @property
    def is_held_back(self) -> bool:
        """Whether jobs get their first attempts later than at the run's submission."""
        return bool(self.after) or self.begin is not None


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


class JobSpec(JobProgram, frozen=True, kw_only=True):
    """A job's specification; it is the same for all jobs of a group.

    What its runner executes are the fields of `JobProgram`. Other parts that an agent carries out
    unchanged are the agent's own wire types.
    """

    image: str
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
    secrets: dict[str, str] = msgspec.field(default_factory=dict)
    stop_when_unheard: float | None = None
    """`on_disconnect: stop`: seconds without contact to a controller after which the node's shim
    stops the job."""
    constraints: tuple[Constraint, ...] = ()
    fleets: tuple[str, ...] = ()
    """The names of the fleets that may run it; empty: any."""
    rent: RentLimits = NO_RENT_LIMITS
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


class PlannedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group, with what each of its jobs executes."""

    group: Group
    spec: JobSpec
