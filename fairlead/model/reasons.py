"""Why attempts and runs end, as data: one row for each reason of docs/rules.md.

Everything that depends on a reason (final status, retry, budget, gang switch, sentence) is looked
up here. Rules elsewhere name a reason only where it alone is treated
differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import Final

import msgspec

from fairlead.model.statuses import STATES, AttemptStatus, IrisState, RunStatus
from fairlead.wire.runner import ExitReason
from fairlead.wire.shim import TaskReason


class Reason(StrEnum):
    """Why an attempt ended. A reason that a runner or a shim gives has its name in their wire
    types."""

    DONE_BY_RUNNER = ExitReason.DONE_BY_RUNNER.value
    CONTAINER_EXITED_WITH_ERROR = ExitReason.CONTAINER_EXITED_WITH_ERROR.value
    OUT_OF_MEMORY = ExitReason.OUT_OF_MEMORY.value
    EXECUTOR_ERROR = ExitReason.EXECUTOR_ERROR.value
    PORTS_BINDING_FAILED = TaskReason.PORTS_BINDING_FAILED.value
    CREATING_CONTAINER_ERROR = TaskReason.CREATING_CONTAINER_ERROR.value
    IMAGE_PULL_FAILED = TaskReason.IMAGE_PULL_FAILED.value
    VOLUME_ERROR = TaskReason.VOLUME_ERROR.value
    GATEWAY_ERROR = "gateway_error"
    WAITING_RUNNER_LIMIT_EXCEEDED = "waiting_runner_limit_exceeded"
    SECRET_MISSING = "secret_missing"
    PROBES_FAILED = "probes_failed"
    LOG_QUOTA_EXCEEDED = ExitReason.LOG_QUOTA_EXCEEDED.value
    MAX_DURATION_EXCEEDED = ExitReason.MAX_DURATION_EXCEEDED.value
    FAILED_TO_START_DUE_TO_NO_CAPACITY = "failed_to_start_due_to_no_capacity"
    UNSCHEDULABLE = "unschedulable"
    DEPENDENCY_FAILED = "dependency_failed"
    WAITING_INSTANCE_LIMIT_EXCEEDED = "waiting_instance_limit_exceeded"
    INSTANCE_ACCESS_REVOKED = "instance_access_revoked"
    INTERRUPTED_BY_NO_CAPACITY = TaskReason.NO_CAPACITY.value
    INSTANCE_UNREACHABLE = TaskReason.INSTANCE_UNREACHABLE.value
    GPU_UNHEALTHY = "gpu_unhealthy"
    LOST_AFTER_REVIVAL = "lost_after_revival"
    NODE_DRAINED = "node_drained"
    PREEMPTED = "preempted"
    TIME_LIMIT_REACHED = "time_limit_reached"
    INTERRUPTED = ExitReason.INTERRUPTED.value
    JOB_ABORTED_BY_USER = "job_aborted_by_user"
    INCARNATION_CHANGED = "incarnation_changed"
    SUSPENDED = "suspended"
    SIBLING_FAILED = "sibling_failed"
    SCALED_DOWN = "scaled_down"
    ABANDONED = "abandoned"
    RELEASED = "released"
    TERMINATED_BY_USER = "terminated_by_user"
    TERMINATED_BY_SERVER = "terminated_by_server"
    INACTIVITY_DURATION_EXCEEDED = "inactivity_duration_exceeded"
    TERMINATED_DUE_TO_UTILIZATION_POLICY = "terminated_due_to_utilization_policy"
    ABORTED_BY_USER = "aborted_by_user"


class RunReason(StrEnum):
    """Why a run ended."""

    ALL_JOBS_DONE = "all_jobs_done"
    COMPLETED_BY_USER = "completed_by_user"
    JOB_FAILED = "job_failed"
    RETRY_LIMIT_EXCEEDED = "retry_limit_exceeded"
    UNSCHEDULABLE = "unschedulable"
    DEPENDENCY_FAILED = "dependency_failed"
    WORKER_FAILED = "worker_failed"
    SERVER_ERROR = "server_error"
    GATEWAY_ERROR = "gateway_error"
    STOPPED_BY_USER = "stopped_by_user"
    ABORTED_BY_USER = "aborted_by_user"


class RetryEvent(StrEnum):
    """The events that a user can list in `retry.on_events`.

    A new one changes what `retry: true` and a `retry` without `on_events` mean: all of these.
    """

    ERROR = "error"
    INTERRUPTION = "interruption"
    NO_CAPACITY = "no-capacity"


class ComesBack(StrEnum):
    """The attempt ended because of something else; its job comes back together with that."""

    WITH_ITS_GANG = "with its gang"
    WITH_ITS_REPLICA = "with its replica"
    ON_RESUME = "on resume"


class ReasonClass(StrEnum):
    """Whether an end is a success, a failure or neither."""

    SUCCESS = "success"
    FAILURE = "failure"
    NEUTRAL = "neutral"


class Budget(StrEnum):
    """The limit of the retry policy that an end is charged to."""

    FAILURE = "failure"
    PREEMPTION = "preemption"


class SwitchReason(StrEnum):
    """Why a gang began a new incarnation; the rows of the causing reasons name the first three."""

    JOB_FAILED = "job_failed"
    JOB_ABORTED = "job_aborted"
    JOB_INTERRUPTED = "job_interrupted"
    JOB_LACK_AFTER_REVIVAL = "job_lack_after_revival"
    NO_CAPACITY = "no_capacity"
    """An elastic fleet had no offer left for a rank."""
    REINCARNATION_TIMEOUT = "reincarnation_timeout"
    PLACEMENT_TOO_SMALL = "placement_too_small"
    """The placement value of the survivors can never hold the whole gang."""
    RESUMED = "resumed"


class Limit(StrEnum):
    """The limit of the retry policy that ended a job for good."""

    BUDGET = "budget"
    DURATION = "duration"


class GraceClass(StrEnum):
    """The time for which a job that was RUNNING may go on after its reason is set."""

    NONE = "none"
    SHORT = "short"
    STOP_DURATION = "stop_duration"


SHORT_GRACE: Final = 10.0
"""Seconds."""


class ClaimRank(IntEnum):
    """The rank of a claim about why an attempt ended (docs/rules.md 2.5); the smallest number
    wins."""

    RUNNER_DONE = 0
    OUT_OF_MEMORY = 1
    ENDED_BY_SHIM = 2
    """The shim ended the job: the runner's own report of that end is only a consequence."""
    RUNNER_ERROR = 3
    SHIM_ERROR = 4
    NODE_LOSS = 5
    TAKEN_AWAY = 6
    """The job did nothing wrong: its allocation is wanted for something else."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The consequences of one reason.

    `sentence` is for people. `run` is why the run ends when a job ends for good with this reason
    and no limit of the retry policy ended it. `runner_rank` and `shim_rank` rank the claim of a
    runner or a shim; None: it must not make this claim. A job can forge its runner's claim, so none
    that a runner may make spares the retry budget.
    """

    final: AttemptStatus
    reason_class: ReasonClass
    event: RetryEvent | ComesBack | None = None
    budget: Budget | None = None
    gang_switch: SwitchReason | None = None
    iris: IrisState
    run: RunReason = RunReason.JOB_FAILED
    grace: GraceClass = GraceClass.STOP_DURATION
    runner_rank: ClaimRank | None = None
    shim_rank: ClaimRank | None = None
    sentence: str


def _error(sentence: str, *, runner: ClaimRank | None = None, shim: ClaimRank | None = None) -> Row:
    return Row(
        runner_rank=runner,
        shim_rank=shim,
        final=AttemptStatus.FAILED,
        reason_class=ReasonClass.FAILURE,
        event=RetryEvent.ERROR,
        budget=Budget.FAILURE,
        gang_switch=SwitchReason.JOB_FAILED,
        iris=IrisState.FAILED,
        sentence=sentence,
    )


def _node_failure(sentence: str, *, shim: ClaimRank | None = None) -> Row:
    return Row(
        shim_rank=shim,
        final=AttemptStatus.FAILED,
        reason_class=ReasonClass.FAILURE,
        event=RetryEvent.INTERRUPTION,
        budget=Budget.PREEMPTION,
        gang_switch=SwitchReason.JOB_ABORTED,
        iris=IrisState.WORKER_FAILED,
        run=RunReason.WORKER_FAILED,
        sentence=sentence,
    )


def _stopped(
    sentence: str,
    *,
    event: ComesBack | None = None,
    run: RunReason = RunReason.JOB_FAILED,
    grace: GraceClass = GraceClass.STOP_DURATION,
    final: AttemptStatus = AttemptStatus.TERMINATED,
) -> Row:
    return Row(
        final=final,
        reason_class=ReasonClass.NEUTRAL,
        event=event,
        iris=IrisState.KILLED,
        run=run,
        grace=grace,
        sentence=sentence,
    )


ROWS: Mapping[Reason, Row] = {
    Reason.DONE_BY_RUNNER: Row(
        final=AttemptStatus.DONE,
        reason_class=ReasonClass.SUCCESS,
        iris=IrisState.SUCCEEDED,
        runner_rank=ClaimRank.RUNNER_DONE,
        sentence="The job finished with exit code 0.",
    ),
    Reason.CONTAINER_EXITED_WITH_ERROR: _error(
        "The job ended with an error.", runner=ClaimRank.RUNNER_ERROR, shim=ClaimRank.SHIM_ERROR
    ),
    Reason.OUT_OF_MEMORY: _error(
        "The job used more memory than it had requested and was killed.",
        runner=ClaimRank.OUT_OF_MEMORY,
        shim=ClaimRank.OUT_OF_MEMORY,
    ),
    Reason.EXECUTOR_ERROR: _error(
        "The runner could not execute the job.", runner=ClaimRank.RUNNER_ERROR
    ),
    Reason.PORTS_BINDING_FAILED: _error(
        "A port that the job needs could not be bound.", shim=ClaimRank.SHIM_ERROR
    ),
    Reason.CREATING_CONTAINER_ERROR: _error(
        "The container could not be created.", shim=ClaimRank.SHIM_ERROR
    ),
    Reason.IMAGE_PULL_FAILED: _error("The image could not be pulled.", shim=ClaimRank.SHIM_ERROR),
    Reason.VOLUME_ERROR: _error(
        "A volume could not be attached or mounted.", shim=ClaimRank.SHIM_ERROR
    ),
    Reason.GATEWAY_ERROR: _error("The job could not be registered with its gateway."),
    Reason.WAITING_RUNNER_LIMIT_EXCEEDED: _error(
        "The container is running, but the runner in it did not answer in time."
    ),
    Reason.PROBES_FAILED: _error(
        "The probes of the replica failed for longer than its unhealthy_after."
    ),
    Reason.SECRET_MISSING: Row(
        final=AttemptStatus.FAILED,
        reason_class=ReasonClass.FAILURE,
        iris=IrisState.FAILED,
        sentence="A stored secret that the job names is not there.",
    ),
    Reason.LOG_QUOTA_EXCEEDED: Row(
        final=AttemptStatus.FAILED,
        reason_class=ReasonClass.FAILURE,
        iris=IrisState.FAILED,
        runner_rank=ClaimRank.RUNNER_ERROR,
        sentence="The job wrote more log than it is allowed to.",
    ),
    Reason.MAX_DURATION_EXCEEDED: Row(
        final=AttemptStatus.TERMINATED,
        reason_class=ReasonClass.FAILURE,
        iris=IrisState.KILLED,
        runner_rank=ClaimRank.RUNNER_ERROR,
        sentence="The run was running for longer than its max_duration.",
    ),
    Reason.FAILED_TO_START_DUE_TO_NO_CAPACITY: Row(
        final=AttemptStatus.FAILED,
        reason_class=ReasonClass.FAILURE,
        event=RetryEvent.NO_CAPACITY,
        iris=IrisState.UNSCHEDULABLE,
        run=RunReason.UNSCHEDULABLE,
        sentence="No node could hold the job, and no machine was to be had for it.",
    ),
    Reason.UNSCHEDULABLE: Row(
        final=AttemptStatus.FAILED,
        reason_class=ReasonClass.FAILURE,
        iris=IrisState.UNSCHEDULABLE,
        run=RunReason.UNSCHEDULABLE,
        sentence="No node had room for the job within its scheduling_timeout.",
    ),
    Reason.DEPENDENCY_FAILED: Row(
        final=AttemptStatus.FAILED,
        reason_class=ReasonClass.FAILURE,
        budget=Budget.FAILURE,
        iris=IrisState.FAILED,
        run=RunReason.DEPENDENCY_FAILED,
        sentence="What the job waited for can no longer come true.",
    ),
    Reason.WAITING_INSTANCE_LIMIT_EXCEEDED: _node_failure(
        "The node did not accept the job in time, or did not get its container ready."
    ),
    Reason.INSTANCE_ACCESS_REVOKED: _node_failure("The node refuses the controller's login."),
    Reason.INTERRUPTED_BY_NO_CAPACITY: _node_failure(
        "The provider took the node back, or the node was full after all.",
        shim=ClaimRank.ENDED_BY_SHIM,
    ),
    Reason.INSTANCE_UNREACHABLE: _node_failure(
        "The node is gone, was silent for too long, or could not run the job.",
        shim=ClaimRank.ENDED_BY_SHIM,
    ),
    Reason.GPU_UNHEALTHY: _node_failure(
        "A GPU of the job became unhealthy.", shim=ClaimRank.ENDED_BY_SHIM
    ),
    Reason.LOST_AFTER_REVIVAL: _node_failure("The node is there but no longer has the job."),
    Reason.NODE_DRAINED: Row(
        final=AttemptStatus.TERMINATED,
        reason_class=ReasonClass.NEUTRAL,
        event=RetryEvent.INTERRUPTION,
        gang_switch=SwitchReason.JOB_ABORTED,
        iris=IrisState.PREEMPTED,
        run=RunReason.WORKER_FAILED,
        sentence="The node is being drained.",
    ),
    Reason.PREEMPTED: Row(
        final=AttemptStatus.TERMINATED,
        reason_class=ReasonClass.NEUTRAL,
        event=RetryEvent.INTERRUPTION,
        budget=Budget.PREEMPTION,
        gang_switch=SwitchReason.JOB_ABORTED,
        iris=IrisState.PREEMPTED,
        run=RunReason.WORKER_FAILED,
        sentence="A job of a higher band needed this job's allocation.",
    ),
    Reason.TIME_LIMIT_REACHED: Row(
        final=AttemptStatus.TERMINATED,
        reason_class=ReasonClass.NEUTRAL,
        event=RetryEvent.INTERRUPTION,
        gang_switch=SwitchReason.JOB_INTERRUPTED,
        iris=IrisState.PREEMPTED,
        sentence="The job was running for its max_duration and comes back.",
    ),
    Reason.INTERRUPTED: Row(
        final=AttemptStatus.ABORTED,
        reason_class=ReasonClass.NEUTRAL,
        event=RetryEvent.INTERRUPTION,
        gang_switch=SwitchReason.JOB_INTERRUPTED,
        iris=IrisState.PREEMPTED,
        sentence="The job was interrupted and ended by itself.",
    ),
    Reason.JOB_ABORTED_BY_USER: Row(
        final=AttemptStatus.ABORTED,
        reason_class=ReasonClass.NEUTRAL,
        event=RetryEvent.INTERRUPTION,
        gang_switch=SwitchReason.JOB_ABORTED,
        iris=IrisState.KILLED,
        run=RunReason.ABORTED_BY_USER,
        grace=GraceClass.NONE,
        sentence="A user aborted this job.",
    ),
    Reason.INCARNATION_CHANGED: _stopped(
        "The job's gang started a new incarnation.",
        event=ComesBack.WITH_ITS_GANG,
        grace=GraceClass.SHORT,
        final=AttemptStatus.ABORTED,
    ),
    Reason.SUSPENDED: _stopped(
        "The run is suspended.", event=ComesBack.ON_RESUME, grace=GraceClass.SHORT
    ),
    Reason.SIBLING_FAILED: _stopped(
        "Another job of the same replica failed; the replica is tried again.",
        event=ComesBack.WITH_ITS_REPLICA,
    ),
    Reason.SCALED_DOWN: _stopped("The service was scaled down.", grace=GraceClass.SHORT),
    Reason.ABANDONED: _stopped("A user abandoned this job."),
    Reason.RELEASED: _stopped("The run is over and no longer needs its reserved job."),
    Reason.TERMINATED_BY_USER: _stopped("A user stopped the run.", run=RunReason.STOPPED_BY_USER),
    Reason.TERMINATED_BY_SERVER: _stopped("The run ended.", grace=GraceClass.SHORT),
    Reason.INACTIVITY_DURATION_EXCEEDED: _stopped(
        "The job was not used for its inactivity_duration."
    ),
    Reason.TERMINATED_DUE_TO_UTILIZATION_POLICY: _stopped(
        "Its GPUs were used less than its utilization_policy demands."
    ),
    Reason.ABORTED_BY_USER: _stopped(
        "A user aborted the run.",
        run=RunReason.ABORTED_BY_USER,
        grace=GraceClass.NONE,
        final=AttemptStatus.ABORTED,
    ),
}

ALLOCATION_LOST: Final = frozenset(
    {
        Reason.INSTANCE_UNREACHABLE,
        Reason.INTERRUPTED_BY_NO_CAPACITY,
        Reason.GPU_UNHEALTHY,
        Reason.NODE_DRAINED,
        Reason.PREEMPTED,
    }
)
"""Before the container runs, these reasons charge nothing, and the job is always tried again."""

ENDS_NO_RUN: Final = frozenset({Reason.ABANDONED, Reason.SCALED_DOWN, Reason.RELEASED})
"""Neutral reasons that end a job for good and leave its run alone."""

FINAL_STATUS_OF_RUN: Mapping[RunReason, RunStatus] = {
    RunReason.ALL_JOBS_DONE: RunStatus.DONE,
    RunReason.COMPLETED_BY_USER: RunStatus.DONE,
    RunReason.JOB_FAILED: RunStatus.FAILED,
    RunReason.RETRY_LIMIT_EXCEEDED: RunStatus.FAILED,
    RunReason.UNSCHEDULABLE: RunStatus.FAILED,
    RunReason.DEPENDENCY_FAILED: RunStatus.FAILED,
    RunReason.WORKER_FAILED: RunStatus.FAILED,
    RunReason.SERVER_ERROR: RunStatus.FAILED,
    RunReason.GATEWAY_ERROR: RunStatus.FAILED,
    RunReason.STOPPED_BY_USER: RunStatus.TERMINATED,
    RunReason.ABORTED_BY_USER: RunStatus.TERMINATED,
}

RUN_SENTENCES: Mapping[RunReason, str] = {
    RunReason.ALL_JOBS_DONE: "All jobs are done.",
    RunReason.COMPLETED_BY_USER: "A user declared the run complete.",
    RunReason.JOB_FAILED: "A job failed.",
    RunReason.RETRY_LIMIT_EXCEEDED: "A limit of the retry policy is reached.",
    RunReason.UNSCHEDULABLE: "No node had room for a job.",
    RunReason.DEPENDENCY_FAILED: "What the run waited for can no longer come true.",
    RunReason.WORKER_FAILED: "A job lost its allocation and may not be tried again.",
    RunReason.SERVER_ERROR: "The controller could not go on with the run.",
    RunReason.GATEWAY_ERROR: "The run could not be registered with its gateway.",
    RunReason.STOPPED_BY_USER: "A user stopped the run.",
    RunReason.ABORTED_BY_USER: "A user aborted the run.",
}

ATTEMPT_REASON_OF_RUN: Mapping[RunReason, Reason] = {
    RunReason.ALL_JOBS_DONE: Reason.TERMINATED_BY_SERVER,
    RunReason.COMPLETED_BY_USER: Reason.TERMINATED_BY_SERVER,
    RunReason.JOB_FAILED: Reason.TERMINATED_BY_SERVER,
    RunReason.RETRY_LIMIT_EXCEEDED: Reason.TERMINATED_BY_SERVER,
    RunReason.UNSCHEDULABLE: Reason.TERMINATED_BY_SERVER,
    RunReason.DEPENDENCY_FAILED: Reason.TERMINATED_BY_SERVER,
    RunReason.WORKER_FAILED: Reason.TERMINATED_BY_SERVER,
    RunReason.SERVER_ERROR: Reason.TERMINATED_BY_SERVER,
    RunReason.GATEWAY_ERROR: Reason.TERMINATED_BY_SERVER,
    RunReason.STOPPED_BY_USER: Reason.TERMINATED_BY_USER,
    RunReason.ABORTED_BY_USER: Reason.ABORTED_BY_USER,
}
"""The reason that the active attempts of a TERMINATING run get."""


def run_reason_of(reason: Reason, limit: Limit | None = None) -> RunReason:
    """Return why a run ends when a job ended for good with `reason`.

    `limit` is the limit of the retry policy that ended the job; None: its reason allows no retry.
    """
    run = ROWS[reason].run
    lost_too_often = run is RunReason.WORKER_FAILED and limit is Limit.BUDGET
    return run if limit is None or lost_too_often else RunReason.RETRY_LIMIT_EXCEEDED


def state_of(status: AttemptStatus, reason: Reason | None) -> IrisState:
    """Return the name that Iris gives an attempt's state.

    In Iris an attempt has ended as soon as its reason is set, here only when its cleanup is
    confirmed: `status` tells that.
    """
    return STATES[status] if reason is None else ROWS[reason].iris
