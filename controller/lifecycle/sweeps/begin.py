"""Waiting sets begin: their jobs and attempts are made as late as possible (docs/rules.md 11.3)."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from msgspec.structs import replace

from controller.lifecycle.draft import Draft
from controller.lifecycle.events import EventKind
from controller.lifecycle.model import Attempt, Job, Run, Sweep, SweepContent
from controller.lifecycle.sweeps.sets import by_set, has_life, is_active, unbegun
from fairlead.model.statuses import AttemptStatus

MAX_QUEUED = 100
"""The number of sets of a run that wait for an allocation at once: the scheduler looks at each of
them, and 10,000 would cost each of its passes 60 ms."""
CAUSE = "sweep"
GROUP = "main"


def first_jobs(
    run: Run, content: SweepContent, now: float, new_id: Callable[[], str]
) -> tuple[Run, tuple[Job, ...]]:
    """Return a new sweep's run and the jobs of the sets that begin with it."""
    sweep = run.sweep
    assert sweep is not None, "only a sweep has sets"
    first = min(sweep.total, MAX_QUEUED, sweep.max_parallel or sweep.total)
    jobs = tuple(
        _job(content, sweep, number, rank, now, new_id)
        for number in range(first)
        for rank in range(sweep.nodes)
    )
    return replace(run, sweep=replace(sweep, begun=first)), jobs


def _job(
    content: SweepContent,
    sweep: Sweep,
    number: int,
    rank: int,
    now: float,
    new_id: Callable[[], str],
) -> Job:
    job_id, cookie = new_id(), number * sweep.nodes + rank
    own_rank = rank if sweep.nodes > 1 else None
    first = Attempt(
        id=new_id(),
        job_id=job_id,
        number=0,
        status=AttemptStatus.SUBMITTED,
        rank=own_rank,
        submitted_at=now,
    )
    return Job(
        id=job_id,
        group=GROUP,
        replica=number,
        cookie=cookie,
        index=cookie,
        rank=own_rank,
        spec=content.spec,
        attempts=(first,),
    )


def begin(draft: Draft) -> None:
    """Begin as many waiting sets as may be active, those first that begin again."""
    sweep, content = draft.run.sweep, draft.sweep
    if sweep is None or content is None or draft.run.suspended:
        return
    room = _room(draft, sweep)
    if room <= 0:
        return
    live = {number for number, jobs in by_set(draft.jobs).items() if has_life(jobs)}
    again = [number for number in sweep.again if number not in live][:room]
    fresh = list(itertools.islice(unbegun(sweep), room - len(again)))
    if not again and not fresh:
        return
    never = _begin_again(draft, again)
    for number in (*never, *fresh):
        for rank in range(sweep.nodes):
            job = draft.add_job(_job(content, sweep, number, rank, draft.now, draft.new_id))
            first = job.attempts[-1]
            draft.record(EventKind.ATTEMPT, CAUSE, attempt=first, to_status=first.status)
    begins = frozenset(again)
    draft.change_run(
        sweep=replace(
            sweep,
            again=tuple(number for number in sweep.again if number not in begins),
            begun=fresh[-1] + 1 if fresh else sweep.begun,
        )
    )


def _begin_again(draft: Draft, numbers: list[int]) -> list[int]:
    """Give the jobs of these sets their next attempts; return the sets that have no job yet."""
    if not numbers:
        return []
    wanted = frozenset(numbers)
    back = [job for job in draft.ended.jobs if job.replica in wanted]
    if back:
        left = tuple(job for job in draft.ended.jobs if job.replica not in wanted)
        draft.ended = replace(draft.ended, jobs=left)
    for job in back:
        draft.add_job(job)
    known = set()
    for job in [job for job in draft.jobs if job.replica in wanted]:
        known.add(job.replica)
        fresh = draft.change_job(
            job, abandoned=False, retry_at=None, counts_from=job.attempts[-1].number + 1
        )
        draft.fresh_attempt(fresh, CAUSE)
    return [number for number in numbers if number not in known]


def _room(draft: Draft, sweep: Sweep) -> int:
    """Return how many sets may begin now."""
    active = queued = 0
    for jobs in by_set(draft.jobs).values():
        lasts = [job.attempts[-1].status for job in jobs]
        queued += AttemptStatus.SUBMITTED in lasts
        active += is_active(draft.run, jobs)
    most = sweep.max_parallel
    free = sweep.total if most is None else most - active
    return min(free, MAX_QUEUED - queued)
