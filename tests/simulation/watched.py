"""What each commit of a run that starts again in its container must keep to (docs/rules.md 2.15):
a result is not lost while the container waits, no container is given back before its leases end,
and each start counts once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from controller.lifecycle.events import Event
from controller.lifecycle.model import (
    Attempt,
    RunState,
)
from fairlead.model.reasons import Reason
from fairlead.model.starts import Starts
from fairlead.model.statuses import AttemptStatus

NEARLY = 1.0
_ASKED_FOR = frozenset(
    {
        Reason.TERMINATED_BY_USER,
        Reason.ABORTED_BY_USER,
        Reason.JOB_ABORTED_BY_USER,
        Reason.ABANDONED,
        Reason.TERMINATED_BY_SERVER,
    }
)
"""Ends that a user, or its parent's end, wants of the attempt itself."""


def breaches(before: RunState | None, after: RunState, events: Iterable[Event]) -> Iterator[str]:
    """Yield what a commit may not do to a run that starts again."""
    if after.run.policy.keeps_for is None:
        return
    known = {a.id: a for job in before.all_jobs for a in job.attempts} if before else {}
    requests = Counter(event.attempt_id for event in events if event.cause == "StartAgainRequested")
    for attempt in (a for job in after.all_jobs for a in job.attempts):
        old = known.get(attempt.id)
        yield from _miscounted(old, attempt, requests[attempt.id])
        if old is not None and old.status is AttemptStatus.RUNNING and attempt.reason is not None:
            yield from _lost_result(attempt)


def _miscounted(old: Attempt | None, new: Attempt, requests: int) -> Iterator[str]:
    was, now = (old and old.starts) or Starts(), new.starts or Starts()
    if now.asked != was.asked + requests or requests > 1:
        yield f"{new.id}: {requests} requests led from start {was.asked} to {now.asked}"
    if not was.begun <= now.begun <= now.asked:
        yield f"{new.id}: start {now.begun} of {now.asked} has begun, after {was.begun}"


def _lost_result(attempt: Attempt) -> Iterator[str]:
    result = None if attempt.starts is None else attempt.starts.result
    if result is None or attempt.reason in _ASKED_FOR:
        return
    if (attempt.reason, attempt.exit_code) != (result.reason, result.exit_code):
        yield (
            f"{attempt.id} waited after {result.reason} ({result.exit_code}) and ended as"
            f" {attempt.reason} ({attempt.exit_code})"
        )


def given_up_early(
    events: Iterable[Event], leases: Mapping[str, Mapping[str, float]], now: float
) -> Iterator[str]:
    """Yield the containers that a commit gave back while a watcher was there."""
    for event in events:
        if event.cause == "limit watcher" and event.reason is not None:
            until = max(leases.get(event.run_id or "", {}).values(), default=0.0)
            if until > now + NEARLY:
                left = until - now
                yield f"{event.attempt_id} was given back {left:.0f} s before its lease ended"
