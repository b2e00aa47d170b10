"""`reincarnation_timeout`: how long a gang may take until it is whole.

It counts from the last progress: a rank got its place, or the pull of a rank's image came further.
So a large image on a slow network is waited for, and one that stands still is not. It begins when
an incarnation holds its first place: at its start where places survived, with the first placement
where the gang queued whole; anew when a suspension is over.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from controller.lifecycle.gangs.incarnations import Phase, phase
from controller.lifecycle.gangs.reading import ranked_attempts, was_there
from controller.lifecycle.model import Attempt, Job, Run
from controller.lifecycle.statuses import AttemptStatus


class Gathering(msgspec.Struct, frozen=True, kw_only=True):
    """A gang that holds places and is not whole. `waits_for`: the ranks that are not there, each
    with what it does; `gives_up_at`: when it gives its places up, if nothing comes further."""

    ranks: int
    waits_for: tuple[str, ...]
    gives_up_at: float

    def __str__(self) -> str:
        there = self.ranks - len(self.waits_for)
        some = "; ".join(self.waits_for[:3])
        more = f"; and {len(self.waits_for) - 3} more" if len(self.waits_for) > 3 else ""
        return f"{there} of {self.ranks} ranks are there: {some}{more}"


def since(run: Run, jobs: Sequence[Job]) -> float | None:
    """Since when the present incarnation has been holding a place for a rank."""
    held = [a.provisioned_at for a in ranked_attempts(run, jobs) if a.provisioned_at is not None]
    return min(held, default=None)


def deadline(run: Run, jobs: Sequence[Job]) -> float | None:
    """When it must be whole, or have come further; None when it is, or while nothing counts."""
    if run.suspended or phase(run, jobs) is not Phase.GATHERING or since(run, jobs) is None:
        return None
    times = [
        at
        for attempt in ranked_attempts(run, jobs)
        for at in (attempt.provisioned_at, attempt.progressed_at)
        if at is not None
    ]
    return max(*times, run.resumed_at or 0.0) + run.policy.limits.reincarnation_timeout


def gathering(run: Run, jobs: Sequence[Job]) -> Gathering | None:
    """None unless a deadline counts."""
    gives_up_at = deadline(run, jobs)
    if gives_up_at is None:
        return None
    ranked = {attempt.job_id: attempt for attempt in ranked_attempts(run, jobs)}
    wanted = [(job, ranked[job.id]) for job in jobs if job.id in ranked and not job.abandoned]
    return Gathering(
        ranks=len(wanted),
        waits_for=tuple(
            f"{job.group}/{job.cookie} {_doing(attempt)}"
            for job, attempt in wanted
            if not was_there(run, job)
        ),
        gives_up_at=gives_up_at,
    )


def _doing(attempt: Attempt) -> str:
    match attempt.status:
        case AttemptStatus.SUBMITTED:
            return "has no place"
        case AttemptStatus.PULLING:
            return "pulls its image"
        case AttemptStatus.PROVISIONING:
            return "has a place, whose node is being asked"
        case _:
            return "is tried again"
