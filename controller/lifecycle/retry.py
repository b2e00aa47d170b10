"""Whether and when an ended job is tried again: LIFECYCLE.md section 3, without gangs.

A verdict is derived from the attempts alone, with nothing counted beside them, and is reached as of
the moment the attempt ended (its reason was set): later turns come to the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

from controller.lifecycle import attempts
from controller.lifecycle.draft import Draft
from controller.lifecycle.history import EventKind
from controller.lifecycle.model import Attempt, Job, Limits, RetryPolicy, Run
from controller.lifecycle.reasons import (
    PLACE_LOST,
    ROWS,
    Budget,
    ComesBack,
    Reason,
    RetryEvent,
)
from controller.lifecycle.statuses import (
    FINAL_ATTEMPT_STATUSES,
    AllocationState,
    AttemptStatus,
)


class Verdict(StrEnum):
    """What becomes of a job, judged by its last attempt."""

    OPEN = "open"
    """It has not ended."""
    DONE = "done"
    ABANDONED = "abandoned"
    RETRY = "retry"
    COMES_BACK = "comes_back"
    """With its replica, its gang or on resume: not by itself, not ended for good either."""
    ENDED = "ended"
    """For good, by the kind of its end."""
    ENDED_BY_LIMIT = "ended_by_limit"
    """For good, since a budget or the duration of its retry policy is used up."""


ENDED_FOR_GOOD = frozenset({Verdict.ENDED, Verdict.ENDED_BY_LIMIT})


def lost_before_start(attempt: Attempt) -> bool:
    """Its place was lost before the container ran: charged to nobody, always tried again."""
    return attempt.reason in PLACE_LOST and not attempt.container_started


def charged_to(attempt: Attempt) -> Budget | None:
    if attempt.reason is None or lost_before_start(attempt):
        return None
    return ROWS[attempt.reason].budget


def charged(run: Run, job: Job, budget: Budget) -> int:
    """How many ends of this job count against `budget` in the current occurrence."""
    return sum(
        1 for a in job.attempts if a.occurrence == run.occurrence and charged_to(a) is budget
    )


def verdict(run: Run, job: Job) -> Verdict:
    last = job.attempts[-1] if job.attempts else None
    if last is None:
        return Verdict.ABANDONED if job.abandoned else Verdict.COMES_BACK
    if last.reason is None:
        return Verdict.OPEN
    if job.abandoned or last.reason is Reason.ABANDONED:
        return Verdict.ABANDONED
    if last.reason is Reason.DONE_BY_RUNNER:
        return Verdict.RETRY if run.policy.restart_completed_jobs else Verdict.DONE
    if lost_before_start(last):
        return Verdict.RETRY
    return _by_policy(run, job, last, ROWS[last.reason].event)


def _by_policy(run: Run, job: Job, last: Attempt, event: RetryEvent | ComesBack | None) -> Verdict:
    if isinstance(event, ComesBack):
        return Verdict.COMES_BACK
    if event not in run.policy.retry.on_events:
        return Verdict.ENDED
    if _budget_used_up(run, job, run.policy.retry) or _duration_passed(run, job, last, event):
        return Verdict.ENDED_BY_LIMIT
    return Verdict.RETRY


def _budget_used_up(run: Run, job: Job, policy: RetryPolicy) -> bool:
    budget = charged_to(job.attempts[-1])
    if budget is Budget.FAILURE:
        allowed = policy.max_failures
        return allowed is not None and charged(run, job, budget) > allowed
    if budget is Budget.PREEMPTION:
        return charged(run, job, budget) > policy.max_preemptions
    return False


def _duration_passed(run: Run, job: Job, last: Attempt, event: RetryEvent | None) -> bool:
    duration = run.policy.retry.duration
    if duration is None or last.terminating_at is None:
        return False
    own = [a for a in job.attempts if a.occurrence == run.occurrence]
    since = own[0].submitted_at if own else run.submitted_at
    if event is not RetryEvent.NO_CAPACITY:
        ends = [a.terminating_at for a in own if a.provisioned_at and a.terminating_at]
        since = ends[-1] if ends else since
    return last.terminating_at - since >= duration


def short_lives(run: Run, job: Job) -> int:
    """How many of the job's lives in a row, the last included, were short ones."""
    count = 0
    for attempt in reversed(job.attempts):
        if attempt.occurrence != run.occurrence or not _was_short(attempt, run.policy.limits):
            break
        count += 1
    return count


def _was_short(attempt: Attempt, limits: Limits) -> bool:
    if attempt.running_at is None or attempt.terminating_at is None:
        return True
    return attempt.terminating_at - attempt.running_at < limits.short_life


def wait_before_successor(run: Run, job: Job) -> float:
    """Seconds, without jitter."""
    limits = run.policy.limits
    lives = short_lives(run, job)
    if lives <= 1:
        reason = job.attempts[-1].reason
        if reason is not None and ROWS[reason].event is RetryEvent.NO_CAPACITY:
            return limits.no_capacity_wait
    if not limits.waits:
        return 0.0
    return limits.waits[min(max(lives, 1), len(limits.waits)) - 1]


# -- carrying it out ------------------------------------------------------------------------


def may_be_needed(draft: Draft) -> bool:
    """False for the many turns in which no job has ended."""
    return not draft.run.suspended and any(
        job.attempts and job.attempts[-1].reason is not None for job in draft.jobs
    )


def stop_siblings(draft: Draft) -> None:
    """End what lives of each replica that is tried again for one of its jobs."""
    for replica in _replicas(draft.jobs):
        _stop_siblings(draft, replica)


def bring_back(draft: Draft) -> None:
    """Start the waits of what is tried again, and make the attempts that are due."""
    for replica in _replicas(draft.jobs):
        _bring_back(draft, replica)


def _replicas(jobs: Iterable[Job]) -> list[list[Job]]:
    replicas: dict[tuple[str, int], list[Job]] = {}
    for job in jobs:
        replicas.setdefault((job.group, job.replica), []).append(job)
    return list(replicas.values())


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
            attempts.end(draft, last, Reason.SIBLING_FAILED, "retry in place", message)


def _bring_back(draft: Draft, replica: Sequence[Job]) -> None:
    returning = _returning(draft.run, replica)
    if not returning:
        return
    if any(job.retry_at is None for job in returning):
        returning = _start_wait(draft, returning)
    for job in returning:
        if job.retry_at is not None and draft.now >= job.retry_at:
            _make_successor(draft, job)


def _returning(run: Run, replica: Sequence[Job]) -> list[Job]:
    """The jobs that get a new attempt: once nothing of it lives any more all of a replica that was
    stopped for one of them; else those that ended by themselves."""
    lasts = [job.attempts[-1] for job in replica if job.attempts]
    whole = any(last.reason is Reason.SIBLING_FAILED for last in lasts)
    together = whole or any(_pulls_its_replica_down(run, job) for job in replica)
    if together and not all(last.status in FINAL_ATTEMPT_STATUSES for last in lasts):
        return []
    if not whole:
        return [job for job in replica if verdict(run, job) is Verdict.RETRY and _is_final(job)]
    back = (Verdict.RETRY, Verdict.COMES_BACK, Verdict.DONE)
    return [job for job in replica if job.attempts and verdict(run, job) in back]


def _is_final(job: Job) -> bool:
    return job.attempts[-1].status in FINAL_ATTEMPT_STATUSES


def _start_wait(draft: Draft, returning: Sequence[Job]) -> list[Job]:
    """One wait for all of them, the longest that one of their own ends asks for."""
    limits = draft.run.policy.limits
    wait = max(wait_before_successor(draft.run, job) for job in returning)
    wait *= 1 + limits.jitter * draft.jitter() if wait else 1
    retry_at = draft.now + max(0.0, wait)
    if wait:
        for job in returning:
            draft.note(
                EventKind.WAIT,
                job.attempts[-1],
                "retry",
                reason=job.attempts[-1].reason,
                message=f"next attempt in {wait:.0f} s",
            )
    return [draft.set_retry_at(job, retry_at) for job in returning]


def _make_successor(draft: Draft, job: Job) -> None:
    last = job.attempts[-1]
    attempt = Attempt(
        id=draft.new_id(),
        job_id=job.id,
        number=last.number + 1,
        status=AttemptStatus.SUBMITTED,
        occurrence=draft.run.occurrence,
        incarnation=draft.run.incarnation,
        rank=job.rank,
        submitted_at=draft.now,
    )
    draft.add_attempt(job, attempt, "retry")
    kept = draft.allocation_of(last)
    if last.reason is Reason.SIBLING_FAILED and kept and kept.state is AllocationState.HELD:
        draft.move_attempt(
            attempt,
            AttemptStatus.PROVISIONING,
            "retry in place",
            allocation_id=kept.id,
            node_id=kept.node_id,
            gpus=kept.gpus,
            provisioned_at=draft.now,
        )
