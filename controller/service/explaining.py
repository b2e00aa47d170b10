"""Why a run waits, as the scheduler sees it now."""

from __future__ import annotations

from collections.abc import Container

import msgspec

from controller.clock import Clock
from controller.lifecycle.awaited import Awaited, awaited
from controller.lifecycle.gangs import whole
from controller.lifecycle.model import RunState
from controller.lifecycle.occurrences import waits_for_trigger
from controller.lifecycle.reasons import Reason
from controller.lifecycle.statuses import FINAL_RUN_STATUSES, AttemptStatus
from controller.pipelines.turns import Turns
from controller.scheduling.explain import Waiting
from controller.service.access import names_for
from controller.service.runs import RunService
from controller.store.users import User


class UnderWay(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that are past the queue, or not in it yet, and wait for the same thing: `until` and
    `ends_as` are those of the one that waits no longer than any other."""

    jobs: tuple[str, ...]
    status: AttemptStatus
    what: str
    until: float | None
    ends_as: Reason | None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """`about`: what it waits for beside places; always there when `waiting` is empty."""

    state: RunState
    about: str | None
    waiting: tuple[Waiting, ...]
    under_way: tuple[UnderWay, ...]


class ExplainService:
    def __init__(self, turns: Turns, runs: RunService, clock: Clock) -> None:
        self._turns = turns
        self._runs = runs
        self._clock = clock

    async def explain(self, key: str, user: User) -> Explanation:
        """Raises NotFound, Forbidden, StoreUnavailable."""
        state = await self._runs.seen(key, user)
        now = self._clock.now()
        found = self._turns.scheduler.explain(state.run.id, now, names_for(user))
        about = why_not_whole(state, now) or (None if found else why_nothing_waits(state))
        queued = {label for waiting in found for label in waiting.jobs}
        return Explanation(
            state=state, about=about, waiting=tuple(found), under_way=under_way(state, queued)
        )


def under_way(state: RunState, queued: Container[str] = ()) -> tuple[UnderWay, ...]:
    """What every job with an attempt that is not final waits for, but for the `queued` ones."""
    alike: dict[tuple[object, ...], list[tuple[str, AttemptStatus, Awaited]]] = {}
    for job in state.jobs:
        label = f"{job.group}/{job.cookie}"
        found = awaited(state, job.attempts[-1]) if job.attempts else None
        if found is not None and label not in queued:
            status = job.attempts[-1].status
            alike.setdefault((status, found.what, found.ends_as), []).append((label, status, found))
    return tuple(_as_one(same) for same in alike.values())


def _as_one(same: list[tuple[str, AttemptStatus, Awaited]]) -> UnderWay:
    _, status, first = same[0]
    untils = [found.until for _, _, found in same if found.until is not None]
    return UnderWay(
        jobs=tuple(label for label, _, _ in same),
        status=status,
        what=first.what,
        until=min(untils, default=None),
        ends_as=first.ends_as,
    )


def why_not_whole(state: RunState, now: float) -> str | None:
    """Of a gang that holds places; None: it is whole, or waits for all of them."""
    gathers = whole.gathering(state.run, state.jobs)
    if gathers is None:
        return None
    left = max(0.0, gathers.gives_up_at - now)
    return f"{gathers}; it gives its places up in {left:.0f} s unless a pull or a placement goes on"


def why_nothing_waits(state: RunState) -> str:
    """In one sentence, for a run of which no job waits for a place."""
    run = state.run
    if run.status in FINAL_RUN_STATUSES:
        return f"it has ended: {run.status}"
    if run.suspended:
        return f"it is suspended: `fairlead resume {run.name}` lets it go on"
    if waits_for_trigger(run):
        return "it waits for its next trigger"
    if any(job.retry_at is not None for job in state.jobs):
        return "it waits before a job is tried again"
    return _why_jobs_wait(state) or "none of its jobs waits for a place"


def _why_jobs_wait(state: RunState) -> str | None:
    """What the first that has no place waits for, where that is no place."""
    waiting = [
        (f"{job.group}/{job.cookie}", job.attempts[-1].pending_reason)
        for job in state.jobs
        if job.attempts and job.attempts[-1].status is AttemptStatus.SUBMITTED
    ]
    told = [(label, reason) for label, reason in waiting if reason is not None]
    if not told:
        return None
    first, why = told[0]
    alike = sum(reason == why for _, reason in told) - 1
    return f"{first} and {alike} more: {why}" if alike else f"{first}: {why}"
