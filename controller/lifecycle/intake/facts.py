"""Facts are what was seen on a node; this module writes them to the attempts.

Facts only grow, so reports may repeat and come in any order. A fact also lands on a final attempt;
a status moves only while the attempt is live. A report about an attempt that was never placed is
dropped: nothing on a node can be about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from controller.lifecycle import outputs
from controller.lifecycle.attempts import (
    again,
    allocations,
    end_signal,
    inactivity,
    limits,
    termination,
)
from controller.lifecycle.draft import Draft
from controller.lifecycle.events import EventKind
from controller.lifecycle.gangs import freed
from controller.lifecycle.gangs.incarnation import with_descriptor
from controller.lifecycle.model import Attempt, LimitPause, TaskDetails, Unrentable
from controller.lifecycle.reports import (
    AllocationReleased,
    Carried,
    ControllerStarted,
    FreedAllocationLost,
    InactivitySeen,
    JobSignalled,
    LeftClean,
    LinksFound,
    LogsComplete,
    MachineAnswered,
    NodeDisconnected,
    Nominated,
    NominationEnded,
    NotPlaced,
    NotReusable,
    OutputsCollected,
    Placed,
    ProbeSeen,
    RegistrationFailed,
    ReplicaDrained,
    ReplicaRegistered,
    Report,
    RunnerExited,
    RunnerStarted,
    StartAgainRefused,
    StartedAgain,
    StartEnded,
    TaskAccepted,
    TaskMissing,
    TaskRemoved,
    TaskSeen,
)
from controller.lifecycle.services import readiness, rollout
from controller.lifecycle.sweeps import carrying
from fairlead.model.job_links import MAX_LINKS
from fairlead.model.reasons import Reason
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES, AttemptStatus, RunStatus

_ORDER: dict[type, int] = {
    ControllerStarted: 0,
    NodeDisconnected: 0,
    Placed: 1,
    NotPlaced: 2,
    MachineAnswered: 2,
    TaskMissing: 3,
    TaskAccepted: 4,
    RunnerStarted: 5,
    Carried: 5,
    NotReusable: 6,
    LeftClean: 6,
    RunnerExited: 6,
    TaskSeen: 7,
    LogsComplete: 8,
    LinksFound: 8,
    OutputsCollected: 9,
    TaskRemoved: 10,
    AllocationReleased: 11,
    FreedAllocationLost: 11,
    ProbeSeen: 6,
    InactivitySeen: 6,
    JobSignalled: 6,
    StartedAgain: 5,
    StartAgainRefused: 6,
    StartEnded: 6,
    RegistrationFailed: 6,
    ReplicaRegistered: 7,
    ReplicaDrained: 11,
    NominationEnded: 12,
    Nominated: 13,
}
"""The order along an attempt's life. TaskMissing stands before TaskAccepted: a shim that accepted
the task in this turn did not lose it, it did not have it yet."""

_STEPS_OF_PROGRESS = 20
"""A pull's progress is committed at most this many times within its limit; its shim reports it
twice a second."""

_ACKNOWLEDGED = frozenset({AttemptStatus.PULLING, AttemptStatus.RUNNING, AttemptStatus.TERMINATING})


def apply(draft: Draft, reports: Sequence[Report]) -> None:
    """Apply the facts among the reports, in the order of an attempt's life."""
    facts = [report for report in reports if type(report) in _ORDER]
    if len(facts) > 1:
        facts.sort(key=_place_in_turn)
    for report in facts:
        _apply_one(draft, report)


def _market_answered(draft: Draft, report: MachineAnswered) -> None:
    attempt = draft.attempt(report.attempt_id)
    if attempt is None:
        return
    is_recalled = attempt.reason is Reason.INTERRUPTED_BY_NO_CAPACITY
    if attempt.status is AttemptStatus.TERMINATING and is_recalled:
        # It has no machine to wait for yet: its successor will (12.18).
        draft.change_attempt(attempt, renting=report.renting)
    if attempt.status is not AttemptStatus.SUBMITTED:
        return
    unrentable = _unrentable(attempt.unrentable, report, draft.now)
    draft.change_attempt(attempt, unrentable=unrentable, renting=report.renting)


def _unrentable(
    before: Unrentable | None, report: MachineAnswered, now: float
) -> Unrentable | None:
    """Return for how long no machine was to be had. What is only ordered may be refused again: the
    time stands still meanwhile, and does not begin anew."""
    if report.why is not None:
        if before is None:
            return Unrentable(since=now, why=report.why)
        if before.paused_at is None:
            return before
        stood_still = max(0.0, now - before.paused_at)
        return Unrentable(since=before.since + stood_still, why=report.why)
    if before is None or not report.is_ordered:
        return None
    return before if before.paused_at is not None else replace(before, paused_at=now)


def _place_in_turn(report: Report) -> tuple[int, str, int]:
    # An event and the answer to a request can overtake each other; the shim's version orders them.
    version = report.version if isinstance(report, TaskSeen) else 0
    return _ORDER[type(report)], getattr(report, "attempt_id", ""), version


def _apply_one(draft: Draft, report: Report) -> None:
    match report:
        case NodeDisconnected():
            _node_disconnected(draft, report)
        case Placed():
            _placed(draft, report)
        case NotPlaced():
            _not_placed(draft, report)
        case MachineAnswered():
            _market_answered(draft, report)
        case Nominated():
            allocations.nominate(draft, report)
        case NominationEnded():
            allocations.end_nomination(draft, report)
        case TaskMissing() | TaskAccepted() | RunnerStarted() | RunnerExited():
            _placed_attempt_fact(draft, report)
        case TaskSeen() | LogsComplete() | LinksFound() | OutputsCollected() | TaskRemoved():
            _placed_attempt_fact(draft, report)
        case LeftClean():
            carrying.begin(draft, report)
        case Carried():
            carrying.note(draft, report)
        case NotReusable():
            carrying.not_reusable(draft, report)
        case AllocationReleased():
            allocations.released_by_shim(draft, report.allocation_id)
        case ProbeSeen():
            readiness.note_probe(draft, report)
        case ReplicaRegistered():
            readiness.note_registration(draft, report)
        case RegistrationFailed():
            readiness.note_failed_registration(draft, report)
        case StartedAgain():
            again.begun(draft, report)
        case StartAgainRefused():
            again.refused(draft, report)
        case StartEnded():
            again.ended(draft, report)
        case JobSignalled():
            end_signal.sent(draft, report)
        case ReplicaDrained():
            readiness.drained(draft, report)
        case ControllerStarted():
            _controller_started(draft)
        case InactivitySeen():
            inactivity.note(draft, report)
        case FreedAllocationLost():
            freed.give_up(draft, report.allocation_id, report.cause)
        case _:
            pass


def _not_placed(draft: Draft, report: NotPlaced) -> None:
    attempt = draft.attempt(report.attempt_id)
    if attempt is not None and attempt.status is AttemptStatus.SUBMITTED:
        draft.change_attempt(attempt, pending_reason=report.pending_reason)


def _controller_started(draft: Draft) -> None:
    rollout.start_timeout_anew(draft)
    readiness.start_registrations_anew(draft)
    allocations.hold_declared_ports(draft)
    again.renew_watchers(draft)


def _placed_attempt_fact(
    draft: Draft,
    report: TaskMissing
    | TaskAccepted
    | RunnerStarted
    | RunnerExited
    | TaskSeen
    | LogsComplete
    | LinksFound
    | OutputsCollected
    | TaskRemoved,
) -> None:
    attempt = draft.attempt(report.attempt_id)
    if attempt is None or attempt.node_id is None:
        return
    match report:
        case TaskAccepted():
            _acknowledge(draft, attempt, report)
        case RunnerStarted():
            _runner_started(draft, attempt, report)
        case RunnerExited():
            attempt = _acknowledge(draft, attempt, report)
            # The shim repeats the exit record once the container is gone: the first one counts.
            exit_code = attempt.exit_code if attempt.seen.runner_exited else report.exit_code
            seen = replace(attempt.seen, runner_exited=True)
            draft.change_attempt(attempt, seen=seen, exit_code=exit_code)
        case TaskSeen():
            _task_seen(draft, attempt, report)
        case TaskMissing() | TaskRemoved():
            # A shim that has not accepted the task yet cannot have lost it.
            if attempt.status in _ACKNOWLEDGED or attempt.status in FINAL_ATTEMPT_STATUSES:
                gone_with_it = isinstance(report, TaskRemoved) and report.allocation_released
                _nothing_left(draft, attempt, allocation_released=gone_with_it)
        case LogsComplete():
            draft.change_attempt(attempt, seen=replace(attempt.seen, logs_complete=True))
        case LinksFound():
            fresh = tuple(one for one in report.links if one not in attempt.links)
            draft.change_attempt(attempt, links=(*attempt.links, *fresh)[:MAX_LINKS])
        case OutputsCollected():
            outputs.collected(draft, attempt, report)


def _node_disconnected(draft: Draft, report: NodeDisconnected) -> None:
    words = ("connected", "disconnected")
    before, after = words if report.disconnected else reversed(words)
    cause = "NodeDisconnected" if report.disconnected else "NodeConnected"
    for attempt in draft.live():
        if attempt.node_id != report.node_id:
            continue
        if report.limits_anew:
            attempt = _start_limits_anew(draft, attempt)
        elif report.disconnected:
            attempt = limits.pause_interruption(draft, attempt)
        # Reported again, for example by a controller that has just begun.
        if attempt.disconnected == report.disconnected:
            continue
        changes: dict[str, Any] = {"disconnected": report.disconnected}
        if not report.disconnected:
            changes |= _grace_from_now(draft, attempt)
        elif attempt.reason is None:
            since = attempt.limit_pause.since or draft.now
            changes["limit_pause"] = replace(attempt.limit_pause, since=since)
        draft.change_attempt(attempt, **changes)
        draft.record(
            EventKind.CONNECTION, cause, attempt=attempt, from_status=before, to_status=after
        )


def _grace_from_now(draft: Draft, attempt: Attempt) -> dict[str, Any]:
    """Return the times of an attempt that ended while its node was silent, or which the restart of
    a controller found ended: nobody may have asked its job to stop, so its grace begins now.

    Its pause tells, and no comparison of times: the clock may have been set in between.
    """
    if attempt.reason is None or attempt.limit_pause.since is None:
        return {}
    times: dict[str, Any] = {"limit_pause": replace(attempt.limit_pause, since=None)}
    whole = termination.whole_grace(draft.run, attempt)
    if not whole or attempt.seen.runner_exited or attempt.seen.container_gone:
        return times
    begins_at = draft.now
    if attempt.drains_until is not None:
        begins_at += draft.run.policy.limits.drain
        times["drains_until"] = begins_at
    return times | {"remove_at": begins_at + whole}


def _start_limits_anew(draft: Draft, attempt: Attempt) -> Attempt:
    """Start the attempt's limit again, as if the node had been away since the limit began."""
    pause = LimitPause(since=limits.limit_began_at(attempt))
    probes = tuple(replace(one, paused=0.0) for one in attempt.serving.probes)
    serving = replace(attempt.serving, probes=probes)
    return draft.change_attempt(attempt, limit_pause=pause, serving=serving)


def _placed(draft: Draft, report: Placed) -> None:
    attempt = draft.attempt(report.attempt_id)
    if attempt is None or attempt.status is not AttemptStatus.SUBMITTED:
        return
    # The pass planned with the state before this turn's requests.
    if draft.run.suspended or draft.run.status is RunStatus.TERMINATING:
        return
    job = draft.job(attempt.job_id)
    assert job is not None, "an attempt belongs to a job"
    allocation = with_descriptor(draft.run, job, attempt.rank, report.allocation, draft.new_id)
    draft.hold(attempt, allocation, "Placed")
    for freed_id in report.instead_of:
        freed.give_up(draft, freed_id, "a job of its run uses it")
    draft.provision(
        attempt, allocation, "Placed", limit_pause=replace(attempt.limit_pause, total=0.0)
    )


def _acknowledge(draft: Draft, attempt: Attempt, report: Report) -> Attempt:
    """Move the attempt to PULLING: any of these reports shows that the shim has recorded the
    task."""
    if attempt.status is not AttemptStatus.PROVISIONING:
        return attempt
    return draft.move_attempt(
        attempt,
        AttemptStatus.PULLING,
        type(report).__name__,
        pulling_at=draft.now,
        limit_pause=limits.first_pause(draft, attempt),
    )


def _container_started(draft: Draft, attempt: Attempt) -> Attempt:
    if attempt.seen.container_started:
        return attempt
    return draft.change_attempt(
        attempt,
        seen=replace(attempt.seen, container_started=True, container_started_at=draft.now),
        limit_pause=limits.first_pause(draft, attempt),
    )


def _runner_started(draft: Draft, attempt: Attempt, report: RunnerStarted) -> None:
    attempt = _container_started(draft, _acknowledge(draft, attempt, report))
    if attempt.running_at is not None:
        return
    # The clock may have jumped since: RUNNING lies between the pull and this turn.
    earliest = attempt.pulling_at or attempt.submitted_at
    running_at = min(draft.now, max(report.at, earliest))
    if attempt.status is AttemptStatus.PULLING:
        draft.move_attempt(attempt, AttemptStatus.RUNNING, "RunnerStarted", running_at=running_at)
    # The job began before it was to end; the report of it came late.
    elif attempt.terminating_at is not None and running_at <= attempt.terminating_at:
        draft.change_attempt(attempt, running_at=running_at)


def _task_seen(draft: Draft, attempt: Attempt, report: TaskSeen) -> None:
    attempt = _acknowledge(draft, attempt, report)
    if report.container_started:
        attempt = _container_started(draft, attempt)
    elif attempt.status is AttemptStatus.PULLING and not attempt.seen.container_started:
        attempt = _progressed(draft, attempt, report)
    task, seen, pull = attempt.task, attempt.seen, attempt.pull
    draft.change_attempt(
        attempt,
        exit_code=_exit_code(attempt, report),
        # A late report is older, and lacks some of what is known already: that stays.
        task=TaskDetails(
            gpus=report.gpus or task.gpus,
            ports=report.ports or task.ports,
            ssh_host_key=report.ssh_host_key or task.ssh_host_key,
            ssh_host=report.ssh_host or task.ssh_host,
            address=report.address or task.address,
            runner_socket=report.runner_socket or task.runner_socket,
            image_digest=report.image_digest or task.image_digest,
        ),
        seen=replace(
            seen,
            container_gone=seen.container_gone or report.terminated,
            has_outputs=seen.has_outputs or report.has_outputs,
        ),
        pull=replace(
            pull,
            creating_seen=pull.creating_seen or report.creating or report.container_started,
            credentials_asked=_credentials_asked(attempt, report),
        ),
    )


def _progressed(draft: Draft, attempt: Attempt, report: TaskSeen) -> Attempt:
    """Record the progress of a pull. Any other number counts, not only a greater one: a pull that
    starts again makes progress too."""
    allowed = draft.run.policy.limits
    shortest = min(allowed.waiting_container, allowed.reincarnation_timeout)
    step = (allowed.waiting_container if attempt.rank is None else shortest) / _STEPS_OF_PROGRESS
    since = limits.start_limit_began_at(attempt) or 0.0
    further = report.progress != attempt.pull.progress and draft.now - since >= step
    if not further and (attempt.pull.creating_seen or not report.creating):
        return attempt
    return draft.change_attempt(
        attempt,
        pull=replace(attempt.pull, progress=report.progress, progressed_at=draft.now),
        limit_pause=limits.first_pause(draft, attempt),
    )


def _credentials_asked(attempt: Attempt, report: TaskSeen) -> int | None:
    """Return the task version at which the shim last asked for credentials; None: it does not wait
    for them.

    An older report than the last request changes nothing. A late report may cause one needless
    request: then the shim gets credentials that it has already.
    """
    asked = attempt.pull.credentials_asked
    if report.needs_credentials:
        return report.version if asked is None else max(asked, report.version)
    return asked if asked is not None and report.version < asked else None


def _exit_code(attempt: Attempt, report: TaskSeen) -> int | None:
    """Return the job's exit code: the runner's, if the runner reported one, else the container's.

    A runner that could not start the job reports no code, and the container's code is not the
    job's.
    """
    has_one = attempt.seen.runner_exited or attempt.exit_code is not None
    return attempt.exit_code if has_one else report.exit_code


def _nothing_left(draft: Draft, attempt: Attempt, *, allocation_released: bool) -> None:
    seen = replace(
        attempt.seen,
        container_gone=True,
        logs_complete=True,
        task_removed=True,
        allocation_released=attempt.seen.allocation_released or allocation_released,
    )
    draft.change_attempt(attempt, seen=seen)
