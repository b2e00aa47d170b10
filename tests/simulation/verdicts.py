"""Whether an attempt ended for a reason that it deserved, judged by what really happened to it."""

from __future__ import annotations

import msgspec

from controller.lifecycle import reports
from controller.lifecycle.attempts.retry import charged_to
from controller.lifecycle.model import Attempt, Band, Job, RunState
from controller.lifecycle.reports import Report
from fairlead.model.reasons import Reason
from fairlead.model.statuses import RunStatus
from tests.simulation import orders
from tests.simulation.container import Container
from tests.simulation.script import Ending, Start, start_of

_START_OF: dict[Reason, frozenset[Start]] = {
    Reason.IMAGE_PULL_FAILED: frozenset({Start.NO_SUCH_IMAGE}),
    Reason.CREATING_CONTAINER_ERROR: frozenset({Start.CANNOT_CREATE}),
    Reason.WAITING_RUNNER_LIMIT_EXCEEDED: frozenset({Start.MUTE}),
}
_OF_LOST_TASKS = frozenset(
    {
        Reason.LOST_AFTER_REVIVAL,
        Reason.CONTAINER_EXITED_WITH_ERROR,
        Reason.WAITING_RUNNER_LIMIT_EXCEEDED,
    }
)
"""The last when the task was lost before its acceptance was committed: then nobody misses it, and
the silence of its runner tells."""
_OF_BROKEN_PARTS = frozenset({Reason.INSTANCE_UNREACHABLE, Reason.GPU_UNHEALTHY})
_OF_LOST_NODES = frozenset({Reason.INSTANCE_UNREACHABLE, Reason.INTERRUPTED_BY_NO_CAPACITY})
_OF_CLOCKS = frozenset(
    {Reason.WAITING_INSTANCE_LIMIT_EXCEEDED, Reason.WAITING_RUNNER_LIMIT_EXCEEDED}
)
_OF_CROWDS = frozenset({Reason.WAITING_INSTANCE_LIMIT_EXCEEDED, Reason.CREATING_CONTAINER_ERROR})
"""The latter where the unknown task is in the very place that the database holds for another."""
_ASKED_BY: dict[Reason, tuple[type[Report], ...]] = {
    Reason.TERMINATED_BY_USER: (reports.StopRequested,),
    Reason.ABORTED_BY_USER: (reports.StopRequested,),
    Reason.SUSPENDED: (reports.SuspendRequested,),
    Reason.JOB_ABORTED_BY_USER: (reports.JobAbortRequested,),
    Reason.ABANDONED: (reports.JobAbandonRequested, reports.SetsStopped),
    Reason.INTERRUPTED: (reports.JobInterruptRequested,),
    Reason.SCALED_DOWN: (reports.ScaleRequested,),
}
_BY_POLICY = frozenset(
    {
        Reason.TERMINATED_BY_SERVER,
        Reason.SIBLING_FAILED,
        Reason.MAX_DURATION_EXCEEDED,
        Reason.UNSCHEDULABLE,
        Reason.FAILED_TO_START_DUE_TO_NO_CAPACITY,
        Reason.INACTIVITY_DURATION_EXCEEDED,
        Reason.DEPENDENCY_FAILED,
    }
)
"""The last is judged by `waiting`, with what its predecessor came to."""


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt's fate from outside."""

    asked: frozenset[type[Report]]
    """Users' requests to its job or to its run."""
    parent_ended: bool
    one_job_aborted: bool
    """A user aborted a job of its run, which may end the run."""
    unreliable: bool
    """Its node was off, or silent for long."""
    drained: bool
    lost: bool
    """Its node has forgotten it."""
    broken: bool
    """Its engine or a GPU of it failed."""
    engine_away: bool
    """Its node's engine was away for long while it held its allocation."""
    gpu_broke: bool
    """A GPU of its place was broken while it held that."""
    unheard_at: float | None
    """When its node stopped it, since it had not heard of a controller."""
    clock_jumped: bool
    crowded: bool
    """Its node may have held tasks that the controller did not know."""
    outranked: bool
    """There are runs of a strictly higher band."""


def undeserved(
    state: RunState, job: Job, attempt: Attempt, container: Container | None, why: Circumstances
) -> str | None:
    """A sentence that says what is wrong, None when nothing is."""
    wrong_code = _wrong_exit_code(attempt, container)
    if wrong_code is not None:
        return wrong_code
    charged = _charged_for_the_engine(job, attempt, container, why)
    if charged is not None:
        return charged
    not_by_policy = None if why.clock_jumped else orders.not_by_policy(state, job, attempt)
    if not_by_policy is not None:
        return f"{attempt.reason} ({attempt.message}) is not what happened: {not_by_policy}"
    if _befell(attempt.reason, why) or _of_its_gang(state, attempt):
        return None
    if _deserved(job, attempt, container, why):
        return None
    start = start_of(job.spec.image)
    return f"{attempt.reason} ({attempt.message}) is not what happened: {_truth(start, container)}"


def _charged_for_the_engine(
    job: Job, attempt: Attempt, container: Container | None, why: Circumstances
) -> str | None:
    """A sentence when a job that did not start was charged although its node's engine was away.

    An engine that stays away is the fault of its node (docs/rules.md 7.9).
    """
    budget = charged_to(attempt)
    if not why.engine_away or container is not None or budget is None:
        return None
    if why.lost or why.clock_jumped or why.crowded:
        return None
    if attempt.reason in _START_OF and start_of(job.spec.image) in _START_OF[attempt.reason]:
        return None
    return f"{attempt.reason} is charged to budget {budget}, but the engine of its node was away"


def _befell(reason: Reason | None, why: Circumstances) -> bool:
    if reason in _ASKED_BY and why.asked & set(_ASKED_BY[reason]):
        return True
    return (
        (why.parent_ended and reason is Reason.TERMINATED_BY_USER)
        or (why.one_job_aborted and reason is Reason.ABORTED_BY_USER)
        or (why.lost and reason in _OF_LOST_TASKS)
        or (why.drained and reason is Reason.NODE_DRAINED)
        or (why.broken and reason in _OF_BROKEN_PARTS)
        or (why.engine_away and reason is Reason.INSTANCE_UNREACHABLE)
        or (why.gpu_broke and reason is Reason.GPU_UNHEALTHY)
        or (why.clock_jumped and reason in _OF_CLOCKS)
        or (why.crowded and reason in _OF_CROWDS)
        or (why.unreliable and reason in _OF_LOST_NODES)
        or (why.unheard_at is not None and reason is Reason.INSTANCE_UNREACHABLE)
        or (why.outranked and reason is Reason.PREEMPTED)
    )


def _of_its_gang(state: RunState, attempt: Attempt) -> bool:
    if attempt.incarnation is None:
        return False
    if attempt.reason is Reason.RELEASED:
        return attempt.rank is None and state.run.status not in (
            RunStatus.RUNNING,
            RunStatus.PROVISIONING,
        )
    if attempt.reason is Reason.SUSPENDED:
        return state.run.suspended
    return attempt.reason is Reason.INCARNATION_CHANGED and bool(state.run.switches)


def _deserved(job: Job, attempt: Attempt, container: Container | None, why: Circumstances) -> bool:
    reason, start = attempt.reason, start_of(job.spec.image)
    ending = None if container is None or container.script is None else container.script.ending
    record = None if container is None else container.record or container.starts.waits
    if reason is None or reason in _BY_POLICY:
        return reason is not None
    if reason in _START_OF:
        return start in _START_OF[reason]
    if reason is Reason.DONE_BY_RUNNER:
        return record is not None and record.exit_code == 0
    if reason in (Reason.PROBES_FAILED, Reason.GATEWAY_ERROR):
        return job.spec.serves is not None
    if reason is Reason.OUT_OF_MEMORY:
        return ending is Ending.OUT_OF_MEMORY
    if reason is Reason.EXECUTOR_ERROR:
        return record is not None and record.reason == reason
    if reason is Reason.CONTAINER_EXITED_WITH_ERROR:
        if record is not None:
            of_its_node = why.unheard_at is not None and record.finished_at >= why.unheard_at
            return bool(record.exit_code) and (why.clock_jumped or not of_its_node)
        by_itself = start is Start.STILLBORN or ending is Ending.TAKES_RUNNER_ALONG
        return container is not None and (by_itself or why.unreliable)
    return False


def could_preempt(band: Band, others: set[Band]) -> bool:
    order = [Band.PRODUCTION, Band.INTERACTIVE, Band.BATCH]
    return any(order.index(other) < order.index(band) for other in others)


def _wrong_exit_code(attempt: Attempt, container: Container | None) -> str | None:
    code = attempt.exit_code
    if container is None:
        return None if code is None else f"exit code {code} of a container that never was"
    true_code = container.exit_code if container.record is None else container.record.exit_code
    if code is None and attempt.reason is not Reason.DONE_BY_RUNNER:
        return None
    waits = container.starts.waits
    # Whether the controller had heard how the last start ended is for `watched` to judge.
    if code == true_code or (container.record is None and waits and code == waits.exit_code):
        return None
    return f"exit code {code} was reported, the true one is {true_code}"


def _truth(start: Start, container: Container | None) -> str:
    if container is None:
        return f"no container ran (start: {start})"
    if container.record is None:
        return f"the container ended with {container.exit_code} and no record (start: {start})"
    return f"the runner's record says {container.record.reason}, {container.record.exit_code}"
