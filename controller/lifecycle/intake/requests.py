"""Requests of users, and the end of a parent, are carried out after all reports of a turn.

Several requests of one turn have a fixed order, independent of their arrival, and each is carried
out once. A request for the state that a run is already in changes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from controller.lifecycle.attempts import again, allocations, limits, termination
from controller.lifecycle.draft import Draft
from controller.lifecycle.events import EventKind
from controller.lifecycle.membership.ranks import is_gang_run
from controller.lifecycle.model import Attempt, Job, OnParentEnd
from controller.lifecycle.reports import (
    CompleteRequested,
    DeployRequested,
    JobAbandonRequested,
    JobAbortRequested,
    JobInterruptRequested,
    Order,
    ParentEnded,
    ReplicasWanted,
    Report,
    ResumeRequested,
    RollbackRequested,
    ScaleRequested,
    ServerFault,
    SetsRetried,
    SetsStopped,
    StartAgainRequested,
    StopRequested,
    SuspendRequested,
    SweepResized,
    WakeRequested,
    WatcherSeen,
)
from controller.lifecycle.runs import ending, schedules
from controller.lifecycle.services import rollout, scaling
from controller.lifecycle.sweeps import chosen
from fairlead.model.reasons import Reason, RunReason
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES, AttemptStatus, RunStatus


def obey(draft: Draft, reports: Sequence[Report]) -> None:
    """Carry out the requests among the reports, in their fixed order."""
    fresh = [one for one in reports if not _is_repeated(draft, one)]
    _note_orders(draft, fresh)
    for request in _in_order(fresh):
        match request:
            case StopRequested():
                _stop(draft, request)
            case CompleteRequested():
                _end_run(draft, RunReason.COMPLETED_BY_USER, request, f"completed by {request.by}")
            case ParentEnded():
                _follow_parent(draft, request)
            case ServerFault():
                _end_run(draft, RunReason.SERVER_ERROR, request, request.message)
            case RollbackRequested():
                rollout.roll_back(draft, request)
            case ReplicasWanted():
                scaling.scale(draft, request)
            case WakeRequested():
                scaling.wake(draft, request)
            case ScaleRequested():
                _scale(draft, request)
            case JobAbandonRequested() | JobAbortRequested() | JobInterruptRequested():
                _ask_job(draft, request)
            case SweepResized():
                chosen.resize(draft, request)
            case SetsStopped():
                chosen.stop(draft, request)
            case SetsRetried():
                chosen.retry(draft, request)
            case ResumeRequested():
                _resume(draft, request)
            case SuspendRequested():
                _suspend(draft, request)
            case _:
                pass
    rollout.deploy(draft, [one for one in reports if isinstance(one, DeployRequested)])
    again.ask(draft, [one for one in reports if isinstance(one, StartAgainRequested)])
    again.watch(draft, [one for one in reports if isinstance(one, WatcherSeen)])


MAX_ORDER_KEYS = 16
"""A client repeats an order within seconds."""


def _is_repeated(draft: Draft, report: Report) -> bool:
    return isinstance(report, Order) and report.order_key in draft.run.order_keys


def _note_orders(draft: Draft, reports: Iterable[Report]) -> None:
    """Keep their keys, also of those that change nothing now: they would later."""
    keys = {one.order_key for one in reports if isinstance(one, Order) and one.order_key}
    if keys:
        kept = (*draft.run.order_keys, *sorted(keys))
        draft.change_run(order_keys=kept[-MAX_ORDER_KEYS:])


_ORDER: Final[tuple[type, ...]] = (
    StopRequested,
    CompleteRequested,
    ParentEnded,
    ServerFault,
    RollbackRequested,
    ReplicasWanted,
    WakeRequested,
    ScaleRequested,
    JobAbandonRequested,
    JobAbortRequested,
    JobInterruptRequested,
    SweepResized,
    SetsStopped,
    SetsRetried,
    ResumeRequested,
    SuspendRequested,
)
"""A stop comes before an abort, and requests that end the run before requests that change it. A
suspend comes after a resume, so that the suspend wins."""


def _in_order(reports: Iterable[Report]) -> list[Report]:
    """Sort the requests. Of several sizes for one group only the largest counts: a job must not end
    because of a smaller one."""
    # A set: a client repeats a request whose answer was lost.
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
        ending.mark_active(draft, reason, _cause(request), message)
    _end_run(draft, reason, request, message)


def _follow_parent(draft: Draft, request: ParentEnded) -> None:
    run = draft.run
    if run.parent_id == request.parent_id and run.policy.on_parent_end is OnParentEnd.TERMINATE:
        _end_run(draft, RunReason.STOPPED_BY_USER, request, request.message)


def _end_run(draft: Draft, reason: RunReason, request: Report, message: str) -> None:
    """End the run. The first reason of a run stays. A scheduled run whose occurrence is ending gets
    no further one."""
    if schedules.is_scheduled(draft.run) and draft.run.ends_as is None:
        draft.change_run(ends_as=reason)
    if draft.run.status is not RunStatus.TERMINATING:
        ending.end_run(draft, reason, _cause(request), message)


# -- the run goes on ------------------------------------------------------------------------


def _suspend(draft: Draft, request: SuspendRequested) -> None:
    """Suspend the run. Running jobs go on unless `abort_running`; nothing new begins."""
    if draft.run.status is RunStatus.TERMINATING:
        return
    message = f"suspended by {request.by}"
    if not draft.run.suspended:
        draft.change_run(suspended=True)
        draft.record(EventKind.REQUEST, _cause(request), to_status="suspended", message=message)
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
    """Resume the run. Every job that ended without a successor is decided again, as if it ended
    now; its wait starts again."""
    if not draft.run.suspended or draft.run.status is RunStatus.TERMINATING:
        return
    draft.change_run(suspended=False, resumed_at=draft.now)
    draft.record(
        EventKind.REQUEST, _cause(request), to_status="resumed", message=f"resumed by {request.by}"
    )
    schedules.forget_missed_triggers(draft)
    for job in list(draft.jobs):
        draft.set_retry_at(job, None)


def _scale(draft: Draft, request: ScaleRequested) -> None:
    """Scale a group. The service has already refused to scale a gang, or to less than one job."""
    run = draft.run
    slots = [job for job in draft.jobs if job.group == request.group]
    if run.deployments or run.sweep is not None or run.status is RunStatus.TERMINATING:
        return
    if not slots or request.nodes < 1 or is_gang_run(run):
        return
    present = sorted((job for job in slots if not job.scaled_down), key=lambda job: job.cookie)
    if len(present) == request.nodes:
        return
    draft.record(
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
    """Add a job like the group's first one."""
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
    """Give a new slot its first attempt. If it was tried in this occurrence before, the retry rules
    decide."""
    last = job.attempts[-1] if job.attempts else None
    tried = last is not None and last.occurrence == draft.run.occurrence
    held_back = draft.run.policy.is_held_back  # `beginning.settle` lets it in
    if not (tried or job.abandoned or held_back or schedules.waits_for_trigger(draft.run)):
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
    if chosen.has_ended(draft, job):
        return
    job = draft.change_job(job, abandoned=True, retry_at=None)
    message = f"abandoned by {request.by}"
    draft.record(
        EventKind.REQUEST, _cause(request), job_id=job.id, to_status="abandoned", message=message
    )
    live = _live_attempt(job)
    if live is not None:
        termination.end(draft, live, Reason.ABANDONED, _cause(request), message)


def _abort(draft: Draft, job: Job, request: JobAbortRequested) -> None:
    live = _live_attempt(job)
    if live is not None:
        message = f"aborted by {request.by}"
        termination.end(draft, live, Reason.JOB_ABORTED_BY_USER, _cause(request), message)


def _interrupt(draft: Draft, job: Job, request: JobInterruptRequested) -> None:
    """Ask a running job to end by itself; the job decides with which exit code."""
    live = _live_attempt(job)
    if live is None or live.status is not AttemptStatus.RUNNING or live.seen.runner_exited:
        return
    if live.interruption is not None:
        return
    asked = limits.begin_interruption(draft, live)
    draft.record(
        EventKind.REQUEST,
        _cause(request),
        attempt=asked,
        to_status="interrupted",
        message=f"interrupted by {request.by}",
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
