"""The start of a new incarnation: once all attempts of the old one are final and the wait is over,
all jobs start again, finished ones included, in the places that survived."""

from __future__ import annotations

from collections.abc import Sequence

from controller.lifecycle import waits
from controller.lifecycle.draft import Draft
from controller.lifecycle.gangs import incarnations, ranks
from controller.lifecycle.gangs.incarnations import Phase
from controller.lifecycle.gangs.monitoring import with_descriptor
from controller.lifecycle.gangs.survivors import are_undecided, survivors
from controller.lifecycle.history import EventKind
from controller.lifecycle.limits import covered_seconds
from controller.lifecycle.model import Allocation, Attempt, Job, Run
from controller.lifecycle.reasons import RetryEvent, SwitchReason

LOOK_AGAIN_SECONDS = 1.0


def restart_if_due(draft: Draft) -> None:
    if draft.run.suspended or incarnations.phase(draft.run, draft.jobs) is not Phase.WAITING:
        return
    waiting = [job for job in draft.jobs if not job.abandoned]
    if any(job.retry_at is None for job in waiting):
        waiting = _start_wait(draft, waiting)
    due = all(job.retry_at is not None and draft.now >= job.retry_at for job in waiting)
    if waiting and due and not are_undecided(draft):
        incarnations.check_move(Phase.WAITING, Phase.GATHERING)
        _restart(draft)


def look_again_at(draft: Draft) -> float | None:
    """When to ask again whether a link is up that a restart waits for."""
    if incarnations.phase(draft.run, draft.jobs) is Phase.WAITING and are_undecided(draft):
        return draft.now + LOOK_AGAIN_SECONDS
    return None


def short_incarnations(run: Run, jobs: Sequence[Job]) -> int:
    """How many incarnations of this occurrence in a row, the last one included, had their ranks
    running for less than `short_life`."""
    ranked: dict[int, list[Attempt]] = {}
    for job in jobs:
        for attempt in job.attempts:
            if attempt.incarnation is not None and attempt.occurrence == run.occurrence:
                of_this = ranked.setdefault(attempt.incarnation.number, [])
                of_this += [attempt] if attempt.rank is not None else []
    count = 0
    for number in sorted(ranked, reverse=True):
        if covered_seconds(ranked[number], 0.0) >= run.policy.limits.short_life:
            break
        count += 1
    return count


def _start_wait(draft: Draft, waiting: Sequence[Job]) -> list[Job]:
    last = draft.run.switches[-1] if draft.run.switches else None
    no_capacity = last is not None and last.reason == SwitchReason.NO_CAPACITY
    event = RetryEvent.NO_CAPACITY if no_capacity else None
    lives = short_incarnations(draft.run, draft.jobs)
    wait = waits.jittered(draft, waits.seconds(draft.run.policy.limits, lives, event))
    if wait and waiting:
        message = f"next incarnation in {wait:.0f} s"
        first = waiting[0].attempts[-1]
        draft.note(EventKind.WAIT, first, "switch", reason=first.reason, message=message)
    return [draft.set_retry_at(job, draft.now + wait) for job in waiting]


def _restart(draft: Draft) -> None:
    surviving = survivors(draft)
    new_ranks = ranks.assign(draft.run, draft.jobs, surviving)
    for job in list(draft.jobs):
        if not job.abandoned:
            job = draft.change_job(job, rank=new_ranks[job.id])
            _start_again(draft, job, surviving.get(job.id))


def _start_again(draft: Draft, job: Job, place: Allocation | None) -> None:
    attempt = draft.fresh_attempt(job, "new incarnation")
    if place is None:
        return
    named = with_descriptor(draft.run, job, attempt.rank, place, draft.new_id)
    place = draft.change_allocation(place, monitoring_descriptor=named.monitoring_descriptor)
    draft.take_over(attempt, place, "new incarnation")
