"""Readiness decides which replicas get traffic (docs/rules.md 8.2).

A replica is registered once all its jobs are RUNNING and the probes of its primary pass, and
unregistered as soon as one of these ends. Where its service has a gateway, the gateway must have
confirmed it too (8.13). A replica that got traffic has time for the requests in flight before its
containers are asked to stop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from controller.lifecycle.draft import Draft
from controller.lifecycle.events import EventKind
from controller.lifecycle.membership import members
from controller.lifecycle.model import Attempt, Job, LimitPause
from controller.lifecycle.reports import (
    ProbeSeen,
    RegistrationFailed,
    ReplicaDrained,
    ReplicaRegistered,
)
from fairlead.model.service import Probe, ProbeResult
from fairlead.model.statuses import AttemptStatus


def note_probe(draft: Draft, report: ProbeSeen) -> None:
    """Record one try of a probe. A try that tells nothing new changes nothing."""
    attempt = draft.attempt(report.attempt_id)
    if attempt is None or attempt.status is not AttemptStatus.RUNNING:
        return
    probes = probes_of(draft.job(attempt.job_id))
    if not 0 <= report.probe < len(probes):
        return
    results = list(attempt.serving.probes or _unknown(probes, attempt.running_at or draft.now))
    before, probe = results[report.probe], probes[report.probe]
    if is_over(probe, before):
        return
    in_a_row = min(before.in_a_row + 1, probe.ready_after) if report.passed else 0
    results[report.probe] = replace(
        before,
        passes=report.passed,
        in_a_row=in_a_row,
        message=None if report.passed else report.message,
    )
    # `paused` belongs to one stretch of failing: a flapping probe begins each with its whole time.
    if before.passes is not report.passed:
        results[report.probe] = replace(results[report.probe], since=draft.now, paused=0.0)
    _change(draft, attempt, probes=tuple(results))


def _change(draft: Draft, attempt: Attempt, **changes: Any) -> Attempt:
    """Change fields of `attempt.serving`."""
    serving = attempt.serving
    if all(getattr(serving, name) == value for name, value in changes.items()):
        return attempt
    return draft.change_attempt(attempt, serving=replace(serving, **changes))


def _unknown(probes: Sequence[Probe], since: float) -> list[ProbeResult]:
    return [ProbeResult(passes=False, in_a_row=0, since=since) for _ in probes]


def probes_of(job: Job | None) -> tuple[Probe, ...]:
    return () if job is None or job.spec.serves is None else job.spec.serves.probes


def is_over(probe: Probe, result: ProbeResult) -> bool:
    """Return whether the probe has passed often enough and is not tried again."""
    return probe.until_ready and result.in_a_row >= probe.ready_after


def probes_pass(job: Job, attempt: Attempt) -> bool:
    probes = probes_of(job)
    if not attempt.serving.probes:
        return not probes
    return all(
        result.in_a_row >= probe.ready_after
        for probe, result in zip(probes, attempt.serving.probes, strict=False)
    )


_STATUS_WORDS = {
    AttemptStatus.FAILED: "it failed",
    AttemptStatus.DONE: "it ended",
    AttemptStatus.TERMINATED: "it was stopped",
    AttemptStatus.ABORTED: "it was aborted",
}


def why_not_ready(job: Job, attempt: Attempt | None, jobs: Sequence[Job] = ()) -> str | None:
    """Return a sentence about a replica that gets no traffic; None: it gets some. `job` is its
    primary, `jobs` has the other members."""
    if attempt is None:
        return "it has not started yet"
    if attempt.disconnected:
        return f"its node {attempt.node_name or attempt.node_id} is not connected"
    if attempt.serving.registered_at is not None:
        return None
    if attempt.status is not AttemptStatus.RUNNING:
        pending = attempt.pending_reason
        why = attempt.message or attempt.waits_for or (pending and pending.sentence())
        return _STATUS_WORDS.get(attempt.status, f"it is {attempt.status.value}") + (
            f": {why}" if why else ""
        )
    for number, probe in enumerate(probes_of(job)):
        if number >= len(attempt.serving.probes):
            return "it has not been probed yet"
        result = attempt.serving.probes[number]
        if result.in_a_row < probe.ready_after:
            return result.message or f"probe {number} has not passed often enough yet"
    whole = None if job.rank is None else members.why_not_whole(members.members_of(jobs, job))
    if whole is not None or attempt.serving.registering_since is None:
        return whole or "its service is not told of it yet"
    why = attempt.serving.registering_error
    return f"its gateway has not confirmed it yet{f': {why}' if why else ''}"


def is_registered(job: Job) -> bool:
    """Return whether the replica gets traffic, by the committed facts."""
    return bool(job.attempts) and job.attempts[-1].serving.registered_at is not None


def note_registration(draft: Draft, report: ReplicaRegistered) -> None:
    """Record that the gateway of the service has confirmed the replica."""
    attempt = draft.attempt(report.attempt_id)
    if attempt is not None and attempt.serving.registering_since is not None:
        _change(draft, attempt, exposed_socket=report.socket, registering_error=None)


def note_failed_registration(draft: Draft, report: RegistrationFailed) -> None:
    """Record why the replica is not confirmed. The same reason again changes nothing."""
    attempt = draft.attempt(report.attempt_id)
    if attempt is not None and attempt.serving.registering_since is not None:
        _change(draft, attempt, registering_error=report.why)


def _has_gateway(draft: Draft) -> bool:
    return draft.run.service is not None and draft.run.service.gateway is not None


def _begin_registration(draft: Draft, attempt: Attempt) -> Attempt:
    """Give the gateway its whole time to confirm the replica."""
    if attempt.serving.registering_since is not None:
        return attempt
    since = None if attempt.limit_pause.since is None else draft.now
    attempt = draft.change_attempt(attempt, limit_pause=LimitPause(since=since))
    return _change(draft, attempt, registering_since=draft.now)


def start_registrations_anew(draft: Draft) -> None:
    """Give gateways their whole time again: a controller that was away asked none."""
    for attempt in draft.live():
        if attempt.serving.registering_since is not None and attempt.serving.exposed_socket is None:
            pause = replace(attempt.limit_pause, total=0.0)
            attempt = draft.change_attempt(attempt, limit_pause=pause)
            _change(draft, attempt, registering_since=draft.now)


_UNCONFIRMED: Mapping[str, None] = {
    "registering_since": None,
    "registering_error": None,
    "exposed_socket": None,
}


def settle(draft: Draft) -> None:
    """Register the replicas that are ready, and unregister those that are not."""
    broken = {
        (replica[0].group, replica[0].replica)
        for replica in members.of_several(draft.run, draft.jobs)
        if members.why_not_whole(replica) is not None
    }
    for job in list(draft.jobs):
        if job.spec.serves is None or not job.attempts:
            continue
        attempt = job.attempts[-1]
        running = members.runs(attempt) and (job.group, job.replica) not in broken
        ready = running and probes_pass(job, attempt)
        attempt = _change(draft, attempt, ready=ready)
        if not ready and attempt.serving.registering_since is not None:
            attempt = _change(draft, attempt, **_UNCONFIRMED)
        if ready and attempt.serving.registered_at is None:
            if _has_gateway(draft) and attempt.serving.exposed_socket is None:
                _begin_registration(draft, attempt)
                continue
            changed = _change(draft, attempt, registered_at=draft.now, was_registered=True)
            cause = "probes" if attempt.serving.exposed_socket is None else "gateway"
            draft.record(EventKind.TRAFFIC, cause, attempt=changed, to_status="registered")
        elif not ready and attempt.serving.registered_at is not None:
            changed = _change(draft, attempt, registered_at=None)
            why = why_not_ready(job, changed, draft.jobs)
            draft.record(
                EventKind.TRAFFIC, "probes", attempt=changed, to_status="unregistered", message=why
            )


def drained(draft: Draft, report: ReplicaDrained) -> None:
    """Begin the grace of an attempt whose last request has ended."""
    attempt = draft.attempt(report.attempt_id)
    if attempt is not None:
        _begin_grace(draft, attempt)


def stop_waiting(draft: Draft) -> None:
    """Begin the grace of the members whose primary has no request in flight any more."""
    for job in list(draft.jobs):
        if not (members.is_member(draft.run, job) and job.rank and job.attempts):
            continue
        if job.attempts[-1].drains_until is None:
            continue
        primary = members.primary_attempt(draft.jobs, job)
        if primary is None or primary.drains_until is None or primary.seen.runner_exited:
            _begin_grace(draft, job.attempts[-1])


def _begin_grace(draft: Draft, attempt: Attempt) -> None:
    if attempt.drains_until is None:
        return
    left = max(0.0, attempt.drains_until - draft.now)
    remove_at = None if attempt.remove_at is None else attempt.remove_at - left
    draft.change_attempt(attempt, drains_until=None, remove_at=remove_at)
