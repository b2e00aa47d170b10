"""What users (and the end of a parent) ask of a run: carried out after all reports of a turn.

Several requests of one turn are carried out in an order of their own, not in that of their arrival,
and each once. A request that asks for what is so already changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from controller.lifecycle import allocations, limits, schedules, termination
from controller.lifecycle.draft import Draft
from controller.lifecycle.events import EventKind
from controller.lifecycle.gangs.queries import is_gang_run
from controller.lifecycle.model import Attempt, Job, OnParentEnd
from controller.lifecycle.reasons import Reason, RunReason
from controller.lifecycle.reports import (
    CompleteRequested,
    JobAbandonRequested,
    JobAbortRequested,
    JobInterruptRequested,
    ParentEnded,
    Report,
    ResumeRequested,
    ScaleRequested,
    ServerFault,
    StopRequested,
    SuspendRequested,
)
from controller.lifecycle.statuses import FINAL_ATTEMPT_STATUSES, AttemptStatus, RunStatus


def obey(draft: Draft, reports: Sequence[Report]) -> None:
    for request in _in_order(reports):
        match request:
            case StopRequested():
                _stop(draft, request)
            case CompleteRequested():
                _end_run(draft, RunReason.COMPLETED_BY_USER, request, f"completed by {request.by}")
            case ParentEnded():
                _follow_parent(draft, request)
            case ServerFault():
                _end_run(draft, RunReason.SERVER_ERROR, request, request.message)
            case ScaleRequested():
                _scale(draft, request)
            case JobAbandonRequested() | JobAbortRequested() | JobInterruptRequested():
                _ask_job(draft, request)
            case ResumeRequested():
                _resume(draft, request)
            case SuspendRequested():
                _suspend(draft, request)
            case _:
                pass


_ORDER: Final[tuple[type, ...]] = (
    StopRequested,
    CompleteRequested,
    ParentEnded,
    ServerFault,
    ScaleRequested,
    JobAbandonRequested,
    JobAbortRequested,
    JobInterruptRequested,
    ResumeRequested,
    SuspendRequested,
)
"""A stop before an abort, whoever was faster; what ends the run before what changes it; and who
wants a run to hold still gets his way over who wants it to go on."""


def _in_order(reports: Iterable[Report]) -> list[Report]:
    """Of several sizes for one group the largest alone: a job must not end for the other."""
    asked = {report for report in reports if type(report) in _ORDER}
    ordered = sorted(asked, key=lambda r: (_ORDER.index(type(r)), msgspec.structs.astuple(r)))
    return list({_subject(request): request for request in ordered}.values())


def _subject(request: Report) -> object:
    return request.group if isinstance(request, ScaleRequested) else request


def _cause(request: Report) -> str:
    return type(request).__name__


# -- the end of the run ---------------------------------------------------------------------


def _stop(draft: Draft, request: StopRequested) -> None:
    reason = RunReason.ABORTED_BY_USER if request.abort else RunReason.STOPPED_BY_USER
    message = f"{'aborted' if request.abort else 'stopped'} by {request.by}"
    if draft.run.status is RunStatus.TERMINATING:
        termination.mark_active(draft, reason, _cause(request), message)
    _end_run(draft, reason, request, message)


def _follow_parent(draft: Draft, request: ParentEnded) -> None:
    run = draft.run
    if run.parent_id == request.parent_id and run.policy.on_parent_end is OnParentEnd.TERMINATE:
        _end_run(draft, RunReason.STOPPED_BY_USER, request, request.message)


def _end_run(draft: Draft, reason: RunReason, request: Report, message: str) -> None:
    """The first reason of a run stays; but a scheduled run whose occurrence is just ending is told
    not to wait for another."""
    if schedules.is_scheduled(draft.run) and draft.run.ends_as is None:
        draft.change_run(ends_as=reason)
    if draft.run.status is not RunStatus.TERMINATING:
        termination.end_run(draft, reason, _cause(request), message)


# -- the run goes on ------------------------------------------------------------------------


def _suspend(draft: Draft, request: SuspendRequested) -> None:
    """Running jobs go on unless `abort_running`; nothing else is begun."""
    if draft.run.status is RunStatus.TERMINATING:
        return
    message = f"suspended by {request.by}"
    if not draft.run.suspended:
        draft.change_run(suspended=True)
        draft.tell(EventKind.REQUEST, _cause(request), to_status="suspended", message=message)
    for attempt in draft.live():
        if attempt.status is AttemptStatus.SUBMITTED:
            allocations.give_up_nomination(draft, attempt, _cause(request))
    if not request.abort_running:
        return
    for attempt in draft.live():
        queued = attempt.status is AttemptStatus.SUBMITTED
        if attempt.reason is None and (not queued or is_gang_run(draft.run)):
            termination.end(draft, attempt, Reason.SUSPENDED, _cause(request), message)


def _resume(draft: Draft, request: ResumeRequested) -> None:
    """Whatever has ended without a successor is decided on again, as if it ended now: a wait that
    was going starts anew."""
    if not draft.run.suspended or draft.run.status is RunStatus.TERMINATING:
        return
    draft.change_run(suspended=False, resumed_at=draft.now)
    draft.tell(
        EventKind.REQUEST,
        _cause(request),
        to_status="resumed",
        message=f"resumed by {request.by}",
    )
    schedules.forget_missed_triggers(draft)
    for job in list(draft.jobs):
        draft.set_retry_at(job, None)


def _scale(draft: Draft, request: ScaleRequested) -> None:
    """Whoever asks is told before that a gang cannot be scaled, nor anything to less than one."""
    run = draft.run
    slots = [job for job in draft.jobs if job.group == request.group]
    if not slots or request.nodes < 1 or is_gang_run(run) or run.status is RunStatus.TERMINATING:
        return
    present = sorted((job for job in slots if not job.scaled_down), key=lambda job: job.cookie)
    if len(present) == request.nodes:
        return
    draft.tell(
        EventKind.REQUEST,
        _cause(request),
        to_status="scaled",
        message=f"group {request.group} to {request.nodes} jobs by {request.by}",
    )
    groups = tuple(
        replace(group, nodes=request.nodes) if group.name == request.group else group
        for group in run.groups
    )
    draft.change_run(groups=groups)
    for job in present[request.nodes :]:
        _take_away(draft, job, request)
    missing = request.nodes - len(present)
    away = sorted((job for job in slots if job.scaled_down), key=lambda job: job.cookie)
    for job in away[: max(0, missing)]:
        _begin(draft, draft.change_job(job, scaled_down=False), request)
    for _ in range(missing - len(away)):
        _begin(draft, _new_slot(draft, request.group), request)


def _take_away(draft: Draft, job: Job, request: ScaleRequested) -> None:
    job = draft.change_job(job, scaled_down=True, retry_at=None)
    live = _live_attempt(job)
    if live is not None:
        message = f"scaled to {request.nodes} jobs by {request.by}"
        termination.end(draft, live, Reason.SCALED_DOWN, _cause(request), message)


def _new_slot(draft: Draft, group: str) -> Job:
    """Like the group's first one."""
    own = [job for job in draft.jobs if job.group == group]
    return draft.add_job(
        Job(
            id=draft.new_id(),
            group=group,
            replica=max(job.replica for job in own) + 1,
            cookie=max(job.cookie for job in own) + 1,
            index=max(job.index for job in draft.jobs) + 1,
            spec=own[0].spec,
        )
    )


def _begin(draft: Draft, job: Job, request: ScaleRequested) -> None:
    """What has been tried in this occurrence already is left to the rules of retrying."""
    last = job.attempts[-1] if job.attempts else None
    tried = last is not None and last.occurrence == draft.run.occurrence
    if not (tried or job.abandoned or schedules.waits_for_trigger(draft.run)):
        draft.fresh_attempt(job, _cause(request))


# -- one job --------------------------------------------------------------------------------


def _ask_job(
    draft: Draft, request: JobAbandonRequested | JobAbortRequested | JobInterruptRequested
) -> None:
    job = draft.job(request.job_id)
    if job is not None:
        _JOB_REQUESTS[type(request)](draft, job, request)


def _abandon(draft: Draft, job: Job, request: JobAbandonRequested) -> None:
    if job.abandoned or draft.run.status is RunStatus.TERMINATING:
        return
    job = draft.change_job(job, abandoned=True, retry_at=None)
    message = f"abandoned by {request.by}"
    draft.tell(EventKind.REQUEST, _cause(request), job=job, to_status="abandoned", message=message)
    live = _live_attempt(job)
    if live is not None:
        termination.end(draft, live, Reason.ABANDONED, _cause(request), message)


def _abort(draft: Draft, job: Job, request: JobAbortRequested) -> None:
    live = _live_attempt(job)
    if live is not None:
        message = f"aborted by {request.by}"
        termination.end(draft, live, Reason.JOB_ABORTED_BY_USER, _cause(request), message)


def _interrupt(draft: Draft, job: Job, request: JobInterruptRequested) -> None:
    """Only a running job can be asked; how it then ends is its own to say."""
    live = _live_attempt(job)
    if live is None or live.status is not AttemptStatus.RUNNING or live.runner_exited:
        return
    if live.interrupt_requested_at is not None:
        return
    asked = limits.begin_interruption(draft, live)
    draft.note(
        EventKind.REQUEST,
        asked,
        _cause(request),
        to_status="interrupted",
        message=f"asked to interrupt itself by {request.by}",
    )


_JOB_REQUESTS: Final[dict[type, Callable[[Draft, Job, Any], None]]] = {
    JobAbandonRequested: _abandon,
    JobAbortRequested: _abort,
    JobInterruptRequested: _interrupt,
}


def _live_attempt(job: Job) -> Attempt | None:
    if not job.attempts or job.attempts[-1].status in FINAL_ATTEMPT_STATUSES:
        return None
    return job.attempts[-1]
