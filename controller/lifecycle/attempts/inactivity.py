"""Inactivity decides when a dev environment has not been used for its `inactivity_duration`.

A look at its node and at the proxy tells whether it is in use. `idle_since` turns looks into the
time since which it is not; `note` records that time, and `enforce` ends the attempt. Only a look
that finds it unused ends it, never a timer: a user that came a moment ago is always seen first.
Time in which nothing could look does not count. The last look is committed now and then, so that
the count goes on after a short restart of the controller.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from controller.lifecycle.attempts import termination
from controller.lifecycle.draft import Draft
from controller.lifecycle.model import Attempt, Inactivity, Run
from controller.lifecycle.reports import InactivitySeen, Report
from fairlead.model.dev_environment import BROWSER_PORTS
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AttemptStatus

MAX_GAP = 60.0
"""Seconds between two looks; after a longer gap the count begins again."""
COMMITTED_EVERY = 20.0
"""Seconds after which a look that tells nothing else is committed: well below MAX_GAP."""
_EVERY = 5.0
_LOOKS = 4
_MAX_WARNING = 300.0


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a dev environment. `in_use`: there is an SSH session or another connection, or a
    request is in flight. `requested_at`: when the last request of a browser was under way."""

    at: float
    in_use: bool
    requested_at: float | None = None


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the looks so far. `idle_since` None: it is in use."""

    looked_at: float
    idle_since: float | None


def limit_of(run: Run) -> float | None:
    wanted = run.policy.dev_environment
    return None if wanted is None else wanted.inactivity_duration


def pause(limit: float) -> float:
    """Return the seconds between two looks."""
    return min(_EVERY, limit / _LOOKS)


def after(before: Watched | None, look: Look) -> Watched:
    """Return what is known after this look."""
    if look.in_use:
        return Watched(looked_at=look.at, idle_since=None)
    since = look.at
    # Nobody looked in a longer gap, and somebody may have used it.
    if before is not None and look.at - before.looked_at <= MAX_GAP:
        since = look.at if before.idle_since is None else before.idle_since
    if look.requested_at is not None:
        since = max(since, look.requested_at)
    return Watched(looked_at=look.at, idle_since=since)


def ends_at(limit: float, idle_since: float | None) -> float | None:
    return None if idle_since is None else idle_since + limit


def warning(limit: float, watched: Watched) -> str | None:
    """Return the line for the log when the end is near; None: it is not."""
    at = ends_at(limit, watched.idle_since)
    if at is None:
        return None
    ahead = min(_MAX_WARNING, limit / 2)
    left = at - watched.looked_at
    if not 0 < left <= ahead:
        return None
    return (
        f"not in use: without an SSH session or a request this dev environment is stopped in "
        f"{left:.0f} s (inactivity_duration)"
    )


def committed(attempt: Attempt) -> Watched | None:
    """Return what the last committed look told; None: it was in use, or never looked at."""
    known = attempt.inactivity
    if known is None or known.seen_at is None:
        return None
    return Watched(looked_at=known.seen_at, idle_since=known.since)


def resumed(run: Run, attempt: Attempt) -> Watched | None:
    """Return what a controller that has just started knows; None: the count begins again.

    The proxy's last requests are lost with the controller, so an IDE in the browser begins again.
    """
    wanted = run.policy.dev_environment
    in_browser = wanted is not None and wanted.ide in BROWSER_PORTS
    return None if in_browser else committed(attempt)


def needs_commit(attempt: Attempt, limit: float, watched: Watched) -> bool:
    """Return whether a look is worth a commit: most tell nothing new."""
    at, before = ends_at(limit, watched.idle_since), committed(attempt)
    idle_since = None if attempt.inactivity is None else attempt.inactivity.since
    if idle_since != watched.idle_since:
        return True
    if at is None:
        return False
    stale = before is None or watched.looked_at - before.looked_at >= COMMITTED_EVERY
    return stale or watched.looked_at >= at


def note(draft: Draft, report: InactivitySeen) -> None:
    """Record since when the dev environment is not in use."""
    attempt = draft.attempt(report.attempt_id)
    if attempt is not None and attempt.status is AttemptStatus.RUNNING:
        unused = None
        if report.idle_since is not None:
            unused = Inactivity(since=report.idle_since, seen_at=report.at)
        draft.change_attempt(attempt, inactivity=unused)


def enforce(draft: Draft, reports: Sequence[Report]) -> None:
    """End each attempt that a report of this turn found unused for the whole duration."""
    limit = limit_of(draft.run)
    if limit is None or draft.run.suspended:
        return
    for report in reports:
        if not isinstance(report, InactivitySeen):
            continue
        attempt, at = draft.attempt(report.attempt_id), ends_at(limit, report.idle_since)
        if attempt is None or attempt.status is not AttemptStatus.RUNNING or at is None:
            continue
        # While its node is silent nobody can look, and a user may have come since.
        if report.at >= at and not attempt.disconnected:
            termination.end(
                draft,
                attempt,
                Reason.INACTIVITY_DURATION_EXCEEDED,
                "limit inactivity_duration",
                f"it was not used for its inactivity_duration of {limit:g} s",
            )
