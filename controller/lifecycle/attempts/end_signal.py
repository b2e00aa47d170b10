"""The signal that a job gets before each foreseeable end of it (docs/rules.md 4.20).

An end is foreseen from the time limits and the drain deadlines of nodes, or has come when the
attempt has its reason. A signal is committed before it is sent, and noted once it is: so each end
gets one, whoever restarts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

import msgspec
from msgspec.structs import replace

from controller.lifecycle.attempts import limits, termination
from controller.lifecycle.draft import Draft
from controller.lifecycle.events import EventKind
from controller.lifecycle.membership import members
from controller.lifecycle.membership.ranks import in_gang_group, is_gang_run
from controller.lifecycle.model import Attempt, Job, Run, SignalledEnd
from controller.lifecycle.reports import JobSignalled
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AttemptStatus
from fairlead.wire.job import EndSignal

FORESEEABLE = frozenset(
    {
        Reason.MAX_DURATION_EXCEEDED,
        Reason.TIME_LIMIT_REACHED,
        Reason.NODE_DRAINED,
        Reason.PREEMPTED,
        Reason.INTERRUPTED_BY_NO_CAPACITY,
    }
)
_LAST_GRACE = 10.0
"""Seconds of the grace that the stop signal has, if it waits for the signal before it."""
_SAME_END = 1.0
"""Seconds by which the time of one end may differ between two computations of it."""


class _End(msgspec.Struct, frozen=True):
    cause: Reason
    at: float


def settle(draft: Draft) -> None:
    """Note the signals that are due. The runners get them once this is committed."""
    foresight = _Foresight(draft)
    for job, signal in _with_signal(draft):
        attempt = job.attempts[-1]
        if attempt.status is AttemptStatus.RUNNING:
            for end in foresight.of(job, attempt):
                if draft.now >= end.at - signal.before and not _has_one(attempt, end):
                    attempt = _note(draft, attempt, end, signal)
        elif _has_just_ended(attempt):
            assert attempt.reason is not None, "it has just ended"
            stop_at = draft.now + _before_stop(draft.run, attempt, signal, draft.now)
            _note(draft, attempt, _End(attempt.reason, stop_at), signal)


def timers(draft: Draft) -> Iterator[float]:
    """Yield the times at which a signal is due."""
    foresight = _Foresight(draft)
    for job, signal in _with_signal(draft):
        attempt = job.attempts[-1]
        if attempt.status is AttemptStatus.RUNNING:
            for end in foresight.of(job, attempt):
                if not _has_one(attempt, end):
                    yield end.at - signal.before


def _with_signal(draft: Draft) -> Iterator[tuple[Job, EndSignal]]:
    return (
        (job, job.spec.signal) for job in draft.jobs if job.spec.signal is not None and job.attempts
    )


def sent(draft: Draft, report: JobSignalled) -> None:
    """Note that the runner has the signals."""
    attempt = draft.attempt(report.attempt_id)
    if attempt is None:
        return
    known = tuple(
        replace(one, sent=True) if one.id in report.ids else one for one in attempt.signalled
    )
    draft.change_attempt(attempt, signalled=known)


def stop_delay(run: Run, attempt: Attempt, signal: EndSignal | None, now: float) -> float:
    """Return the seconds for which the stop signal of an attempt that has ended still waits."""
    if signal is None or not any(_began_the_grace(attempt, one) for one in attempt.signalled):
        return 0.0
    return _before_stop(run, attempt, signal, now)


def ends_in(
    run: Run, attempt: Attempt, end: SignalledEnd, signal: EndSignal | None, now: float
) -> float:
    """Return the seconds from now until the stop signal of this end."""
    if signal is not None and _began_the_grace(attempt, end):
        return _before_stop(run, attempt, signal, now)
    return max(0.0, end.ends_at - now)


def _began_the_grace(attempt: Attempt, one: SignalledEnd) -> bool:
    ended_at = attempt.terminating_at
    return one.cause is attempt.reason and ended_at is not None and one.at >= ended_at


def _before_stop(run: Run, attempt: Attempt, signal: EndSignal, now: float) -> float:
    """Return the seconds from now until the stop signal.

    They are counted back from the kill, which moves when the node was silent, or when a switch of
    the gang cuts the grace.
    """
    if attempt.remove_at is None or attempt.reason is None:
        return 0.0
    grace = termination.whole_grace(run, attempt)
    last = max(min(_LAST_GRACE, grace / 2), grace - signal.before)
    return max(0.0, attempt.remove_at - last - now)


class _Foresight:
    """The ends that are foreseen in a turn; what is the same for all jobs is computed once."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def of(self, job: Job, attempt: Attempt) -> Iterator[_End]:
        """Yield the ends that are foreseen for a RUNNING attempt, the earliest of each cause."""
        ends: dict[Reason, float] = {}
        for end in (*self._own(attempt), *self._of_others(job)):
            ends[end.cause] = min(end.at, ends.get(end.cause, end.at))
        if self._of_run is not None:
            ends[Reason.MAX_DURATION_EXCEEDED] = self._of_run
        yield from (_End(cause, at) for cause, at in ends.items())

    def _own(self, attempt: Attempt) -> Iterator[_End]:
        life = limits.time_limit(self._draft.run, attempt)
        if life is not None and attempt.limit_pause.since is None:
            yield _End(life.reason, life.at)
        drained = self._draft.context.drain_deadlines.get(attempt.node_id or "")
        if drained is not None:
            yield _End(Reason.NODE_DRAINED, drained)

    def _of_others(self, job: Job) -> tuple[_End, ...]:
        """Return the ends of the jobs that end this one too."""
        if is_gang_run(self._draft.run):
            return self._of_gang
        if not members.is_member(self._draft.run, job):
            return ()
        return self._of_all(members.members_of(self._draft.jobs, job))

    def _of_all(self, jobs: Iterable[Job]) -> tuple[_End, ...]:
        lives = (one.attempts[-1] for one in jobs if one.attempts)
        return tuple(end for one in lives if one.reason is None for end in self._own(one))

    @cached_property
    def _of_gang(self) -> tuple[_End, ...]:
        run, jobs = self._draft.run, self._draft.jobs
        ranks = (one for one in jobs if one.attempts and one.attempts[-1].rank is not None)
        return self._of_all(one for one in ranks if in_gang_group(run, one))

    @cached_property
    def _of_run(self) -> float | None:
        draft = self._draft
        return limits.max_duration_at(draft.run, draft.all_jobs, draft.now)


def _has_one(attempt: Attempt, end: _End) -> bool:
    return any(
        one.cause is end.cause and end.at <= one.ends_at + _SAME_END for one in attempt.signalled
    )


def _has_just_ended(attempt: Attempt) -> bool:
    """Return whether the attempt has an end that nothing announced, and its job may still run.

    A signal that was due and that the runner did not get in time counts for nothing.
    """
    if attempt.status is not AttemptStatus.TERMINATING or attempt.reason not in FORESEEABLE:
        return False
    if attempt.running_at is None or attempt.seen.runner_exited or attempt.seen.container_gone:
        return False
    return not any(
        one.cause is attempt.reason and (one.sent or _began_the_grace(attempt, one))
        for one in attempt.signalled
    )


def _note(draft: Draft, attempt: Attempt, end: _End, signal: EndSignal) -> Attempt:
    earlier = next((one for one in attempt.signalled if one.cause is end.cause), None)
    # One that the runner may have, although it did not say so yet, keeps its number.
    number = 0 if earlier is None else earlier.number + earlier.sent
    noted = SignalledEnd(cause=end.cause, number=number, at=draft.now, ends_at=end.at)
    others = tuple(one for one in attempt.signalled if one.cause is not end.cause)
    draft.record(
        EventKind.SIGNAL,
        "signal",
        attempt=attempt,
        to_status=signal.name,
        reason=end.cause,
        message=f"its stop signal comes in {max(0.0, end.at - draft.now):.0f} s",
    )
    return draft.change_attempt(attempt, signalled=(*others, noted))
