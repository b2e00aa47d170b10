"""Compaction keeps a run's state small: memory and decisions must not grow with its history.

The store has every attempt until retention removes it. A state has the latest attempts of each job,
and those that may still have something on a node. What decisions need of the others is folded into
`Job.past` and `Run.past_running`. Call this with a committed state only, so that nothing leaves a
state that the store does not have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from controller.lifecycle.attempts.limits import covered_seconds
from controller.lifecycle.attempts.retry import charged_to, counts, past_of
from controller.lifecycle.membership.ranks import is_current, is_reserved, is_there
from controller.lifecycle.model import Allocation, Attempt, Job, Past, PastRunning, Run, RunState
from controller.lifecycle.sweeps import ended
from fairlead.model.reasons import Budget
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES, AllocationState

KEPT_ATTEMPTS = 20
"""The number of attempts of each job that a state keeps."""


def recent(state: RunState) -> RunState:
    """Return the state without its older attempts; the same object when there are none."""
    # docs/rules.md 3.4 counts short lives in a row, up to the number of waits.
    keep = max(KEPT_ATTEMPTS, len(state.run.policy.limits.waits) + 1)
    state = ended.folded(state)
    if all(len(job.attempts) <= keep for job in state.jobs) and (
        len(state.allocations) <= 2 * keep * len(state.jobs)
    ):
        return state
    leaving = {
        attempt.id: attempt
        for job in state.jobs
        if len(job.attempts) > keep
        for attempt in _older(state, job, keep)
    }
    ran = 0.0
    if state.run.policy.max_duration is not None:
        leaving, ran = _in_order_of_time(state, leaving)
    jobs = tuple(_without(state.run, job, leaving) for job in state.jobs)
    return replace(
        state,
        run=_with_running(state.run, ran),
        jobs=jobs,
        allocations=_allocations_of(state, jobs),
    )


def _older(state: RunState, job: Job, keep: int) -> list[Attempt]:
    """Return the attempts that no present decision needs."""
    old, late = job.attempts[:-keep], job.attempts[-keep:]
    occupied = {p.id for p in state.allocations if p.state is not AllocationState.RELEASED}
    occupied -= {attempt.allocation_id for attempt in late}
    digest = there = None
    leaving = []
    for attempt in reversed(old):
        if attempt.status not in FINAL_ATTEMPT_STATUSES or attempt.cleanup_unknown:
            continue
        if attempt.allocation_id in occupied:
            occupied.discard(attempt.allocation_id)
            continue
        present = attempt.occurrence == state.run.occurrence
        # A retry must get the image of the first attempt, although its tag may have moved since.
        if digest is None and present and attempt.task.image_digest is not None:
            digest = attempt
        # It shows that its gang was whole; without it `reincarnation_timeout` would run again.
        elif there is None and is_current(state.run, attempt) and is_there(attempt):
            there = attempt
        else:
            leaving.append(attempt)
    return leaving


def _in_order_of_time(
    state: RunState, leaving: dict[str, Attempt]
) -> tuple[dict[str, Attempt], float]:
    """Return the attempts that may leave, and the seconds during which they were RUNNING.

    Only attempts that ended before every staying one may leave: otherwise their time would count
    twice or not at all.
    """
    present = [
        attempt
        for job in state.all_jobs
        for attempt in job.attempts
        if attempt.occurrence == state.run.occurrence and attempt.running_at is not None
    ]
    spans = sorted(present, key=lambda attempt: (attempt.running_at, attempt.id))
    first_to_stay, ends_at = 0, 0.0
    for at, attempt in enumerate(spans):
        if attempt.id not in leaving or attempt.terminating_at is None:
            break
        ends_at = max(ends_at, attempt.terminating_at)
        following = spans[at + 1].running_at if at + 1 < len(spans) else None
        if following is None or following >= ends_at:
            first_to_stay = at + 1
    stays = {attempt.id for attempt in spans[first_to_stay:]}
    leaves = {key: attempt for key, attempt in leaving.items() if key not in stays}
    return leaves, covered_seconds(spans[:first_to_stay], 0.0)


def _with_running(run: Run, seconds: float) -> Run:
    if not seconds:
        return run
    past = run.past_running
    before = past.seconds if past.occurrence == run.occurrence else 0.0
    now = PastRunning(occurrence=run.occurrence, seconds=before + seconds)
    return replace(run, past_running=now)


def _without(run: Run, job: Job, leaving: dict[str, Attempt]) -> Job:
    gone = [attempt for attempt in job.attempts if attempt.id in leaving]
    if not gone:
        return job
    left = tuple(attempt for attempt in job.attempts if attempt.id not in leaving)
    present = [attempt for attempt in gone if attempt.occurrence == run.occurrence]
    if not present:
        return replace(job, attempts=left)
    past, own = past_of(run, job), [one for one in present if counts(run, job, one)]
    ran = past.ran or any(attempt.running_at is not None for attempt in present)
    past = replace(_folded(run, past, own) if own else past, ran=ran)
    return replace(job, attempts=left, past=past)


def _folded(run: Run, past: Past, own: Sequence[Attempt]) -> Past:
    charged = [(charged_to(attempt), attempt) for attempt in own if not is_reserved(attempt)]
    failed = [attempt for budget, attempt in charged if budget is Budget.FAILURE]
    incarnations = {a.incarnation.number for a in failed if a.incarnation is not None}
    ends = [a.terminating_at for a in own if a.provisioned_at and a.terminating_at]
    return Past(
        occurrence=run.occurrence,
        failures=past.failures + len(failed),
        preemptions=past.preemptions + sum(b is Budget.PREEMPTION for b, _ in charged),
        failed_incarnations=past.failed_incarnations | incarnations,
        first_submitted_at=min(own[0].submitted_at, past.first_submitted_at or math.inf),
        last_end_at=max((*ends, past.last_end_at or 0.0)) or None,
    )


def _allocations_of(state: RunState, jobs: Sequence[Job]) -> tuple[Allocation, ...]:
    needed = {attempt.allocation_id for job in jobs for attempt in job.attempts}
    return tuple(
        allocation
        for allocation in state.allocations
        if allocation.state is not AllocationState.RELEASED or allocation.id in needed
    )
