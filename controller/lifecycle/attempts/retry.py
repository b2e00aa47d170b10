"""Retry decides whether and when an ended job is tried again (docs/rules.md 3).

A gang's ranks come back with their gang (`gangs.switching`), its reserved jobs each on its own. A
verdict is derived from the attempts alone, as of the moment when the attempt ended. So later turns
come to the same verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

from controller.lifecycle.attempts import termination
from controller.lifecycle.draft import Draft
from controller.lifecycle.events import EventKind
from controller.lifecycle.membership import members
from controller.lifecycle.membership.ranks import (
    in_gang_group,
    is_current,
    is_gang_run,
    is_held,
    is_reserved,
)
from controller.lifecycle.model import Allocation, Attempt, Job, Limits, Past, Run
from fairlead.model.reasons import (
    ALLOCATION_LOST,
    ROWS,
    Budget,
    ComesBack,
    Limit,
    Reason,
    RetryEvent,
)
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES


def seconds(limits: Limits, lives: int, event: object) -> float:
    """Return the wait in seconds, without jitter.

    `lives`: how many lives in a row, the last included, were short. `event`: the retry event of the
    last end.
    """
    if lives <= 1 and event is RetryEvent.NO_CAPACITY:
        return limits.no_capacity_wait
    if not limits.waits:
        return 0.0
    return limits.waits[min(max(lives, 1), len(limits.waits)) - 1]


def jittered(draft: Draft, wait: float) -> float:
    """Return the wait with jitter; a wait of 0 stays 0 and draws no random number."""
    if not wait:
        return 0.0
    return max(0.0, wait * (1 + draft.run.policy.limits.jitter * draft.jitter()))


class Verdict(StrEnum):
    """What becomes of a job, judged by its last attempt."""

    OPEN = "open"
    """It has not ended."""
    DONE = "done"
    ABANDONED = "abandoned"
    RETRY = "retry"
    COMES_BACK = "comes_back"
    """It comes back with its replica, its gang or on resume: not by itself, and it has not ended
    for good."""
    ENDED = "ended"
    """It ended for good: its reason allows no retry."""
    ENDED_BY_BUDGET = "ended_by_budget"
    """It ended for good: a budget of its retry policy is used up."""
    ENDED_BY_DURATION = "ended_by_duration"
    """It ended for good: the duration of its retry policy has passed."""


LIMITS: Mapping[Verdict, Limit] = {
    Verdict.ENDED_BY_BUDGET: Limit.BUDGET,
    Verdict.ENDED_BY_DURATION: Limit.DURATION,
}
"""The limit of the retry policy that each verdict stands for."""
ENDED_FOR_GOOD = frozenset({Verdict.ENDED, *LIMITS})


def lost_before_start(attempt: Attempt) -> bool:
    """Return whether the attempt lost its allocation before the container ran: charged to no
    budget, always tried again."""
    return attempt.reason in ALLOCATION_LOST and not attempt.seen.container_started


def charged_to(attempt: Attempt) -> Budget | None:
    if attempt.reason is None or lost_before_start(attempt):
        return None
    return ROWS[attempt.reason].budget


def charged(run: Run, job: Job, budget: Budget) -> int:
    """Return how many ends of this job count against `budget` in the current occurrence.

    Ends as a reserved job do not count.
    """
    past = past_of(run, job)
    before = {Budget.FAILURE: past.failures, Budget.PREEMPTION: past.preemptions}[budget]
    return before + sum(1 for a in _charged_attempts(run, job, budget))


def past_of(run: Run, job: Job) -> Past:
    """Return the folded history of the job in the present occurrence."""
    return job.past if job.past.occurrence == run.occurrence else Past(occurrence=run.occurrence)


def counts(run: Run, job: Job, attempt: Attempt) -> bool:
    """Return whether the attempt counts against limits: it belongs to the present occurrence, and
    was made after the user's last retry of its set."""
    return attempt.occurrence == run.occurrence and attempt.number >= job.counts_from


def failed_incarnations(run: Run, jobs: Iterable[Job]) -> int:
    """Return in how many incarnations of the current occurrence a rank failed: that is a gang's
    budget."""
    failed: set[int] = set()
    for job in jobs:
        if in_gang_group(run, job):
            failed |= past_of(run, job).failed_incarnations
            failed |= {
                attempt.incarnation.number
                for attempt in _charged_attempts(run, job, Budget.FAILURE)
                if attempt.incarnation is not None
            }
    return len(failed)


def _charged_attempts(run: Run, job: Job, budget: Budget) -> Iterator[Attempt]:
    for attempt in job.attempts:
        if not counts(run, job, attempt) or is_reserved(attempt):
            continue
        if charged_to(attempt) is budget:
            yield attempt


def verdict(run: Run, job: Job, jobs: Sequence[Job] = ()) -> Verdict:
    """Return what happens to the job.

    `jobs` are all jobs of the run; only a gang needs them, because its budget belongs to the run.
    """
    last = job.attempts[-1] if job.attempts else None
    if last is None:
        return Verdict.ABANDONED if job.abandoned else Verdict.COMES_BACK
    if last.incarnation != run.incarnation and not job.abandoned:
        return Verdict.COMES_BACK
    if last.reason is None:
        return Verdict.OPEN
    if job.abandoned or last.reason is Reason.ABANDONED:
        return Verdict.ABANDONED
    if is_reserved(last):
        comes_back = isinstance(ROWS[last.reason].event, ComesBack)
        return Verdict.COMES_BACK if comes_back else Verdict.RETRY
    if last.reason is Reason.DONE_BY_RUNNER:
        served = bool(run.deployments) and RetryEvent.ERROR in run.policy.retry.on_events
        return Verdict.RETRY if served or run.policy.restart_completed_jobs else Verdict.DONE
    if last.reason is Reason.TIME_LIMIT_REACHED:
        return Verdict.RETRY  # `on_time_limit: requeue` asks for it, whatever `retry` says
    if lost_before_start(last) or _was_brought_back(run, job, last):
        return Verdict.RETRY
    return _by_policy(run, job, jobs, ROWS[last.reason].event)


_COMES_NOT_BACK = ENDED_FOR_GOOD | {Verdict.DONE, Verdict.ABANDONED}


def verdict_with_replica(run: Run, job: Job, jobs: Sequence[Job]) -> Verdict:
    """Return the verdict, for a member of a replica of several nodes that of the whole replica.

    When one member ended and does not come back, no other does: the others are then abandoned.
    """
    own = verdict(run, job, jobs)
    if own in _COMES_NOT_BACK or own is Verdict.OPEN or not members.is_member(run, job):
        return own
    others = members.members_of(jobs, job)
    lost = _COMES_NOT_BACK - {Verdict.DONE} if run.sweep is not None else _COMES_NOT_BACK
    is_lost = any(verdict(run, one, jobs) in lost for one in others)
    return Verdict.ABANDONED if is_lost else own


def _was_brought_back(run: Run, job: Job, last: Attempt) -> bool:
    """Return whether the cause of its end is over: its slot is wanted again, or the run was
    resumed."""
    if last.reason is Reason.SCALED_DOWN:
        return not job.scaled_down
    return last.reason is Reason.SUSPENDED and not run.suspended


def _by_policy(
    run: Run, job: Job, jobs: Sequence[Job], event: RetryEvent | ComesBack | None
) -> Verdict:
    if isinstance(event, ComesBack):
        return Verdict.COMES_BACK
    if event not in run.policy.retry.on_events:
        return Verdict.ENDED
    if _budget_used_up(run, job, jobs):
        return Verdict.ENDED_BY_BUDGET
    if _duration_passed(run, job, job.attempts[-1], event):
        return Verdict.ENDED_BY_DURATION
    return Verdict.RETRY


def _budget_used_up(run: Run, job: Job, jobs: Sequence[Job]) -> bool:
    policy = run.policy.retry
    budget = charged_to(job.attempts[-1])
    if budget is Budget.FAILURE:
        allowed = policy.max_failures
        if allowed is None:
            return False
        gang = in_gang_group(run, job)
        return (failed_incarnations(run, jobs) if gang else charged(run, job, budget)) > allowed
    if budget is Budget.PREEMPTION:
        return charged(run, job, budget) > policy.max_preemptions
    return False


def _duration_passed(run: Run, job: Job, last: Attempt, event: RetryEvent | None) -> bool:
    duration = run.policy.retry.duration
    if duration is None or last.terminating_at is None:
        return False
    own = [a for a in job.attempts if counts(run, job, a)]
    past = past_of(run, job)
    starts = [a.submitted_at for a in own[:1]] + _known(past.first_submitted_at)
    since = min(starts, default=run.submitted_at)
    if event is not RetryEvent.NO_CAPACITY:
        ends = [a.terminating_at for a in own if a.provisioned_at and a.terminating_at]
        since = max(ends + _known(past.last_end_at), default=since)
    # Judged by the end, not by now: a controller that was away must not use up the duration.
    return last.terminating_at - since >= duration


def _known(time: float | None) -> list[float]:
    return [] if time is None else [time]


def short_lives(run: Run, job: Job) -> int:
    """Return how many of the job's lives in a row, the last included, were short."""
    count = 0
    for attempt in reversed(job.attempts):
        if attempt.number < job.counts_from:
            break
        if not is_current(run, attempt) or not _was_short(attempt, run.policy.limits):
            break
        count += 1
    return count


def _was_short(attempt: Attempt, limits: Limits) -> bool:
    if attempt.running_at is None or attempt.terminating_at is None:
        return True
    return attempt.terminating_at - attempt.running_at < limits.short_life


def wait_before_successor(run: Run, job: Job) -> float:
    """Return the seconds to wait before the job's next attempt, without jitter."""
    reason = job.attempts[-1].reason
    event = None if reason is None else ROWS[reason].event
    return seconds(run.policy.limits, short_lives(run, job), event)


def may_be_needed(draft: Draft) -> bool:
    """Return whether any job has ended; in many turns none has."""
    return not draft.run.suspended and any(
        job.attempts and job.attempts[-1].reason is not None for job in draft.jobs
    )


def stop_siblings(draft: Draft) -> None:
    """End the live jobs of each replica that is tried again because of one of its jobs."""
    for replica in _replicas(draft.run, draft.jobs):
        _stop_siblings(draft, replica)


def bring_back(draft: Draft) -> None:
    """Start the waits of jobs that are tried again, and make the attempts that are due."""
    for replica in _replicas(draft.run, draft.jobs):
        _bring_back(draft, replica)


def _replicas(run: Run, jobs: Iterable[Job]) -> list[list[Job]]:
    """Return the jobs that come back together.

    In a gang run each reserved or plain job is one replica; ranks belong to none, because a switch
    brings them back. Slots that were scaled away get no new attempt, however their last one ended.
    """
    if is_gang_run(run):
        return [[job] for job in jobs if _comes_back_alone(run, job)]
    replicas: dict[tuple[str, int], list[Job]] = {}
    for job in (job for job in jobs if not job.scaled_down):
        replicas.setdefault((job.group, job.replica), []).append(job)
    return list(replicas.values())


def _comes_back_alone(run: Run, job: Job) -> bool:
    if not job.attempts or not is_current(run, job.attempts[-1]):
        return False
    return job.rank is None or not in_gang_group(run, job)


def _pulls_its_replica_down(run: Run, job: Job) -> bool:
    if verdict(run, job) is not Verdict.RETRY:
        return False
    last = job.attempts[-1]
    return last.reason is not Reason.DONE_BY_RUNNER and not lost_before_start(last)


def _stop_siblings(draft: Draft, replica: Sequence[Job]) -> None:
    culprit = next((job for job in replica if _pulls_its_replica_down(draft.run, job)), None)
    if culprit is None:
        return
    message = f"job {culprit.group}/{culprit.cookie} failed and its replica is tried again"
    for job in replica:
        last = job.attempts[-1] if job.attempts else None
        if last is not None and last.reason is None:
            termination.end(draft, last, Reason.SIBLING_FAILED, "retry in place", message)


def _bring_back(draft: Draft, replica: Sequence[Job]) -> None:
    returning = _returning(draft.run, replica)
    coming = {job.id for job in returning}
    for job in replica:
        if job.id not in coming:
            # It waits for others of its replica now; all of them then wait once more, together.
            draft.set_retry_at(job, None)
    if not returning:
        return
    if any(job.retry_at is None for job in returning):
        returning = _start_wait(draft, returning)
    for job in returning:
        if job.retry_at is not None and draft.now >= job.retry_at:
            _make_successor(draft, job)


def _returning(run: Run, replica: Sequence[Job]) -> list[Job]:
    """Return the jobs that get a new attempt.

    If one job of a replica stopped the others, all of them return once none of them lives.
    Otherwise the jobs that ended by themselves return. All jobs of a service's replica return, or
    none.
    """
    lasts = [job.attempts[-1] for job in replica if job.attempts]
    if any(members.is_member(run, job) for job in replica):
        return list(replica) if _all_return(run, replica) else []
    whole = any(last.reason is Reason.SIBLING_FAILED for last in lasts)
    together = whole or any(_pulls_its_replica_down(run, job) for job in replica)
    if together and not all(last.status in FINAL_ATTEMPT_STATUSES for last in lasts):
        return []
    if not whole:
        return [job for job in replica if verdict(run, job) is Verdict.RETRY and _is_final(job)]
    back = (Verdict.RETRY, Verdict.COMES_BACK, Verdict.DONE)
    return [job for job in replica if job.attempts and verdict(run, job) in back]


def _all_return(run: Run, replica: Sequence[Job]) -> bool:
    """Return whether nothing of a replica of several nodes lives, and each of its jobs may
    return."""
    back = [Verdict.RETRY, Verdict.COMES_BACK]
    if run.sweep is not None:
        # A set of a sweep comes back when a job failed, not when the others are done.
        back.append(Verdict.DONE)
        if not any(verdict(run, job) in back[:2] for job in replica):
            return False
    return all(
        bool(job.attempts) and _is_final(job) and verdict(run, job) in back for job in replica
    )


def _is_final(job: Job) -> bool:
    return job.attempts[-1].status in FINAL_ATTEMPT_STATUSES


def _start_wait(draft: Draft, returning: Sequence[Job]) -> list[Job]:
    """Start one wait for all of them: the longest that one of their ends needs."""
    wait = max(wait_before_successor(draft.run, job) for job in returning)
    wait = jittered(draft, wait)
    if wait:
        for job in returning:
            draft.record(
                EventKind.WAIT,
                "retry",
                attempt=job.attempts[-1],
                reason=job.attempts[-1].reason,
                message=f"next attempt in {wait:.0f} s",
            )
    return [draft.set_retry_at(job, draft.now + wait) for job in returning]


def _make_successor(draft: Draft, job: Job) -> None:
    last = job.attempts[-1]
    attempt = draft.fresh_attempt(job, "retry")
    if draft.run.sweep is not None and draft.run.sweep.reuse_container:
        # Its last one may have been carried, so it had no place of its own under `max_parallel`.
        draft.change_attempt(attempt, carrier="")
        return
    kept = draft.allocation_of(last)
    if members.queues_as_a_whole(draft.run):
        return
    if last.reason is Reason.SIBLING_FAILED and kept and _can_be_reused(draft, kept):
        draft.take_over(attempt, kept, "retry in place")


def _can_be_reused(draft: Draft, allocation: Allocation) -> bool:
    context = draft.context
    if allocation.node_id in context.unusable_nodes | context.undecided_nodes:
        return False
    return (
        is_held(allocation) and allocation.id not in context.nominated | context.broken_allocations
    )
