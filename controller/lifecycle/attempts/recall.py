"""A recall ends the jobs on a node that its provider takes back (docs/rules.md 12.18)."""

from __future__ import annotations

from controller.lifecycle.attempts import termination
from controller.lifecycle.draft import Draft
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AttemptStatus

_LAST_SECONDS = 10.0
"""For the end of containers, and for logs and outputs to get off the node."""


def enforce(draft: Draft) -> None:
    """End the attempts on recalled nodes. Each gets its grace, as far as there is time for it."""
    recalled = draft.context.recalled
    if not recalled:
        return
    for attempt in draft.live():
        at = recalled.get(attempt.node_id or "")
        if at is None or attempt.reason is not None:
            continue
        reason = Reason.INTERRUPTED_BY_NO_CAPACITY
        was_running = attempt.status is AttemptStatus.RUNNING
        grace = termination.grace(draft.run.policy, reason, was_running=was_running)
        termination.end(
            draft,
            attempt,
            reason,
            "recall",
            "its provider takes the node back",
            within=min(grace, usable(at - draft.now)),
        )


def usable(left: float) -> float:
    """Return how much of the seconds that are left a job may still run."""
    return max(0.0, left - min(_LAST_SECONDS, left / 2))
