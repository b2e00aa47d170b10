"""A running job starts again in its container, with what its user has changed (docs/rules.md 2.15).

The job has the new specification from the commit that accepts the request on. So a later attempt
begins with it too, whatever becomes of this container.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from controller.lifecycle.draft import Draft
from controller.lifecycle.events import EventKind
from controller.lifecycle.model import Attempt, Run
from controller.lifecycle.reports import (
    StartAgainRefused,
    StartAgainRequested,
    StartedAgain,
    StartEnded,
    TaskSeen,
    WatcherSeen,
)
from fairlead.model.reasons import ROWS, Reason
from fairlead.model.starts import LEASE_SECONDS, StartEnd, Starts, Watcher
from fairlead.model.statuses import AttemptStatus, RunStatus

_MAX_WATCHERS = 16


def ask(draft: Draft, requests: Sequence[StartAgainRequested]) -> None:
    """Carry out the newest of several requests of one turn."""
    newest = max(requests, key=lambda one: (one.at, msgspec.json.encode(one)), default=None)
    attempt = None if newest is None else draft.attempt(newest.attempt_id)
    if newest is None or attempt is None or not may_start_again(draft.run, attempt):
        return
    job = draft.job(attempt.job_id)
    # A client repeats a request whose answer was lost.
    if job is None or (job.spec, draft.run.configuration) == (newest.spec, newest.configuration):
        return
    draft.change_job(job, spec=newest.spec)
    draft.change_run(configuration=newest.configuration)
    before = attempt.starts or Starts()
    starts = replace(before, asked=before.asked + 1, refused=None)
    attempt = draft.change_attempt(attempt, starts=starts)
    draft.record(
        EventKind.REQUEST,
        type(newest).__name__,
        attempt=attempt,
        to_status="started again",
        message=f"started again by {newest.by}: its files have changed",
    )


def may_start_again(run: Run, attempt: Attempt) -> bool:
    """Return whether the job of this attempt can be asked to start again in its container."""
    return (
        run.policy.keeps_for is not None
        and run.status is not RunStatus.TERMINATING
        and not run.suspended
        and attempt.status is AttemptStatus.RUNNING
        and attempt.interruption is None
        and not attempt.seen.runner_exited
    )


def begun(draft: Draft, report: StartedAgain) -> None:
    attempt = draft.attempt(report.attempt_id)
    if attempt is None or attempt.starts is None or report.number <= attempt.starts.begun:
        return
    draft.change_attempt(attempt, starts=replace(attempt.starts, begun=report.number))


def ended(draft: Draft, report: StartEnded) -> None:
    """Note how a start ended, which may come before the report that it has begun."""
    attempt = draft.attempt(report.attempt_id)
    if attempt is None or draft.run.policy.keeps_for is None:
        return
    starts = attempt.starts or Starts()
    before = -1 if starts.ended is None else starts.ended.number
    # A job can impersonate its runner, and number what nobody asked for.
    if not max(starts.begun, before + 1) <= report.number <= starts.asked:
        return
    reason, message = reason_from_runner(report.reason, report.message, report.exit_code)
    end = StartEnd(
        number=report.number,
        at=min(max(report.at, attempt.running_at or attempt.submitted_at), draft.now),
        reason=reason,
        message=message,
        exit_code=report.exit_code,
    )
    draft.change_attempt(attempt, starts=replace(starts, begun=report.number, ended=end))


def reason_from_runner(
    reason: Reason, message: str | None, exit_code: int | None
) -> tuple[Reason, str | None]:
    """Return the reason and message of an end that a runner tells."""
    # A job can forge its exit record, and a lost node is retried where an error is not.
    if ROWS[reason].runner_rank is None:
        message = f"the exit record gives the reason {reason}, which a runner must not give"
        reason = Reason.CONTAINER_EXITED_WITH_ERROR
    # Done means exit code 0, whatever the record calls it.
    elif reason is Reason.DONE_BY_RUNNER and exit_code:
        reason = Reason.CONTAINER_EXITED_WITH_ERROR
    if message is None and exit_code:
        message = f"the job ended with exit code {exit_code}"
    return reason, message


_OTHERS_END_IT = frozenset(
    {
        Reason.INSTANCE_UNREACHABLE,
        Reason.INTERRUPTED_BY_NO_CAPACITY,
        Reason.GPU_UNHEALTHY,
        Reason.LOST_AFTER_REVIVAL,
        Reason.WAITING_RUNNER_LIMIT_EXCEEDED,
        Reason.EXECUTOR_ERROR,
        Reason.NODE_DRAINED,
        Reason.PREEMPTED,
        Reason.SUSPENDED,
        Reason.MAX_DURATION_EXCEEDED,
    }
)
"""What takes a container away, or its runner, without a word about the job."""


def own_result(attempt: Attempt, reason: Reason, cause: str) -> StartEnd | None:
    """Return how the job of a container that only waits has ended, if this reason is not about the
    job: then it ends the attempt instead."""
    starts = attempt.starts
    if starts is None or attempt.status is not AttemptStatus.RUNNING:
        return None
    result = starts.result
    if result is None:
        return None
    # The shim says how the container ended, in which no job was left.
    others = reason in _OTHERS_END_IT or cause == TaskSeen.__name__
    return result if others or reason is result.reason else None


def watch(draft: Draft, reports: Sequence[WatcherSeen]) -> None:
    """Note who watches. Of one client's reports the newest counts."""
    if not reports or draft.run.policy.keeps_for is None:
        return
    attempt = next(_newest(draft), None)
    if attempt is None or draft.run_is_final:
        return
    starts = attempt.starts or Starts()
    found = {one.id: one for one in starts.watchers or ()}
    for report in sorted(reports, key=lambda one: (one.at, -one.until)):
        found.pop(report.watcher, None)
        if report.until > report.at:
            found[report.watcher] = Watcher(id=report.watcher, until=report.until)
    there = tuple(one for one in found.values() if one.until > draft.now)
    changed = replace(starts, watchers=there[-_MAX_WATCHERS:])
    draft.change_attempt(attempt, starts=changed)


def renew_watchers(draft: Draft) -> None:
    """While no controller was there, no client could tell that it still watches."""
    until = draft.now + LEASE_SECONDS
    for attempt in [] if draft.run_is_final else list(_newest(draft)):
        if attempt.starts is not None and attempt.starts.watchers:
            watchers = tuple(
                replace(one, until=max(one.until, until)) for one in attempt.starts.watchers
            )
            draft.change_attempt(attempt, starts=replace(attempt.starts, watchers=watchers))


def _newest(draft: Draft) -> Iterator[Attempt]:
    """Yield the last attempt of each job, also between two attempts: the next one inherits who
    watches."""
    for job in draft.jobs:
        yield from job.attempts[-1:]


def refused(draft: Draft, report: StartAgainRefused) -> None:
    """Note why the start never begins. The job may go on: it has its new specification when it is
    tried again."""
    attempt = draft.attempt(report.attempt_id)
    if attempt is None or attempt.starts is None or report.number != attempt.starts.asked:
        return
    if attempt.starts.is_owed:
        draft.change_attempt(attempt, starts=replace(attempt.starts, refused=report.message))
