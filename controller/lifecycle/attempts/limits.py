"""The time limits of docs/rules.md 2, 4 and 6.

`deadline` is the only function that computes a limit. So the time at which a run wakes and the time
at which its attempts end cannot differ by a rounding. A limit is paused while its attempt cannot
get on through no fault of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from controller.lifecycle.attempts import startup, termination
from controller.lifecycle.draft import Draft
from controller.lifecycle.membership.ranks import (
    is_reserved,
)
from controller.lifecycle.model import (
    NO_PAUSE,
    Attempt,
    Interruption,
    Job,
    LimitPause,
    Run,
    Serving,
)
from fairlead.model.reasons import Reason, RetryEvent
from fairlead.model.service import ProbeResult
from fairlead.model.statuses import AttemptStatus

_REPORT_WITHIN = 10.0
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
    if attempt.limit_pause.since is not None:
        return None
    match attempt.status:
        case AttemptStatus.SUBMITTED:
            return _earlier(_scheduling(run, attempt), _no_capacity(run, attempt))
        case AttemptStatus.PROVISIONING:
            return _waiting_instance(run, attempt)
        case AttemptStatus.PULLING if not attempt.seen.container_started:
            return _waiting_container(run, attempt)
        case AttemptStatus.PULLING:
            return _waiting_runner(run, attempt)
        case AttemptStatus.RUNNING:
            return _earlier(
                _interruption(run, attempt)
                or _probes_failed(run, attempt)
                or _registration(run, attempt)
                or _unwatched(attempt),
                time_limit(run, attempt),
            )
        case _:
            return None


def _earlier(one: Deadline | None, other: Deadline | None) -> Deadline | None:
    if one is None or other is None:
        return one or other
    return other if other.at < one.at else one


def _unwatched(attempt: Attempt) -> Deadline | None:
    """Return the end of a container that waits for its next start, when nobody watches for it any
    more. Its runner bounds the wait of the others."""
    starts = attempt.starts
    if starts is None or starts.result is None or starts.watched_until is None:
        return None
    return Deadline(
        at=max(starts.result.at, starts.watched_until),
        reason=starts.result.reason,
        name="watcher",
        message=starts.result.message or "",
    )


def time_limit(run: Run, attempt: Attempt) -> Deadline | None:
    """Return the end of this life of a job that comes back after it; None: it has no such limit."""
    limit = run.policy.max_duration
    if limit is None or attempt.running_at is None or not run.policy.requeues:
        return None
    return Deadline(
        at=attempt.running_at + limit,
        reason=Reason.TIME_LIMIT_REACHED,
        name="max_duration",
        message=f"it was running for its max_duration of {limit:g} s, and comes back",
    )


def _scheduling(run: Run, attempt: Attempt) -> Deadline | None:
    """Return the scheduling limit, once the scheduler has looked at the attempt.

    So an attempt with a timeout of 0 still gets one chance.
    """
    at = scheduling_ends_at(run, attempt)
    if at is None or attempt.pending_reason is None:
        return None
    return Deadline(
        at=at,
        reason=Reason.UNSCHEDULABLE,
        name="scheduling_timeout",
        message=f"no allocation within {run.policy.scheduling_timeout:g} s: {attempt.waits_for}",
    )


def scheduling_ends_at(run: Run, attempt: Attempt) -> float | None:
    """Return when `scheduling_timeout` ends for a waiting attempt; None: never.

    A reserved job has no such limit: its end would fail nothing, and its successor would only wait
    again.
    """
    timeout = run.policy.scheduling_timeout
    if timeout is None or is_reserved(attempt):
        return None
    return attempt.submitted_at + attempt.limit_pause.total + timeout


def _no_capacity(run: Run, attempt: Attempt) -> Deadline | None:
    """Return the end of an attempt that no node could hold and no machine is to be had for.

    A `retry` that covers no-capacity lets it wait as long as its `duration` says.
    """
    unrentable, policy = attempt.unrentable, run.policy
    if unrentable is None or unrentable.paused_at is not None or is_reserved(attempt):
        return None
    at = unrentable.since + policy.limits.no_capacity
    if RetryEvent.NO_CAPACITY in policy.retry.on_events:
        if policy.retry.duration is None:
            return None
        at = max(unrentable.since, attempt.submitted_at + policy.retry.duration)
    return Deadline(
        at=at,
        reason=Reason.FAILED_TO_START_DUE_TO_NO_CAPACITY,
        name="no_capacity",
        message=f"no machine was to be had for {at - unrentable.since:.0f} s: {unrentable.why}",
    )


def start_limit_began_at(attempt: Attempt) -> float | None:
    """Return when the limit began that now runs, or last ran, on the way to RUNNING."""
    container = attempt.seen.container_started_at or attempt.pull.progressed_at
    return container or attempt.pulling_at or attempt.provisioned_at


def limit_began_at(attempt: Attempt) -> float | None:
    """Return when the limit began that now runs, or last ran."""
    failing = _first_failing(attempt)
    if attempt.status is AttemptStatus.RUNNING and failing is not None:
        return failing.since
    if attempt.status is AttemptStatus.RUNNING and attempt.serving.registering_since is not None:
        return attempt.serving.registering_since
    return start_limit_began_at(attempt)


def _waiting_instance(run: Run, attempt: Attempt) -> Deadline | None:
    if attempt.provisioned_at is None:
        return None
    limit = run.policy.limits.waiting_instance
    return Deadline(
        at=attempt.provisioned_at + attempt.limit_pause.total + limit,
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
        at=began + attempt.limit_pause.total + limit,
        reason=Reason.WAITING_INSTANCE_LIMIT_EXCEEDED,
        name="waiting_container",
        message=f"{_what_stands_still(attempt)} for {limit:g} s",
    )


def _what_stands_still(attempt: Attempt) -> str:
    if attempt.pull.credentials_asked is not None:
        return "the node waited for the registry's credentials"
    if attempt.pull.creating_seen:
        return "the node made no progress with creating the container"
    return "the node made no progress with pulling the image"


def _waiting_runner(run: Run, attempt: Attempt) -> Deadline | None:
    if attempt.seen.container_started_at is None:
        return None
    limit = run.policy.limits.waiting_runner
    return Deadline(
        at=attempt.seen.container_started_at + attempt.limit_pause.total + limit,
        reason=Reason.WAITING_RUNNER_LIMIT_EXCEEDED,
        name="waiting_runner",
        message=f"the runner did not start the job within {limit:g} s of its container",
    )


def _interruption(run: Run, attempt: Attempt) -> Deadline | None:
    asked = attempt.interruption
    if asked is None:
        return None
    return Deadline(
        # A row of an earlier version has no such time.
        at=asked.report_by or _first_end(run, asked) + _REPORT_WITHIN,
        reason=Reason.INTERRUPTED,
        name="interruption",
        message=f"the job did not exit within {run.policy.stop_duration:g} s of the interrupt",
        grace=0.0,
    )


def _probes_failed(run: Run, attempt: Attempt) -> Deadline | None:
    """Return when a replica that had been ready is replaced because its probes fail (rule 8.10)."""
    limit = run.deployments[-1].service.unhealthy_after if run.deployments else None
    first = _first_failing(attempt)
    if limit is None or not attempt.serving.was_registered or first is None:
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
    since = attempt.serving.registering_since
    if since is None or attempt.serving.exposed_socket is not None or run.service is None:
        return None
    limit = run.policy.limits.gateway
    why = f": {attempt.serving.registering_error}" if attempt.serving.registering_error else ""
    return Deadline(
        at=since + attempt.limit_pause.total + limit,
        reason=Reason.GATEWAY_ERROR,
        name="gateway",
        message=f"the gateway {run.service.gateway} did not confirm it within {limit:g} s{why}",
    )


def _first_failing(attempt: Attempt) -> ProbeResult | None:
    failing = (result for result in attempt.serving.probes if not result.passes)
    return min(failing, key=lambda result: result.since, default=None)


def interruption_ends_at(run: Run, attempt: Attempt, now: float) -> float | None:
    """Return when an interrupted job must have ended, if nothing pauses that time from now on;
    None: it was not interrupted."""
    asked = attempt.interruption
    if asked is None:
        return None
    paused = 0.0 if asked.paused_since is None else now - asked.paused_since
    return (asked.ends_at or _first_end(run, asked)) + paused


def _first_end(run: Run, asked: Interruption) -> float:
    return asked.requested_at + run.policy.stop_duration


def begin_interruption(draft: Draft, attempt: Attempt) -> Attempt:
    """Start the time that the job has for its interruption.

    The time before does not count, neither how long the job ran nor how long its node was silent.
    """
    ends_at = draft.now + draft.run.policy.stop_duration
    asked = Interruption(
        requested_at=draft.now,
        ends_at=ends_at,
        paused_since=draft.now if attempt.disconnected else None,
        report_by=ends_at + _REPORT_WITHIN,
    )
    return draft.change_attempt(attempt, interruption=asked)


def pause_interruption(draft: Draft, attempt: Attempt) -> Attempt:
    """Stop the time of an interruption while the node is silent or the run suspended.

    A controller that was away pauses nothing: the runner kept the time meanwhile.
    """
    asked = attempt.interruption
    if asked is None or asked.paused_since is not None:
        return attempt
    return draft.change_attempt(attempt, interruption=replace(asked, paused_since=draft.now))


def _resume_interruption(draft: Draft, attempt: Attempt) -> Attempt:
    """Let the time of an interruption go on, with new time for the runner to report."""
    asked, ends_at = attempt.interruption, interruption_ends_at(draft.run, attempt, draft.now)
    if asked is None or ends_at is None:
        return attempt
    goes_on = replace(
        asked,
        ends_at=ends_at,
        paused_since=None,
        report_by=max(ends_at, draft.now) + _REPORT_WITHIN,
    )
    return draft.change_attempt(attempt, interruption=goes_on)


def pause_or_resume(draft: Draft) -> None:
    """Stop or continue the limits of all live attempts, depending on their node, run and startup
    order."""
    run = draft.run
    for attempt in draft.live():
        if attempt.reason is not None:
            continue  # no limit is left; its pause says only whether its grace has begun
        its_turn = not startup.waits_for_its_turn(run, draft.jobs, attempt)
        if attempt.status is AttemptStatus.SUBMITTED and attempt.allocation_id is None:
            attempt = startup.note_why_not_queued(draft, attempt)
        if run.suspended:
            attempt = pause_interruption(draft, attempt)
        carried = attempt.status is AttemptStatus.SUBMITTED and attempt.carrier is not None
        pauses = attempt.disconnected or run.suspended or not its_turn or carried
        since = attempt.limit_pause.since
        if pauses and since is None:
            pause = replace(attempt.limit_pause, since=draft.now)
            draft.change_attempt(attempt, limit_pause=pause)
        elif not pauses and since is not None:
            total = attempt.limit_pause.total + draft.now - since
            attempt = _resume_interruption(draft, attempt)
            draft.change_attempt(
                attempt,
                limit_pause=LimitPause(total=total),
                serving=_with_pause(attempt.serving, since, draft.now),
            )


def first_pause(draft: Draft, attempt: Attempt) -> LimitPause:
    """Return the pause of a limit that begins now; pauses of the limit before do not count for
    it."""
    return LimitPause(since=draft.now) if attempt.disconnected else NO_PAUSE


def _with_pause(serving: Serving, began: float, now: float) -> Serving:
    """Return its probes' results with this pause added, each from the moment that it holds."""
    if not serving.probes:
        return serving
    probes = tuple(
        replace(one, paused=one.paused + now - max(began, one.since)) if not one.passes else one
        for one in serving.probes
    )
    return replace(serving, probes=probes)


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
    if limit is None or run.suspended or run.policy.requeues:
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
    return replace(limit, reason=Reason.INSTANCE_UNREACHABLE, message=message)


def _enforce_max_duration(draft: Draft) -> None:
    at = max_duration_at(draft.run, draft.all_jobs, draft.now)
    if at is None or at > draft.now:
        return
    message = f"the run was running for its max_duration of {draft.run.policy.max_duration:g} s"
    for attempt in draft.live():
        if _runs(attempt):
            termination.end(
                draft, attempt, Reason.MAX_DURATION_EXCEEDED, "limit max_duration", message
            )
