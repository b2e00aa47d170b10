"""Waiting sets begin: their jobs and attempts are made as late as possible (docs/rules.md 11.3)."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from controller.lifecycle.attempts import termination
from controller.lifecycle.draft import Draft
from controller.lifecycle.events import EventKind
from controller.lifecycle.model import Attempt, Job, Run, Sweep, SweepContent
from controller.lifecycle.ranges import Ranges, common, in_ranges, numbers_in, union, without
from controller.lifecycle.sweeps import carrying
from controller.lifecycle.sweeps.sets import by_set, has_life, is_active, unbegun
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AttemptStatus

MAX_QUEUED = 100
"""The number of sets of a run that wait for an allocation at once: the scheduler looks at each of
them, and 10,000 would cost each of its passes 60 ms."""
CAUSE = "sweep"
AFTER = "after"
GROUP = "main"


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of sets that each wait for a set of another sweep (docs/rules.md 4.17)."""

    met: Ranges
    """Those that may begin."""
    never: tuple[tuple[str, Ranges], ...] = ()
    """For each predecessor: the sets that no longer can begin because of it, and its sentence."""

    @property
    def lost(self) -> Ranges:
        return union(*(numbers for _, numbers in self.never))

    def why(self, number: int) -> str:
        """Return why this set cannot begin, as a sentence."""
        return next(why for why, lost in self.never if common(lost, ((number, number),)))


def first_jobs(
    run: Run, content: SweepContent, now: float, new_id: Callable[[], str]
) -> tuple[Run, tuple[Job, ...]]:
    """Return a new sweep's run and the jobs of the sets that begin with it: none if it waits for
    other runs or for a time."""
    sweep = run.sweep
    assert sweep is not None, "only a sweep has sets"
    first = 0 if run.policy.is_held_back else min(MAX_QUEUED, sweep.max_parallel or sweep.total)
    first = min(sweep.total, first)
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


def begin(draft: Draft, held: Held | None = None) -> None:
    """Begin as many waiting sets as may be active, those first that begin again. A set that no
    longer can, because its predecessor cannot come so far, ends at once. `held` None: no set has
    a predecessor."""
    sweep, content = draft.run.sweep, draft.sweep
    if sweep is None or content is None or draft.run.suspended:
        return
    lost = lost_sets(draft, held)[:MAX_QUEUED]
    free = _carry_waiting(draft, sweep)
    again, fresh = _chosen(draft, sweep, held, sum(free.values()))
    numbers = [*lost, *again, *fresh]
    if not numbers:
        return
    waits_again = frozenset(sweep.again)
    known = _begin_again(draft, waits_again.intersection(numbers))
    for number in numbers:
        for rank in range(sweep.nodes if number not in known else 0):
            job = draft.add_job(_job(content, sweep, number, rank, draft.now, draft.new_id))
            first = job.attempts[-1]
            draft.record(EventKind.ATTEMPT, CAUSE, attempt=first, to_status=first.status)
    begun = in_ranges(number for number in numbers if number not in waits_again)
    draft.change_run(sweep=_begun(sweep, frozenset(numbers), begun))
    if held is not None and lost:
        _end_lost(draft, held, frozenset(lost))
    for attempt in _queued(draft, None) if free else ():
        if not carrying.take(draft, attempt, free):
            break


def _carry_waiting(draft: Draft, sweep: Sweep) -> dict[str, int]:
    """Give jobs that wait to the carriers that have room for them, and others back to the queue as
    far as `max_parallel` allows. Return the room that is left in each carrier."""
    if not sweep.reuse_container:
        return {}
    free = carrying.room(draft)
    for attempt in (*_queued(draft, carrying.HELD), *_queued(draft, None)):
        if not carrying.take(draft, attempt, free):
            break
    room = _room(draft, sweep)
    for attempt in _queued(draft, carrying.HELD)[: max(0, room)]:
        draft.change_attempt(attempt, carrier=None)
    return free


def _queued(draft: Draft, carrier: str | None) -> list[Attempt]:
    """Return the attempts that wait, in the queue (None) or outside of it, and hold nothing."""
    return [
        attempt
        for attempt in draft.live()
        if attempt.status is AttemptStatus.SUBMITTED
        and attempt.carrier == carrier
        and attempt.allocation_id is None
    ]


def _chosen(
    draft: Draft, sweep: Sweep, held: Held | None, carried: int
) -> tuple[list[int], list[int]]:
    """Return the sets that begin again, and those that begin for the first time. `carried`: how
    many more may run in containers that are there."""
    room = max(0, _room(draft, sweep)) + carried
    if room <= 0:
        return [], []
    ready = _ready(draft, sweep, held)
    live = {number for number, jobs in by_set(draft.jobs).items() if has_life(jobs)}
    again = [one for one in sweep.again if one not in live and (ready is None or one in ready)]
    first = unbegun(sweep) if held is None else common(unbegun(sweep), held.met)
    fresh = list(itertools.islice(numbers_in(first), room - len(again[:room])))
    return again[:room], fresh


def _ready(draft: Draft, sweep: Sweep, held: Held | None) -> frozenset[int] | None:
    """Return which of the sets that wait to begin again may; None: all of them. One that has begun
    before needs no predecessor any more."""
    if held is None or not sweep.again:
        return None
    new = _never_begun(draft, sweep)
    met = frozenset(numbers_in(common(in_ranges(new), held.met)))
    return (frozenset(sweep.again) - new) | met


def _never_begun(draft: Draft, sweep: Sweep) -> frozenset[int]:
    """Return the sets that wait to begin again and never got as far as their first begin."""
    again = frozenset(sweep.again)
    begun = {
        job.replica
        for job in draft.all_jobs
        if job.replica in again
        and any(one.reason is not Reason.DEPENDENCY_FAILED for one in job.attempts)
    }
    return again - begun


def lost_sets(draft: Draft, held: Held | None) -> list[int]:
    """Return the waiting sets that can no longer begin, because of what they wait for."""
    sweep = draft.run.sweep
    if held is None or sweep is None or not held.lost:
        return []
    again = in_ranges(_never_begun(draft, sweep)) if sweep.again else ()
    return list(numbers_in(common(union(unbegun(sweep), again), held.lost)))


def _begun(sweep: Sweep, numbers: frozenset[int], fresh: Ranges) -> Sweep:
    """Return the sweep in which these have begun, of them `fresh` for the first time."""
    ahead = union(sweep.ahead, fresh)
    left = unbegun(replace(sweep, ahead=ahead))
    begun = left[0][0] if left else sweep.total
    return replace(
        sweep,
        again=tuple(number for number in sweep.again if number not in numbers),
        begun=begun,
        ahead=without(ahead, ((0, begun),)),
    )


def _end_lost(draft: Draft, held: Held, numbers: frozenset[int]) -> None:
    for job in [job for job in draft.jobs if job.replica in numbers]:
        termination.end(
            draft, job.attempts[-1], Reason.DEPENDENCY_FAILED, AFTER, held.why(job.replica)
        )
    termination.settle(draft)


def _begin_again(draft: Draft, wanted: frozenset[int]) -> frozenset[int]:
    """Give the jobs of these sets their next attempts; return the sets that have jobs."""
    if not wanted:
        return frozenset()
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
    return frozenset(known)


def _room(draft: Draft, sweep: Sweep) -> int:
    """Return how many sets may begin now."""
    active = queued = 0
    for jobs in by_set(draft.jobs).values():
        if any(job.attempts[-1].carrier is not None for job in jobs):
            continue  # it counts with its carrier, or begins when there is room
        lasts = [job.attempts[-1].status for job in jobs]
        queued += AttemptStatus.SUBMITTED in lasts
        active += is_active(draft.run, jobs)
    most = sweep.max_parallel
    free = sweep.total if most is None else most - active
    return min(free, MAX_QUEUED - queued)
