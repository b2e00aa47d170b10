"""The time limits of docs/rules.md 2, 4 and 6, and `startup_order`, which they wait for.

`deadline` is the only function that computes a limit. So the time at which a run wakes and the time
at which its attempts end cannot differ by a rounding. A gang's job that waits for its turn already
has its container, and `waiting_runner` stands still meanwhile. A single job that waits for its turn
holds no allocation yet: jobs that wait for each other could lock a full cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from controller.lifecycle import termination
from controller.lifecycle.draft import Draft
from controller.lifecycle.gangs.queries import (
    a_rank_comes_back,
    is_current,
    is_gang_run,
    is_reserved,
    ranked_hold_allocations,
)
from controller.lifecycle.model import Attempt, Job, Run, StartupOrder
from controller.lifecycle.pending_reasons import (
    PendingReason,
    RankComesBack,
    RunSuspended,
    WaitsForItsTurn,
)
from controller.lifecycle.reasons import Reason
from controller.lifecycle.retry import ENDED_FOR_GOOD, Verdict, verdict
from controller.lifecycle.services.policy import ProbeResult
from controller.lifecycle.statuses import AttemptStatus

_NEEDS_NO_START = ENDED_FOR_GOOD | {Verdict.DONE, Verdict.ABANDONED}


def master_of(jobs: Sequence[Job]) -> Job | None:
    """Return the job with rank 0, else with cookie 0, of the first group; None when `jobs` has
    none."""
    if not jobs:
        return None
    first = min(jobs, key=lambda job: job.index).group
    group = [job for job in jobs if job.group == first]
    ranked = [job for job in group if job.attempts and job.attempts[-1].rank is not None]
    if ranked:
        return next((job for job in ranked if job.attempts[-1].rank == 0), None)
    return next((job for job in group if job.cookie == 0), None)


def may_start(run: Run, jobs: Sequence[Job], attempt: Attempt) -> bool:
    """Return whether the runner of this attempt may get its job now.

    A gang's jobs start once every rank has its allocation, because each job is told the others'
    addresses.
    """
    if is_gang_run(run) and not ranked_hold_allocations(run, jobs):
        return False
    order = run.policy.startup_order
    if order is StartupOrder.ANY:
        return True
    counted = [job for job in jobs if _counts(job)]
    master = master_of(counted)
    if master is None:
        return True
    is_master = attempt.job_id == master.id
    if order is StartupOrder.MASTER_FIRST:
        return is_master or _has_started(run, master)
    return not is_master or all(_has_started(run, job) for job in counted if job is not master)


def may_take_allocation(run: Run, jobs: Sequence[Job], attempt: Attempt) -> bool:
    return is_gang_run(run) or may_start(run, jobs, attempt)


def waits_for_its_turn(run: Run, jobs: Sequence[Job], attempt: Attempt) -> bool:
    """Return whether this attempt waits for other jobs of its run and for nothing else."""
    match attempt.status:
        case AttemptStatus.SUBMITTED:
            return not may_take_allocation(run, jobs, attempt)
        case AttemptStatus.PULLING:
            return attempt.container_started and not may_start(run, jobs, attempt)
        case _:
            return False


def why_not_queued(run: Run, jobs: Sequence[Job], attempt: Attempt) -> PendingReason | None:
    """Return why the scheduler does not look for an allocation for this attempt; None: it does."""
    if run.suspended:
        return RunSuspended()
    if not may_take_allocation(run, jobs, attempt):
        return its_turn(run)
    if is_reserved(attempt) and a_rank_comes_back(run, jobs):
        return RankComesBack()
    return None


_NOT_QUEUED = (RunSuspended, RankComesBack, WaitsForItsTurn)


def its_turn(run: Run) -> WaitsForItsTurn:
    return WaitsForItsTurn(startup_order=run.policy.startup_order)


def _counts(job: Job) -> bool:
    """Return whether others wait for this job. A reserved job does not count: it may never get an
    allocation."""
    return not (job.scaled_down or (job.attempts and is_reserved(job.attempts[-1])))


def _has_started(run: Run, job: Job) -> bool:
    if verdict(run, job) in _NEEDS_NO_START:
        return True
    if not job.attempts:
        return False
    last = job.attempts[-1]
    return is_current(run, last) and last.status is AttemptStatus.RUNNING


_TOLD_WITHIN = 10.0
"""Seconds that the runner has, after it ended an interrupted job itself, to report how that
went."""
_CLOCK_RESOLUTION = 1e-3
"""Seconds; a shorter remainder cannot be waited for."""


class Deadline(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that runs now: when it ends, and with which reason the attempt then ends."""

    at: float
    reason: Reason
    name: str
    message: str
    grace: float | None = None
    """Seconds instead of the reason's own grace; None: the reason's."""


def deadline(run: Run, attempt: Attempt) -> Deadline | None:
    """Return the limit that runs now for this attempt alone; None: no limit runs."""
    if attempt.limit_paused_since is not None:
        return None
    match attempt.status:
        case AttemptStatus.SUBMITTED:
            return _scheduling(run, attempt)
        case AttemptStatus.PROVISIONING:
            return _waiting_instance(run, attempt)
        case AttemptStatus.PULLING if not attempt.container_started:
            return _waiting_container(run, attempt)
        case AttemptStatus.PULLING:
            return _waiting_runner(run, attempt)
        case AttemptStatus.RUNNING:
            return (
                _interruption(run, attempt)
                or _probes_failed(run, attempt)
                or _registration(run, attempt)
            )
        case _:
            return None


def _scheduling(run: Run, attempt: Attempt) -> Deadline | None:
    """Return the scheduling limit, once the scheduler has looked at the attempt.

    So an attempt with a timeout of 0 still gets one chance.
    """
    at = scheduling_ends_at(run, attempt)
    if at is None or attempt.pending_reason is None:
        return None
    why = attempt.pending_reason.sentence()
    return Deadline(
        at=at,
        reason=Reason.UNSCHEDULABLE,
        name="scheduling_timeout",
        message=f"no allocation within {run.policy.scheduling_timeout:g} s: {why}",
    )


def scheduling_ends_at(run: Run, attempt: Attempt) -> float | None:
    """Return when `scheduling_timeout` ends for a waiting attempt; None: never.

    A reserved job has no such limit: its end would fail nothing, and its successor would only wait
    again.
    """
    timeout = run.policy.scheduling_timeout
    if timeout is None or is_reserved(attempt):
        return None
    return attempt.submitted_at + attempt.limit_paused_total + timeout


def start_limit_began_at(attempt: Attempt) -> float | None:
    """Return when the limit began that now runs, or last ran, on the way to RUNNING."""
    container = attempt.container_started_at or attempt.progressed_at
    return container or attempt.pulling_at or attempt.provisioned_at


def limit_began_at(attempt: Attempt) -> float | None:
    """Return when the limit began that now runs, or last ran."""
    failing = _first_failing(attempt)
    if attempt.status is AttemptStatus.RUNNING and failing is not None:
        return failing.since
    if attempt.status is AttemptStatus.RUNNING and attempt.registering_since is not None:
        return attempt.registering_since
    return start_limit_began_at(attempt)


def _waiting_instance(run: Run, attempt: Attempt) -> Deadline | None:
    if attempt.provisioned_at is None:
        return None
    limit = run.policy.limits.waiting_instance
    return Deadline(
        at=attempt.provisioned_at + attempt.limit_paused_total + limit,
        reason=Reason.WAITING_INSTANCE_LIMIT_EXCEEDED,
        name="waiting_instance",
        message=f"the node did not accept the job within {limit:g} s",
    )


def _waiting_container(run: Run, attempt: Attempt) -> Deadline | None:
    """Return the limit for image and container. Its end blames the node: the shim has shorter
    limits and names the faults that it finds."""
    began = start_limit_began_at(attempt)
    if began is None:
        return None
    limit = run.policy.limits.waiting_container
    return Deadline(
        at=began + attempt.limit_paused_total + limit,
        reason=Reason.WAITING_INSTANCE_LIMIT_EXCEEDED,
        name="waiting_container",
        message=f"{_what_stands_still(attempt)} for {limit:g} s",
    )


def _what_stands_still(attempt: Attempt) -> str:
    if attempt.credentials_asked is not None:
        return "the node waited for the registry's credentials"
    if attempt.creating_seen:
        return "the node made no progress with creating the container"
    return "the node made no progress with pulling the image"


def _waiting_runner(run: Run, attempt: Attempt) -> Deadline | None:
    if attempt.container_started_at is None:
        return None
    limit = run.policy.limits.waiting_runner
    return Deadline(
        at=attempt.container_started_at + attempt.limit_paused_total + limit,
        reason=Reason.WAITING_RUNNER_LIMIT_EXCEEDED,
        name="waiting_runner",
        message=f"the runner did not start the job within {limit:g} s of its container",
    )


def _interruption(run: Run, attempt: Attempt) -> Deadline | None:
    if attempt.interrupt_requested_at is None:
        return None
    return Deadline(
        at=attempt.interrupt_told_by or _first_end(run, attempt) + _TOLD_WITHIN,
        reason=Reason.INTERRUPTED,
        name="interruption",
        message=f"the job did not exit within {run.policy.stop_duration:g} s of the interrupt",
        grace=0.0,
    )


def _probes_failed(run: Run, attempt: Attempt) -> Deadline | None:
    """Return when a replica that had been ready is replaced because its probes fail (rule 8.10)."""
    limit = run.deployments[-1].service.unhealthy_after if run.deployments else None
    first = _first_failing(attempt)
    if limit is None or not attempt.was_registered or first is None:
        return None
    why = f": {first.message}" if first.message else ""
    return Deadline(
        at=first.since + first.paused + limit,
        reason=Reason.PROBES_FAILED,
        name="unhealthy_after",
        message=f"its probes failed for {limit:g} s{why}",
    )


def _registration(run: Run, attempt: Attempt) -> Deadline | None:
    """Return when a replica ends that its gateway does not confirm (rule 8.13)."""
    since = attempt.registering_since
    if since is None or attempt.exposed_socket is not None or run.service is None:
        return None
    limit = run.policy.limits.gateway
    why = f": {attempt.registering_error}" if attempt.registering_error else ""
    return Deadline(
        at=since + attempt.limit_paused_total + limit,
        reason=Reason.GATEWAY_ERROR,
        name="gateway",
        message=f"the gateway {run.service.gateway} did not confirm it within {limit:g} s{why}",
    )


def _first_failing(attempt: Attempt) -> ProbeResult | None:
    failing = (result for result in attempt.probes if not result.passes)
    return min(failing, key=lambda result: result.since, default=None)


def interruption_ends_at(run: Run, attempt: Attempt, now: float) -> float | None:
    """Return when an interrupted job must have ended, if nothing pauses that time from now on;
    None: it was not interrupted."""
    if attempt.interrupt_requested_at is None:
        return None
    paused_since = attempt.interrupt_paused_since
    stood_still = 0.0 if paused_since is None else now - paused_since
    return (attempt.interrupt_ends_at or _first_end(run, attempt)) + stood_still


def _first_end(run: Run, attempt: Attempt) -> float:
    assert attempt.interrupt_requested_at is not None
    return attempt.interrupt_requested_at + run.policy.stop_duration


def begin_interruption(draft: Draft, attempt: Attempt) -> Attempt:
    """Start the time that the job has for its interruption.

    The time before does not count, neither how long the job ran nor how long its node was silent.
    """
    ends_at = draft.now + draft.run.policy.stop_duration
    return draft.change_attempt(
        attempt,
        interrupt_requested_at=draft.now,
        interrupt_ends_at=ends_at,
        interrupt_paused_since=draft.now if attempt.disconnected else None,
        interrupt_told_by=ends_at + _TOLD_WITHIN,
    )


def pause_interruption(draft: Draft, attempt: Attempt) -> Attempt:
    """Stop the time of an interruption while the node is silent or the run suspended.

    A controller that was away pauses nothing: the runner kept the time meanwhile.
    """
    if attempt.interrupt_requested_at is None or attempt.interrupt_paused_since is not None:
        return attempt
    return draft.change_attempt(attempt, interrupt_paused_since=draft.now)


def _resume_interruption(draft: Draft, attempt: Attempt) -> Attempt:
    """Let the time of an interruption go on, with new time for the runner to report."""
    ends_at = interruption_ends_at(draft.run, attempt, draft.now)
    if ends_at is None:
        return attempt
    return draft.change_attempt(
        attempt,
        interrupt_ends_at=ends_at,
        interrupt_paused_since=None,
        interrupt_told_by=max(ends_at, draft.now) + _TOLD_WITHIN,
    )


def stand_still(draft: Draft) -> None:
    """Stop or continue the limits of all live attempts, depending on their node, run and startup
    order."""
    run = draft.run
    for attempt in draft.live():
        its_turn = not waits_for_its_turn(run, draft.jobs, attempt)
        if attempt.status is AttemptStatus.SUBMITTED and attempt.allocation_id is None:
            attempt = _tell_why_not_queued(draft, attempt)
        if run.suspended:
            attempt = pause_interruption(draft, attempt)
        pauses = attempt.disconnected or run.suspended or not its_turn
        since = attempt.limit_paused_since
        if pauses and since is None:
            draft.change_attempt(attempt, limit_paused_since=draft.now)
        elif not pauses and since is not None:
            total = attempt.limit_paused_total + draft.now - since
            attempt = _resume_interruption(draft, attempt)
            draft.change_attempt(
                attempt,
                limit_paused_since=None,
                limit_paused_total=total,
                probes=_with_pause(attempt.probes, since, draft.now),
            )


def _with_pause(
    probes: tuple[ProbeResult, ...], began: float, now: float
) -> tuple[ProbeResult, ...]:
    """Return the results with this pause added, each from the moment that it holds."""
    return tuple(
        msgspec.structs.replace(one, paused=one.paused + now - max(began, one.since))
        if not one.passes
        else one
        for one in probes
    )


def _tell_why_not_queued(draft: Draft, attempt: Attempt) -> Attempt:
    """Set or clear the attempt's pending reason.

    An attempt that has just come into the queue has none: the scheduler has not looked at it yet.
    """
    why = why_not_queued(draft.run, draft.jobs, attempt)
    if why is None and not isinstance(attempt.pending_reason, _NOT_QUEUED):
        return attempt
    return draft.change_attempt(attempt, pending_reason=why)


def running_seconds(jobs: Iterable[Job], occurrence: int, now: float) -> float:
    """Return the wall time of the occurrence during which at least one job was RUNNING."""
    return covered_seconds(
        (a for job in jobs for a in job.attempts if a.occurrence == occurrence), now
    )


def covered_seconds(attempts: Iterable[Attempt], now: float) -> float:
    """Return the wall time during which at least one of these attempts was RUNNING."""
    spans = sorted(
        (a.running_at, now if a.terminating_at is None else a.terminating_at)
        for a in attempts
        if a.running_at is not None
    )
    total, covered_until = 0.0, float("-inf")
    for start, stop in spans:
        total += max(0.0, stop - max(start, covered_until))
        covered_until = max(covered_until, stop)
    return total


def max_duration_at(run: Run, jobs: Iterable[Job], now: float) -> float | None:
    """Return when the run reaches its `max_duration`, if nothing changes; None: not foreseeable.

    It is never after `now` when the duration has passed already.
    """
    limit = run.policy.max_duration
    if limit is None or run.suspended:
        return None
    jobs = tuple(jobs)
    if not any(job.attempts and _runs(job.attempts[-1]) for job in jobs):
        return None
    left = limit - _ran_before(run) - running_seconds(jobs, run.occurrence, now)
    return now if left < _CLOCK_RESOLUTION else now + left


def _ran_before(run: Run) -> float:
    """Return the running seconds of the present occurrence that the state no longer has."""
    past = run.past_running
    return past.seconds if past.occurrence == run.occurrence else 0.0


def _runs(attempt: Attempt) -> bool:
    return attempt.status is AttemptStatus.RUNNING


def enforce(draft: Draft) -> None:
    """End every attempt whose limit has passed."""
    for attempt in draft.live():
        limit = deadline(draft.run, attempt)
        if limit is not None and draft.now >= limit.at:
            limit = _blaming_the_engine(draft, attempt, limit)
            termination.end(
                draft,
                attempt,
                limit.reason,
                f"limit {limit.name}",
                limit.message,
                within=limit.grace,
            )
    _enforce_max_duration(draft)


def _blaming_the_engine(draft: Draft, attempt: Attempt, limit: Deadline) -> Deadline:
    """Return the limit; if no engine is there that could run the runner, the node is at fault."""
    waits_for_runner = limit.reason is Reason.WAITING_RUNNER_LIMIT_EXCEEDED
    if not (waits_for_runner and attempt.node_id in draft.context.silent_engines):
        return limit
    message = f"{limit.message}; the node's engine does not answer"
    return msgspec.structs.replace(limit, reason=Reason.INSTANCE_UNREACHABLE, message=message)


def _enforce_max_duration(draft: Draft) -> None:
    at = max_duration_at(draft.run, draft.jobs, draft.now)
    if at is None or at > draft.now:
        return
    message = f"the run was running for its max_duration of {draft.run.policy.max_duration:g} s"
    for attempt in draft.live():
        if _runs(attempt):
            termination.end(
                draft, attempt, Reason.MAX_DURATION_EXCEEDED, "limit max_duration", message
            )
