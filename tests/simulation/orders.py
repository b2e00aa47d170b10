"""Checks of a run's own policy, judged by its commits (docs/rules.md
section 4 on limits; `startup_order`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from controller.lifecycle.model import Attempt, Job, Run, RunState, StartupOrder
from controller.lifecycle.sweeps.sets import has_run
from fairlead.model.reasons import ROWS, Budget, Reason, RetryEvent, RunReason
from fairlead.model.statuses import AttemptStatus, IrisState

NEARLY = 1.0
"""Seconds by which times of a node and of the controller may differ."""
_OF_USERS = frozenset({RunReason.STOPPED_BY_USER, RunReason.ABORTED_BY_USER})


def out_of_order(before: RunState | None, after: RunState) -> Iterator[str]:
    """A sentence for each job that this commit says runs, and that should have waited for others by
    `startup_order`."""
    order = after.run.policy.startup_order
    master = _master(after)
    if order is StartupOrder.ANY or master is None:
        return
    known = {} if before is None else {a.id: a for job in before.jobs for a in job.attempts}
    for job in after.jobs:
        last = job.attempts[-1] if job.attempts else None
        if last is None or last.running_at is None or last.status is not AttemptStatus.RUNNING:
            continue
        if last.id in known and known[last.id].running_at is not None:
            continue
        if order is StartupOrder.MASTER_FIRST and job is not master:
            awaited = [master]
        elif order is StartupOrder.WORKERS_FIRST and job is master:
            awaited = [one for one in after.jobs if one is not master and _counts(one)]
        else:
            continue
        for other in awaited:
            if not _had_begun(other, last):
                yield (
                    f"{last.id} of run {after.run.name} ({order}) started before job "
                    f"{other.group}/{other.cookie}"
                )


def _master(state: RunState) -> Job | None:
    """Rank 0, else cookie 0, of the first group."""
    if not state.run.groups:
        first = [job for job in state.jobs if job.group == state.jobs[0].group]
    else:
        first = [job for job in state.jobs if job.group == state.run.groups[0].name]
    if state.run.incarnation is not None:
        ranked = [job for job in first if job.attempts and job.attempts[-1].rank == 0]
        return ranked[0] if ranked else None
    return next((job for job in first if job.cookie == 0 and _counts(job)), None)


def _counts(job: Job) -> bool:
    reserved = bool(job.attempts) and job.attempts[-1].incarnation and job.attempts[-1].rank is None
    return not (job.scaled_down or reserved)


def _had_begun(other: Job, attempt: Attempt) -> bool:
    """Whether the other job had run in this occurrence and incarnation when this attempt began, or
    was over, or was made later."""
    own = [
        one
        for one in other.attempts
        if one.occurrence == attempt.occurrence and one.incarnation == attempt.incarnation
    ]
    assert attempt.running_at is not None
    began = attempt.running_at + NEARLY
    if other.abandoned or not own or all(one.submitted_at > began for one in own):
        return True
    times = [one.running_at or one.terminating_at for one in own]
    return any(at is not None and at <= began for at in times)


def not_by_policy(state: RunState, job: Job, attempt: Attempt) -> str | None:
    """Why the attempt can't have ended for this reason by its run's policy; None: it can, or the
    reason is not one of a policy."""
    policy, ended = state.run.policy, attempt.terminating_at or 0.0
    match attempt.reason:
        case Reason.MAX_DURATION_EXCEEDED:
            limit, ran = policy.max_duration, _seconds_running(state, attempt.occurrence, ended)
            if limit is None or ran < limit - NEARLY:
                return f"its run was running for {ran:.1f} s, max_duration is {limit}"
        case Reason.UNSCHEDULABLE:
            timeout, waited = policy.scheduling_timeout, ended - attempt.submitted_at
            if timeout is None or waited < timeout - NEARLY:
                return f"it waited for {waited:.1f} s, scheduling_timeout is {timeout}"
            if attempt.incarnation is not None and attempt.rank is None:
                return "it is a reserved job, which waits beyond scheduling_timeout"
        case Reason.FAILED_TO_START_DUE_TO_NO_CAPACITY:
            if attempt.unrentable is None or policy.retry.on_events >= {RetryEvent.NO_CAPACITY}:
                return "a machine could come for it, or its retry lets it wait"
            waited = ended - attempt.unrentable.since
            if waited < policy.limits.no_capacity - NEARLY:
                return f"it had no machine for {waited:.1f} s of {policy.limits.no_capacity}"
        case Reason.SIBLING_FAILED:
            replica = [one for one in state.all_jobs if _replica(one) == _replica(job)]
            of_service = bool(state.run.deployments) or state.run.sweep is not None
            if not any(_failed(one, attempt, of_service) for one in replica if one is not job):
                return "no job of its replica has failed"
        case Reason.TERMINATED_BY_SERVER:
            reason = _reason_of_end(state.run, attempt.occurrence)
            if reason in _OF_USERS:
                return f"its run ends as {reason}"
            if reason is None and not state.run.policy.schedule:
                return "its run goes on"
    return None


def _reason_of_end(run: Run, occurrence: int) -> RunReason | None:
    """Why the run ends; for an occurrence that is over why that ended, for a user may have stopped
    the run after it."""
    over = (one.reason for one in run.occurrences if one.number == occurrence)
    return next(over, run.reason)


def _replica(job: Job) -> tuple[str, int]:
    return job.group, job.replica


def _failed(job: Job, beside: Attempt, of_service: bool) -> bool:
    """Any end of a job takes a service's replica along, and a retried one that of a task."""
    return any(
        one.occurrence == beside.occurrence
        and one.reason is not None
        and one.reason is not Reason.SIBLING_FAILED
        and (of_service or ROWS[one.reason].event is not None)
        for one in job.attempts
    )


def _seconds_running(state: RunState, occurrence: int, until: float) -> float:
    """Wall time of the occurrence during which at least one job was RUNNING. Attempts that the
    state no longer has are not in it."""
    past = state.run.past_running
    total = past.seconds if past.occurrence == occurrence else 0.0
    covered = float("-inf")
    spans = [
        (one.running_at, min(until, one.terminating_at or until))
        for job in state.all_jobs
        for one in job.attempts
        if one.occurrence == occurrence and one.running_at is not None
    ]
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, covered))
        covered = max(covered, end)
    return total


def overlong(state: RunState, now: float, grace: float) -> Iterator[str]:
    """A run that is RUNNING, and has been for `grace` seconds longer than its `max_duration`."""
    limit = state.run.policy.max_duration
    if limit is None or state.run.suspended:
        return
    if not any(
        job.attempts and job.attempts[-1].status is AttemptStatus.RUNNING for job in state.jobs
    ):
        return
    ran = _seconds_running(state, state.run.occurrence, now)
    if ran > limit + grace:
        yield f"run {state.run.name} runs on after its max_duration of {limit:g} s"


def overspent(state: RunState) -> Iterator[str]:
    """More attempts have failed than `max_failed_attempts` allows, and the run goes on."""
    allowed = state.run.policy.max_failed_attempts
    if allowed is None or state.run.reason is not None:
        return
    failed = sum(
        1
        for job in state.jobs
        if not job.scaled_down
        for one in job.attempts
        if one.occurrence == state.run.occurrence
        and one.reason is not None
        and ROWS[one.reason].budget is Budget.FAILURE
        and not (one.incarnation is not None and one.rank is None)
    )
    if failed > allowed and state.run.status.value not in ("pending", "terminating"):
        yield f"run {state.run.name} goes on after {failed} failed attempts"


_NAMED_BY: Mapping[RunReason, frozenset[IrisState]] = {
    RunReason.UNSCHEDULABLE: frozenset({IrisState.UNSCHEDULABLE}),
    RunReason.WORKER_FAILED: frozenset({IrisState.WORKER_FAILED, IrisState.PREEMPTED}),
}


def misnamed(state: RunState) -> Iterator[str]:
    """The run says that it ends for lost nodes, or for want of a place, and no job of it did."""
    needed = _NAMED_BY.get(state.run.reason) if state.run.reason is not None else None
    if needed is None:
        return
    if state.run.reason is RunReason.UNSCHEDULABLE and state.run.policy.start_before is not None:
        if has_run(state.all_jobs) and "start_before" in (state.run.message or ""):
            yield f"run {state.run.name} ends for its start_before, and it did run"
        return
    reasons = [job.attempts[-1].reason for job in state.jobs if job.attempts]
    found = {ROWS[reason].iris for reason in reasons if reason is not None}
    if not found & needed:
        said = ", ".join(sorted(found)) or "none"
        yield f"run {state.run.name} ends as {state.run.reason}, its jobs as {said}"
