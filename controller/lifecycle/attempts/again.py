"""A running job starts again in its container, with what its user has changed (docs/rules.md 2.15).

The job has the new specification from the commit that accepts the request on. So a later attempt
begins with it too, whatever becomes of this container.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from controller.lifecycle.draft import Draft
from controller.lifecycle.events import EventKind
from controller.lifecycle.model import Attempt, Run
from controller.lifecycle.reports import (
    StartAgainRefused,
    StartAgainRequested,
    StartedAgain,
)
from fairlead.model.starts import Starts
from fairlead.model.statuses import AttemptStatus, RunStatus


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


def refused(draft: Draft, report: StartAgainRefused) -> None:
    """Note why the start never begins. The job may go on: it has its new specification when it is
    tried again."""
    attempt = draft.attempt(report.attempt_id)
    if attempt is None or attempt.starts is None or report.number != attempt.starts.asked:
        return
    if attempt.starts.is_owed:
        draft.change_attempt(attempt, starts=replace(attempt.starts, refused=report.message))
