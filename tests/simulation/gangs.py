"""Checks of a run with gangs, judged by its commits (docs/rules.md 5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from controller.lifecycle.model import Attempt, Job, RunState
from fairlead.model.reasons import ROWS, Budget
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES, AllocationState, AttemptStatus


def breaches(before: RunState | None, after: RunState) -> Iterator[str]:
    """A sentence for each promise that this commit broke; none for a run without gangs."""
    if after.run.incarnation is None:
        return
    name = after.run.name
    yield from _two_incarnations(name, after)
    yield from _wrong_ranks(name, after)
    yield from _changed_incarnations(name, before, after)
    yield from _half_placed(name, before, after)
    yield from _torn_apart(name, after)
    yield from _overdrawn(name, after)


def _two_incarnations(name: str, state: RunState) -> Iterator[str]:
    live = {a.incarnation.number for _, a in _attempts(state) if _is_live(a) and a.incarnation}
    if len(live) > 1:
        yield f"gang {name} has live attempts of the incarnations {sorted(live)}"


def _wrong_ranks(name: str, state: RunState) -> Iterator[str]:
    for group in state.run.groups:
        jobs = [job for job in state.jobs if job.group == group.name and job.attempts]
        current = [
            job.attempts[-1]
            for job in jobs
            if job.attempts[-1].incarnation == state.run.incarnation
            and job.attempts[-1].occurrence == state.run.occurrence
        ]
        ranks = [attempt.rank for attempt in current if attempt.rank is not None]
        size = group.nodes if group.gang_size is None else group.gang_size
        if len(ranks) != len(set(ranks)) or not set(ranks) <= set(range(size)):
            yield f"gang {name}: group {group.name} of size {size} has the ranks {ranks}"
        elif len(current) == group.nodes and len(ranks) != size:
            yield f"gang {name}: {len(ranks)} of {size} ranks of group {group.name} are given"


def _changed_incarnations(name: str, before: RunState | None, after: RunState) -> Iterator[str]:
    if before is None or before.run.incarnation is None or after.run.incarnation is None:
        return
    old, new = before.run.incarnation, after.run.incarnation
    if new.number < old.number or (new.number == old.number) != (new.id == old.id):
        yield f"gang {name} went from incarnation {old.number} to {new.number}"
    known = {attempt.id: attempt for _, attempt in _attempts(before)}
    for _, attempt in _attempts(after):
        earlier = known.get(attempt.id)
        if earlier is None:
            continue
        if earlier.incarnation != attempt.incarnation or earlier.rank != attempt.rank:
            yield f"attempt {attempt.id} of gang {name} changed incarnation or rank"


def _half_placed(name: str, before: RunState | None, after: RunState) -> Iterator[str]:
    """If a ranked job got a place in this commit, all others have one then."""
    known = {} if before is None else {a.id: a for _, a in _attempts(before)}
    ranked = [a for a in _current(after) if a.rank is not None]
    placed = [
        a
        for a in ranked
        if a.status is not AttemptStatus.SUBMITTED
        and a.node_id is not None
        and (a.id in known and known[a.id].node_id is None)
    ]
    waiting = [a for a in ranked if a.status is AttemptStatus.SUBMITTED]
    if placed and waiting:
        yield f"gang {name} was placed in part: {len(waiting)} ranked jobs still wait"


def _torn_apart(name: str, state: RunState) -> Iterator[str]:
    ids = {a.allocation_id for a in _current(state) if a.rank is not None and _is_live(a)}
    held = [
        place
        for place in state.allocations
        if place.id in ids and place.state is AllocationState.HELD
    ]
    values = {place.placement for place in held}
    if len(values) > 1:
        yield f"gang {name} lies in several places: {sorted(map(str, values))}"


def _overdrawn(name: str, state: RunState) -> Iterator[str]:
    """Incarnations in which a ranked job ended with budget failure, within one occurrence."""
    allowed = state.run.policy.retry.max_failures
    if allowed is None:
        return
    gangs = {group.name for group in state.run.groups if group.gang_size is not None}
    failed: dict[int, set[int]] = {}
    for job, attempt in _attempts(state):
        if job.group not in gangs or attempt.rank is None or attempt.reason is None:
            continue
        if ROWS[attempt.reason].budget is Budget.FAILURE and attempt.incarnation is not None:
            failed.setdefault(attempt.occurrence, set()).add(attempt.incarnation.number)
    worst = max((len(numbers) for numbers in failed.values()), default=0)
    if worst > allowed + 1:
        yield f"gang {name} had {worst} failed incarnations, allowed are {allowed + 1}"


def overdrawn_jobs(state: RunState) -> Iterator[str]:
    """A job's own budgets, counted anew from its history; gangs count per run."""
    retry = state.run.policy.retry
    for job in state.jobs:
        for budget, allowed in (
            (Budget.FAILURE, retry.max_failures),
            (Budget.PREEMPTION, retry.max_preemptions),
        ):
            if allowed is None or (budget is Budget.FAILURE and state.run.incarnation):
                continue
            spent = Counter(
                a.occurrence
                for a in job.attempts
                if a.reason is not None
                and a.number >= job.counts_from
                and ROWS[a.reason].budget is budget
                and a.seen.container_started
            )
            if spent and max(spent.values()) > allowed + 1:
                yield f"job {job.id} spent {max(spent.values())} of {allowed} of budget {budget}"


def _current(state: RunState) -> list[Attempt]:
    lasts = [job.attempts[-1] for job in state.jobs if job.attempts]
    return [
        last
        for last in lasts
        if last.incarnation == state.run.incarnation and last.occurrence == state.run.occurrence
    ]


def _attempts(state: RunState) -> Iterator[tuple[Job, Attempt]]:
    for job in state.jobs:
        for attempt in job.attempts:
            yield job, attempt


def _is_live(attempt: Attempt) -> bool:
    return attempt.status not in FINAL_ATTEMPT_STATUSES
