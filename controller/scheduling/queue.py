"""Who is placed first: LIFECYCLE.md section 6, without the users' past use, which comes later."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from controller.lifecycle.model import Attempt, Band, Job, Run, RunState
from controller.lifecycle.statuses import AttemptStatus, RunStatus

_BANDS = {Band.PRODUCTION: 0, Band.INTERACTIVE: 1, Band.BATCH: 2}


class Pending(msgspec.Struct, frozen=True):
    """A SUBMITTED attempt that waits for a place."""

    run: Run
    job: Job
    attempt: Attempt

    @property
    def order(self) -> tuple[int, int, float, float, str, int]:
        return (
            _BANDS[self.run.policy.band],
            -self.run.policy.priority,
            self.run.submitted_at,
            self.attempt.submitted_at,
            self.run.id,
            self.job.index,
        )


def pending(runs: Iterable[RunState]) -> list[Pending]:
    """All that waits, first come first in the order of the queue."""
    waiting = [
        Pending(state.run, job, job.attempts[-1])
        for state in runs
        if state.run.status is not RunStatus.TERMINATING and not state.run.suspended
        for job in state.jobs
        if job.attempts and job.attempts[-1].status is AttemptStatus.SUBMITTED
    ]
    return sorted(waiting, key=lambda one: one.order)
