"""Whether an attempt ended for a reason that it deserved, judged by what really happened to it."""

from __future__ import annotations

from controller.lifecycle.model import Attempt, Job
from controller.lifecycle.reasons import Reason
from tests.simulation.container import Container
from tests.simulation.script import Ending, Start, script_from, start_of

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
_BY_USER = frozenset({Reason.TERMINATED_BY_USER, Reason.ABORTED_BY_USER})
_BY_POLICY = frozenset(
    {
        Reason.TERMINATED_BY_SERVER,
        Reason.SIBLING_FAILED,
        Reason.MAX_DURATION_EXCEEDED,
        Reason.UNSCHEDULABLE,
    }
)


def undeserved(
    job: Job,
    attempt: Attempt,
    container: Container | None,
    *,
    asked: bool,
    unreliable: bool,
    drained: bool,
    lost: bool,
) -> str | None:
    """A sentence that says what is wrong, None when nothing is."""
    wrong_code = _wrong_exit_code(attempt, container)
    if wrong_code is not None:
        return wrong_code
    if lost and attempt.reason in _OF_LOST_TASKS:
        return None
    if attempt.reason is Reason.NODE_DRAINED and drained:
        return None
    if _deserved(job, attempt, container, asked=asked, unreliable=unreliable):
        return None
    start = start_of(job.spec.image)
    return f"{attempt.reason} ({attempt.message}) is not what happened: {_truth(start, container)}"


def _deserved(
    job: Job, attempt: Attempt, container: Container | None, *, asked: bool, unreliable: bool
) -> bool:
    reason, start, script = attempt.reason, start_of(job.spec.image), script_from(job.spec.env)
    record = None if container is None else container.record
    if reason is None or reason in _BY_POLICY:
        return reason is not None
    if reason in _START_OF:
        return start in _START_OF[reason]
    if reason in _BY_USER:
        return asked
    if reason is Reason.INSTANCE_UNREACHABLE:
        return unreliable
    if reason is Reason.DONE_BY_RUNNER:
        return record is not None and record.exit_code == 0
    if reason is Reason.OUT_OF_MEMORY:
        return script.ending is Ending.OUT_OF_MEMORY
    if reason is Reason.EXECUTOR_ERROR:
        return record is not None and record.reason == reason
    if reason is Reason.CONTAINER_EXITED_WITH_ERROR:
        if record is not None:
            return bool(record.exit_code)
        by_itself = start is Start.STILLBORN or script.ending is Ending.TAKES_RUNNER_ALONG
        return container is not None and (by_itself or unreliable)
    return False


def _wrong_exit_code(attempt: Attempt, container: Container | None) -> str | None:
    code = attempt.exit_code
    if container is None:
        return None if code is None else f"exit code {code} of a container that never was"
    true_code = container.exit_code if container.record is None else container.record.exit_code
    if code is None and attempt.reason is not Reason.DONE_BY_RUNNER:
        return None
    if code == true_code:
        return None
    return f"exit code {code} was reported, the true one is {true_code}"


def _truth(start: Start, container: Container | None) -> str:
    if container is None:
        return f"no container ran (start: {start})"
    if container.record is None:
        return f"the container ended with {container.exit_code} and no record (start: {start})"
    return f"the runner's record says {container.record.reason}, {container.record.exit_code}"
