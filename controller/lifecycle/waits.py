"""The waits before a successor of a job or an incarnation (LIFECYCLE.md section 3)."""

from __future__ import annotations

from controller.lifecycle.draft import Draft
from controller.lifecycle.model import Limits
from controller.lifecycle.reasons import RetryEvent


def seconds(limits: Limits, lives: int, event: object) -> float:
    """Without jitter. `lives`: how many in a row, the last included, were short ones; `event`: the
    retry event of the last end."""
    if lives <= 1 and event is RetryEvent.NO_CAPACITY:
        return limits.no_capacity_wait
    if not limits.waits:
        return 0.0
    return limits.waits[min(max(lives, 1), len(limits.waits)) - 1]


def jittered(draft: Draft, wait: float) -> float:
    """Draws from the draft's jitter only where there is something to wait for."""
    if not wait:
        return 0.0
    return max(0.0, wait * (1 + draft.run.policy.limits.jitter * draft.jitter()))
