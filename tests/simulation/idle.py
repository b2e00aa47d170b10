"""What must hold of the inactivity of dev environments: one is stopped for it only when it was left
alone for the whole duration, and soon after it was.

The controller looks again and again. So a session between two looks may stay unseen, and one that
begins while the end is committed comes too late. Both may take longer while something is in the
way.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import msgspec

from controller.lifecycle.attempts.inactivity import MAX_GAP, limit_of
from controller.lifecycle.model import Attempt, Run
from fairlead.model.statuses import AttemptStatus, RunStatus

LATE_SECONDS = 120.0
"""By so much a controller may be late while something is in the way: its database may be busy."""
_SOON_SECONDS = 10.0
"""By so much when nothing is."""
_EPSILON = 1.0


class Use(msgspec.Struct):
    """A session or a request, in virtual seconds."""

    began: float
    ended: float = inf
    is_request: bool = False
    """The controller sees even a short one."""


def stopped_in_use(
    run: Run, uses: Sequence[Use], now: float, running_since: float, calm_since: float
) -> str | None:
    """Return what is wrong with an end for inactivity that is committed now; None: nothing is."""
    limit = limit_of(run)
    if limit is None:
        return "it has no inactivity_duration"
    if now - running_since < limit - _EPSILON:
        return f"it was running for {now - running_since:.0f} s of {limit:g} s"
    calm = calm_since + MAX_GAP < now - limit
    late = _SOON_SECONDS if calm else LATE_SECONDS
    shortest = _SOON_SECONDS if calm else MAX_GAP + _SOON_SECONDS
    for use in uses:
        is_seen = use.is_request or min(use.ended, now) - use.began > shortest
        if is_seen and use.began < now - late and use.ended > now - limit + _EPSILON:
            ago = "still is" if use.ended > now else f"was {now - use.ended:.0f} s ago"
            return f"it was to be alone for {limit:g} s and {ago} in use"
    return None


def left_alone_too_long(
    run: Run, attempt: Attempt, uses: Sequence[Use], now: float, since: float
) -> str | None:
    """Return a sentence about one that should have been stopped by now; None: it goes on rightly.

    `since`: when it could be looked at without a disturbance.
    """
    limit = limit_of(run)
    if limit is None or run.suspended or run.status is RunStatus.TERMINATING:
        return None
    over = attempt.seen.runner_exited or attempt.seen.container_gone or attempt.disconnected
    if attempt.status is not AttemptStatus.RUNNING or over:
        return None
    alone_since = max([since, *(use.ended for use in uses)])
    if now <= alone_since + limit + LATE_SECONDS:
        return None
    return f"is left alone since {alone_since:.0f} s and is not stopped after {limit:g} s"
