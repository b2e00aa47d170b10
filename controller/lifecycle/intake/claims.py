"""Reports of one turn claim why an attempt ended; this module chooses the claim to believe.

docs/rules.md 2.5 ranks them, and each reason's row says how a runner's or a shim's claim of it
ranks. The best claim becomes the reason; the others are recorded. The choice does not depend on the
order in which the reports of a turn arrive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from controller.lifecycle.attempts import again, termination
from controller.lifecycle.draft import Draft
from controller.lifecycle.model import Amount, Attempt
from controller.lifecycle.reports import (
    EngineGone,
    NodeDrained,
    NodeGone,
    Preempted,
    Report,
    RunnerExited,
    RunnerSilent,
    TaskMissing,
    TaskRefused,
    TaskRemoved,
    TaskSeen,
)
from fairlead.model.reasons import ROWS, ClaimRank, Reason
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES, AttemptStatus
from fairlead.wire.sizes import size_words


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """One claim about why an attempt ended.

    `inferred`: no report said so; it is concluded from missing reports. An inferred claim is never
    recorded next to another reason.
    """

    rank: ClaimRank
    reason: Reason
    message: str | None
    cause: str
    inferred: bool = False


Claims = dict[str, list[Claim]]
"""The claims by attempt id."""

_ON_NODE = frozenset({AttemptStatus.PULLING, AttemptStatus.RUNNING})
_STARTING = frozenset({AttemptStatus.PROVISIONING, AttemptStatus.PULLING})
_NOT_STARTED = frozenset(
    {AttemptStatus.SUBMITTED, AttemptStatus.PROVISIONING, AttemptStatus.PULLING}
)
"""A node can refuse a task while its attempt still waits: the node has the task from before a
restore."""


def ranked(claims: Sequence[Claim]) -> list[Claim]:
    """Sort claims, best first. Equal claims get an order that does not depend on their arrival."""
    return sorted(claims, key=lambda c: (c.rank, c.inferred, c.reason, c.message or "", c.cause))


def missing_when_reported(draft: Draft, reports: Sequence[Report]) -> Claims:
    """Return the claims of TaskMissing; call this before the facts of the turn are applied.

    A task that the shim accepts in the same turn was not lost, so such a report makes no claim. The
    reason is lost_after_revival (docs/rules.md 5.10), also outside gangs: the node is there, the
    task is not.
    """
    claims: Claims = {}
    for report in reports:
        if isinstance(report, TaskMissing):
            for attempt, claim in _task_lost(draft, report):
                claims.setdefault(attempt.id, []).append(claim)
    return claims


def _task_lost(draft: Draft, report: TaskMissing | TaskRemoved) -> Iterator[tuple[Attempt, Claim]]:
    attempt = draft.attempt(report.attempt_id)
    if attempt is None or attempt.status not in _ON_NODE:
        return
    yield (
        attempt,
        Claim(
            rank=ClaimRank.SHIM_ERROR,
            reason=Reason.LOST_AFTER_REVIVAL,
            message="the node's shim no longer has the task",
            cause=type(report).__name__,
            inferred=True,
        ),
    )


def judge(draft: Draft, reports: Sequence[Report], claims: Claims) -> None:
    """End every attempt that a claim is about, with the best of its claims."""
    for report in reports:
        _collect(draft, report, claims)
    for attempt_id, made in claims.items():
        best, *others = ranked(made)
        _believe(draft, attempt_id, best)
        for claim in others:
            _believe(draft, attempt_id, claim)


def _believe(draft: Draft, attempt_id: str, claim: Claim) -> None:
    attempt = draft.attempt(attempt_id)
    # What is only concluded is no second reason: the task may be gone because the first one ended
    # it.
    if attempt is None or (claim.inferred and attempt.reason is not None):
        return
    message = claim.message
    if claim.reason is Reason.OUT_OF_MEMORY:
        message = _with_limit(draft, attempt, message)
    termination.end(draft, attempt, claim.reason, claim.cause, message)


def _with_limit(draft: Draft, attempt: Attempt, message: str | None) -> str | None:
    """Return the message with the limit that the job reached, and the field that sets it."""
    allocation = draft.allocation_of(attempt)
    if allocation is None:
        return message
    resources = allocation.resources
    limit = f"the limit was {size_words(resources.memory)}"
    if Amount.MEMORY in resources.unset:
        advice = "resources.memory is not set: set it to what the job needs"
    else:
        advice = "raise resources.memory"
    return f"{message or 'the job used too much memory'}; {limit}; {advice}"


def _collect(draft: Draft, report: Report, claims: Claims) -> None:
    for attempt, claim in _claims_of(draft, report):
        claims.setdefault(attempt.id, []).append(claim)


def _claims_of(draft: Draft, report: Report) -> Iterator[tuple[Attempt, Claim]]:
    match report:
        case RunnerExited() | TaskSeen() | TaskRefused() | RunnerSilent():
            attempt = draft.attempt(report.attempt_id)
            claim = None if attempt is None else _claim(draft, attempt, report)
            if attempt is not None and claim is not None:
                yield attempt, claim
            if isinstance(report, TaskSeen):
                yield from _gpu_fault(attempt, report)
        case TaskRemoved():
            yield from _task_lost(draft, report)
        case Preempted():
            attempt = draft.attempt(report.attempt_id)
            # It may have ended by itself since the pass chose it as a victim.
            if attempt is None or attempt.node_id is None:
                return
            if attempt.reason is None or attempt.carries_until:
                yield attempt, _lost(report, ClaimRank.TAKEN_AWAY, Reason.PREEMPTED)
        case NodeGone():
            for attempt in draft.attempts_on(report.node_id):
                if attempt.status not in FINAL_ATTEMPT_STATUSES:
                    yield attempt, _lost(report, ClaimRank.NODE_LOSS, report.reason)
        case EngineGone():
            for attempt in draft.attempts_on(report.node_id):
                # What runs goes on without its engine: its runner still reports how it ends.
                if attempt.status in _STARTING and not attempt.seen.container_started:
                    reason = Reason.INSTANCE_UNREACHABLE
                    yield attempt, _lost(report, ClaimRank.NODE_LOSS, reason)
        case NodeDrained():
            for attempt in draft.attempts_on(report.node_id):
                if attempt.status not in FINAL_ATTEMPT_STATUSES and attempt.reason is None:
                    yield attempt, _lost(report, ClaimRank.TAKEN_AWAY, Reason.NODE_DRAINED)
        case _:
            pass


def _claim(
    draft: Draft, attempt: Attempt, report: RunnerExited | TaskSeen | TaskRefused | RunnerSilent
) -> Claim | None:
    refused = isinstance(report, TaskRefused)
    if attempt.status in FINAL_ATTEMPT_STATUSES or (attempt.node_id is None and not refused):
        return None
    match report:
        case RunnerExited():
            return _interrupted(draft, attempt, report) or _runner_exited(report)
        case TaskSeen():
            return _task_ended(report) if report.terminated else None
        case TaskRefused():
            if attempt.status not in _NOT_STARTED:
                return None
            return Claim(
                rank=ClaimRank.SHIM_ERROR,
                reason=report.reason,
                message=report.message,
                cause="TaskRefused",
            )
        case RunnerSilent():
            # A silent node silences its runners too: then section 7 decides, not this limit.
            lives = attempt.status in _ON_NODE or attempt.carries_until
            if not lives or attempt.disconnected:
                return None
            return _silent(draft, attempt)


def _silent(draft: Draft, attempt: Attempt) -> Claim:
    """Return the claim of a runner that does not answer.

    An engine that was stopped took its containers along, and nobody can tell how they ended.
    """
    if attempt.node_id in draft.context.silent_engines:
        return Claim(
            rank=ClaimRank.NODE_LOSS,
            reason=Reason.INSTANCE_UNREACHABLE,
            message="neither the runner nor the node's engine answers",
            cause="RunnerSilent",
        )
    return Claim(
        rank=ClaimRank.SHIM_ERROR,
        reason=Reason.WAITING_RUNNER_LIMIT_EXCEEDED,
        message="the runner is silent although the shim is healthy",
        cause="RunnerSilent",
    )


def _gpu_fault(attempt: Attempt | None, report: TaskSeen) -> Iterator[tuple[Attempt, Claim]]:
    """Yield the claim of a GPU fault that the shim found itself: it outranks the job's own
    error."""
    if report.gpu_fault is None or attempt is None or attempt.status not in _ON_NODE:
        return
    yield (
        attempt,
        Claim(
            rank=ClaimRank.ENDED_BY_SHIM,
            reason=Reason.GPU_UNHEALTHY,
            message=report.gpu_fault,
            cause="TaskSeen",
        ),
    )


def _interrupted(draft: Draft, attempt: Attempt, report: RunnerExited) -> Claim | None:
    """Return the claim of a job that ended because it was asked to.

    It ended with its `restart_exit_code` or had to be killed. A job that was neither asked nor told
    of an end by its `signal` cannot make this claim.
    """
    if attempt.interruption is None and not attempt.signalled:
        return None
    job = draft.job(attempt.job_id)
    code = None if job is None else job.spec.restart_exit_code
    by_code = report.reason is Reason.CONTAINER_EXITED_WITH_ERROR and report.exit_code == code
    if report.reason is not Reason.INTERRUPTED and not (by_code and code is not None):
        return None
    return Claim(
        rank=ClaimRank.RUNNER_ERROR,
        reason=Reason.INTERRUPTED,
        message=report.message,
        cause="RunnerExited",
    )


def _runner_exited(report: RunnerExited) -> Claim:
    reason, message = again.reason_from_runner(report.reason, report.message, report.exit_code)
    rank = ROWS[reason].runner_rank
    assert rank is not None
    return Claim(rank=rank, reason=reason, message=message, cause="RunnerExited")


def _task_ended(report: TaskSeen) -> Claim:
    if report.reason is not None:
        reason = _known(report.reason)
        rank = None if reason is None else ROWS[reason].shim_rank
        if reason is None or rank is None:
            return _ended_by_a_forgotten_order(report, reason)
        return Claim(rank=rank, reason=reason, message=report.message, cause="TaskSeen")
    if report.exit_code:
        reason = Reason.CONTAINER_EXITED_WITH_ERROR
        message = f"the container ended with exit code {report.exit_code} and no exit record"
    else:
        reason = Reason.EXECUTOR_ERROR
        message = "the container ended without an exit record"
    return Claim(
        rank=ClaimRank.SHIM_ERROR,
        reason=reason,
        message=report.message or message,
        cause="TaskSeen",
        inferred=True,
    )


def _ended_by_a_forgotten_order(report: TaskSeen, reason: Reason | None) -> Claim:
    """Return the claim of a shim with a reason that it cannot have found itself.

    It repeats an order of this controller that the restored database does not know. That counts as
    a lost allocation, so the job is tried again. A reason in the order that came from the job's
    runner ranks below the runner's exit record, which decides if there is one.
    """
    why = f": {report.message}" if report.message else ""
    from_runner = reason is not None and ROWS[reason].runner_rank is not None
    return Claim(
        rank=ClaimRank.SHIM_ERROR if from_runner else ClaimRank.ENDED_BY_SHIM,
        reason=Reason.INSTANCE_UNREACHABLE,
        message=f"its node ended it as {report.reason}, which this controller did not request{why}",
        cause="TaskSeen",
        inferred=True,
    )


def _known(reason: str) -> Reason | None:
    """Return the reason; None for one of a newer shim."""
    try:
        return Reason(reason)
    except ValueError:
        return None


def _lost(
    report: NodeDrained | Preempted | NodeGone | EngineGone, rank: ClaimRank, reason: Reason
) -> Claim:
    """Return the claim that the attempt's allocation is lost, or wanted by another."""
    return Claim(rank=rank, reason=reason, message=report.message, cause=type(report).__name__)
