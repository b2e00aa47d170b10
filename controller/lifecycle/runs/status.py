"""A run's status is derived from its jobs by rules 4.1 to 4.8 of docs/rules.md; the first match
decides.

Each rule is a function, in the order of the table RULES; no rule changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from controller.lifecycle.attempts.retry import (
    ENDED_FOR_GOOD,
    LIMITS,
    Verdict,
    charged,
    charged_to,
    verdict_with_replica,
)
from controller.lifecycle.attempts.startup import master_of
from controller.lifecycle.membership.ranks import is_reserved
from controller.lifecycle.model import Attempt, Job, Run, StopCriteria
from fairlead.model.reasons import (
    ENDS_NO_RUN,
    ROWS,
    Budget,
    Reason,
    ReasonClass,
    RunReason,
    run_reason_of,
    state_of,
)
from fairlead.model.statuses import (
    FINAL_ATTEMPT_STATUSES,
    FINAL_RUN_STATUSES,
    AttemptStatus,
    IrisState,
    RunStatus,
)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one rule. `status` None: unchanged. `reason` and `message` come only with
    TERMINATING."""

    rule: int
    status: RunStatus | None
    reason: RunReason | None = None
    message: str | None = None


class Counted(msgspec.Struct, frozen=True):
    """A job that counts for the run, with what all rules ask about it."""

    job: Job
    verdict: Verdict
    last: Attempt | None

    @property
    def status(self) -> AttemptStatus | None:
        return self.last.status if self.last is not None else None

    @property
    def active(self) -> bool:
        return self.last is not None and self.last.status not in FINAL_ATTEMPT_STATUSES

    @property
    def charged_failure(self) -> bool:
        """Whether it ended for good in a way that `max_failed_jobs` may tolerate."""
        if self.last is None or self.verdict not in ENDED_FOR_GOOD:
            return False
        return charged_to(self.last) is Budget.FAILURE


def derive(run: Run, jobs: Sequence[Job]) -> Outcome:
    """Return the outcome of the first rule that matches."""
    counted = []
    for job in jobs:
        last = job.attempts[-1] if job.attempts else None
        if not (job.scaled_down or (last is not None and is_reserved(last))):
            counted.append(Counted(job, verdict_with_replica(run, job, jobs), last))
    for rule in RULES:
        outcome = rule(run, counted)
        if outcome is None and rule is rule_1_a_job_ended_for_good:
            outcome = _run_limit(run, counted, jobs)
        if outcome is not None:
            return outcome
    return Outcome(rule=8, status=None)


_STAYS: Final = frozenset({Verdict.OPEN, Verdict.RETRY, Verdict.COMES_BACK})
_COMES_BACK: Final = frozenset({Verdict.RETRY, Verdict.COMES_BACK})


def state_of_job(run: Run, job: Job, jobs: Sequence[Job]) -> IrisState:
    """Return the name that Iris gives a job's state.

    It is its last attempt's state, and pending as soon as that attempt has ended and another one
    will come. `jobs` are all jobs of the run.
    """
    ends = run.status is RunStatus.TERMINATING or run.status in FINAL_RUN_STATUSES
    lives_on = not (ends or job.scaled_down)
    if lives_on and verdict_with_replica(run, job, jobs) in _COMES_BACK:
        return IrisState.PENDING
    if not job.attempts:
        return IrisState.KILLED
    return state_of(job.attempts[-1].status, job.attempts[-1].reason)


def _terminating(rule: int, reason: RunReason, message: str | None = None) -> Outcome:
    return Outcome(rule=rule, status=RunStatus.TERMINATING, reason=reason, message=message)


def rule_1_a_job_ended_for_good(run: Run, counted: Sequence[Counted]) -> Outcome | None:
    if run.deployments and any(one.verdict in _STAYS for one in counted):
        return None  # a service goes on with its other replicas (docs/rules.md 8.5)
    for one in counted:
        if one.verdict in ENDED_FOR_GOOD and _ends_the_run_at_once(one):
            return _because_of(run, one, len(counted))
    failed = [one for one in counted if one.charged_failure]
    if len(failed) > run.policy.max_failed_jobs:
        return _because_of(run, max(failed, key=_ended_at), len(counted))
    return None


def _ended_at(one: Counted) -> tuple[float, bool]:
    """Sort key: the job that ended last was the one too many; of several at once one whose limit is
    used up."""
    ended = one.last.terminating_at if one.last is not None else None
    return ended or 0.0, one.verdict in LIMITS


def _ends_the_run_at_once(one: Counted) -> bool:
    if one.last is None or one.last.reason is None or one.charged_failure:
        return False
    return not (
        ROWS[one.last.reason].reason_class is ReasonClass.NEUTRAL and one.last.reason in ENDS_NO_RUN
    )


def _because_of(run: Run, one: Counted, of: int) -> Outcome:
    last = one.last
    if last is None or last.reason is None:
        return _terminating(1, RunReason.JOB_FAILED)
    reason = run_reason_of(last.reason, LIMITS.get(one.verdict))
    message = last.message or ROWS[last.reason].sentence
    if of > 1:
        message = f"job {one.job.group}/{one.job.cookie}: {message}"
    return _terminating(1, reason, message)


_STARTED_ANEW_ON_PURPOSE: Final = frozenset({Reason.DONE_BY_RUNNER, Reason.SCALED_DOWN})


def _run_limit(run: Run, counted: Sequence[Counted], jobs: Sequence[Job]) -> Outcome | None:
    """Apply the limits of rule 4.1 that count attempts.

    Attempts count that a job had as a rank, also if the job is reserved now. `fail_on_job_restart`
    concerns jobs that had started. A job whose container never ran starts late, and a slot that was
    scaled away and back is a new one: neither is a restart.
    """
    policy = run.policy
    if policy.max_failed_attempts is not None:
        present = (job for job in jobs if not job.scaled_down)
        failures = sum(charged(run, job, Budget.FAILURE) for job in present)
        if failures > policy.max_failed_attempts:
            attempts = "attempt" if failures == 1 else "attempts"
            message = f"{failures} {attempts} failed; max_failed_attempts is "
            message += str(policy.max_failed_attempts)
            return _terminating(1, RunReason.RETRY_LIMIT_EXCEEDED, message)
    if policy.fail_on_job_restart:
        for one in counted:
            started = one.last is not None and one.last.seen.container_started
            wanted = one.last is not None and one.last.reason in _STARTED_ANEW_ON_PURPOSE
            if one.verdict is Verdict.RETRY and started and not wanted:
                because = _because_of(run, one, len(counted))
                return _terminating(1, RunReason.JOB_FAILED, because.message)
    return None


def rule_2_the_master_is_done(run: Run, counted: Sequence[Counted]) -> Outcome | None:
    if run.policy.stop_criteria is not StopCriteria.MASTER_DONE:
        return None
    master = master_of([one.job for one in counted])
    if master is None or not master.attempts:
        return None
    if master.attempts[-1].status is not AttemptStatus.DONE:
        return None
    return _terminating(2, RunReason.ALL_JOBS_DONE, "the master job is done")


def rule_3_any_running(run: Run, counted: Sequence[Counted]) -> Outcome | None:
    if any(one.status is AttemptStatus.RUNNING for one in counted):
        return Outcome(rule=3, status=RunStatus.RUNNING)
    return None


def rule_4_any_provisioning_or_pulling(run: Run, counted: Sequence[Counted]) -> Outcome | None:
    starting = (AttemptStatus.PROVISIONING, AttemptStatus.PULLING)
    if any(one.status in starting for one in counted):
        return Outcome(rule=4, status=RunStatus.PROVISIONING)
    return None


def rule_5_any_submitted(run: Run, counted: Sequence[Counted]) -> Outcome | None:
    if any(one.status is AttemptStatus.SUBMITTED for one in counted):
        return Outcome(rule=5, status=RunStatus.SUBMITTED)
    return None


def rule_6_every_job_done(run: Run, counted: Sequence[Counted]) -> Outcome | None:
    if counted and all(_needs_no_more(one) for one in counted):
        return _terminating(6, RunReason.ALL_JOBS_DONE)
    return None


def _needs_no_more(one: Counted) -> bool:
    if one.active:
        return False
    return one.verdict in (Verdict.DONE, Verdict.ABANDONED) or one.charged_failure


def rule_7_only_waiting_for_a_retry(run: Run, counted: Sequence[Counted]) -> Outcome | None:
    if run.suspended or any(one.active for one in counted):
        return None
    if run.deployments and not counted:
        return Outcome(rule=7, status=RunStatus.PENDING)  # scaled to zero (4.9)
    if any(one.verdict in (Verdict.RETRY, Verdict.COMES_BACK) for one in counted):
        return Outcome(rule=7, status=RunStatus.PENDING)
    return None


def rule_8_otherwise_unchanged(run: Run, counted: Sequence[Counted]) -> Outcome | None:
    if run.suspended and not any(one.active for one in counted):
        return Outcome(rule=8, status=RunStatus.PENDING)
    return Outcome(rule=8, status=None)


Rule = Callable[[Run, Sequence[Counted]], Outcome | None]
RULES: Final[tuple[Rule, ...]] = (
    rule_1_a_job_ended_for_good,
    rule_2_the_master_is_done,
    rule_3_any_running,
    rule_4_any_provisioning_or_pulling,
    rule_5_any_submitted,
    rule_6_every_job_done,
    rule_7_only_waiting_for_a_retry,
    rule_8_otherwise_unchanged,
)
