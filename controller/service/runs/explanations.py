"""Explanations: why a run waits, job by job."""

from __future__ import annotations

from collections.abc import Container

import msgspec

from controller.clock import Clock
from controller.lifecycle.attempts import limits
from controller.lifecycle.attempts.awaited import Awaited, awaited
from controller.lifecycle.gangs import incarnation
from controller.lifecycle.model import Attempt, RunState
from controller.lifecycle.runs import beginning
from controller.lifecycle.runs.schedules import waits_for_trigger
from controller.lifecycle.services.replicas import SLEEPS, sleeps
from controller.pipelines.run_pipeline import RunPipeline
from controller.service.accounts.rights import names_for
from controller.service.runs.lookup import RunService
from controller.store.accounts import User
from fairlead.model.answers import Waiting
from fairlead.model.reasons import Reason
from fairlead.model.statuses import FINAL_RUN_STATUSES, AttemptStatus


class ExplainService:
    def __init__(self, pipeline: RunPipeline, runs: RunService, clock: Clock) -> None:
        self._pipeline = pipeline
        self._runs = runs
        self._clock = clock

    async def explain(self, key: str, user: User) -> Explanation:
        """Explain the run. Raises NotFound, Forbidden, StoreUnavailable."""
        state = await self._runs.seen(key, user)
        now = self._clock.now()
        found = self._pipeline.scheduler.explain(state.run.id, now, names_for(user))
        about = why_not_whole(state, now) or (None if found else why_nothing_waits(state))
        queued = {label for waiting in found for label in waiting.jobs}
        return Explanation(
            state=state,
            about=about,
            waiting=tuple(self._with_machines(state, one) for one in found),
            under_way=under_way(state, queued),
        )

    def _with_machines(self, state: RunState, waiting: Waiting) -> Waiting:
        """Return the answer with what is rented for these jobs, or why nothing is."""
        rentals = self._pipeline.rentals
        if rentals is None:
            return waiting
        labels = set(waiting.jobs)
        attempts = (
            job.attempts[-1]
            for job in state.jobs
            if job.attempts and f"{job.group}/{job.cookie}" in labels
        )
        sentences = (
            rentals.reasons[one.id].sentence() + self._how_it_ends(state, one)
            for one in attempts
            if one.id in rentals.reasons
        )
        return msgspec.structs.replace(waiting, machines=next(sentences, None))

    def _how_it_ends(self, state: RunState, attempt: Attempt) -> str:
        """Return when the attempt ends for want of a machine, as the end of a sentence."""
        limit = limits.deadline(state.run, attempt)
        if limit is None or limit.reason is not Reason.FAILED_TO_START_DUE_TO_NO_CAPACITY:
            return ""
        return f"; it ends as {limit.reason} in {max(0.0, limit.at - self._clock.now()):.0f} s"


class UnderWay(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that wait for the same thing, after the queue or before it.

    `until` and `ends_as` are those of the job whose wait ends first.
    """

    jobs: tuple[str, ...]
    status: AttemptStatus
    what: str
    until: float | None
    ends_as: Reason | None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run waits. `about`: what it waits for besides allocations; always set when `waiting` is
    empty."""

    state: RunState
    about: str | None
    waiting: tuple[Waiting, ...]
    under_way: tuple[UnderWay, ...]


def under_way(state: RunState, queued: Container[str] = ()) -> tuple[UnderWay, ...]:
    """Return what every job with a live attempt waits for, without the `queued` ones."""
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
    """Return why a gang that holds allocations is not whole; None: it is whole, or waits for all of
    them."""
    gathers = incarnation.gathering(state.run, state.jobs)
    if gathers is None:
        return None
    left = max(0.0, gathers.gives_up_at - now)
    unless = "unless a pull or a placement makes progress"
    return f"{gathers}; it releases its allocations in {left:.0f} s {unless}"


def why_nothing_waits(state: RunState) -> str:
    """Return, for a run without jobs in the queue, one sentence that says why."""
    run = state.run
    if run.status in FINAL_RUN_STATUSES:
        return f"it has ended: {run.status}"
    if run.suspended:
        return f"it is suspended; `fairlead resume {run.name}` continues it"
    if waits_for_trigger(run):
        return "it waits for its next trigger"
    if held := beginning.why_waits(run):
        return held
    if sleeps(run):
        return SLEEPS
    if any(job.retry_at is not None for job in state.jobs):
        return "it waits before a job is tried again"
    return _why_jobs_wait(state) or "none of its jobs waits for an allocation"


def _why_jobs_wait(state: RunState) -> str | None:
    """Return what the first job without an allocation waits for, if that is not an allocation."""
    waiting = [
        (f"{job.group}/{job.cookie}", job.attempts[-1].waits_for)
        for job in state.jobs
        if job.attempts and job.attempts[-1].status is AttemptStatus.SUBMITTED
    ]
    known = [(label, reason) for label, reason in waiting if reason is not None]
    if not known:
        return None
    first, why = known[0]
    alike = sum(reason == why for _, reason in known) - 1
    label = f"{first} and {alike} more" if alike else first
    return f"{label}: {why}"
