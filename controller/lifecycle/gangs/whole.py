"""`reincarnation_timeout`: how long a gang may take until it is whole.

It counts from the moment at which an incarnation holds its first place: from its start where places
survived, from the first placement where the gang queued whole; anew when a suspension is over.
"""

from __future__ import annotations

from collections.abc import Sequence

from controller.lifecycle.gangs.incarnations import Phase, phase
from controller.lifecycle.gangs.reading import ranked_attempts
from controller.lifecycle.model import Job, Run


def since(run: Run, jobs: Sequence[Job]) -> float | None:
    """Since when the present incarnation has been holding a place for a rank."""
    held = [a.provisioned_at for a in ranked_attempts(run, jobs) if a.provisioned_at is not None]
    return min(held, default=None)


def deadline(run: Run, jobs: Sequence[Job]) -> float | None:
    """When it must be whole; None when it is, or while nothing counts."""
    if run.suspended or phase(run, jobs) is not Phase.GATHERING:
        return None
    began = since(run, jobs)
    if began is None:
        return None
    return max(began, run.resumed_at or began) + run.policy.limits.reincarnation_timeout
