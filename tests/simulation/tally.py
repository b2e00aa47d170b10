"""What each commit of a large sweep must keep to, from the jobs that live: the others have ended
and were looked at when they did (docs/rules.md 11)."""

from __future__ import annotations

from collections.abc import Iterator

from controller.lifecycle.model import Job, RunState
from controller.lifecycle.sweeps.begin import MAX_QUEUED
from controller.lifecycle.sweeps.sets import by_set, counts, is_active, is_ending, status_of
from fairlead.model.reasons import Reason, RunReason
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES, AttemptStatus
from fairlead.model.sweep import SetStatus

MAX_SHOWN = 20


class Tally:
    """Follows one sweep, whose sets have one job each. `bad_luck`: the share of its attempts that
    fail."""

    def __init__(self, state: RunState) -> None:
        assert state.run.sweep is not None
        self.total = state.run.sweep.total
        self.bad_luck = 0.03
        self.violations: list[str] = []
        self.done: dict[int, str] = {}
        """By the set's number: the attempt that is done."""
        self.started = self.retried = self.failed = self.stopped = 0
        self.preempted = self.commits = 0
        self._numbers: dict[str, int] = {}
        """By a job's id: the number of its newest attempt."""
        self._active = 0

    def violated(self, text: str) -> None:
        if len(self.violations) < MAX_SHOWN and text not in self.violations:
            self.violations.append(text)

    def committed(self, after: RunState) -> None:
        self.commits += 1
        for text in (*self._miscounted(after), *self._begun_wrongly(after)):
            self.violated(text)

    def _miscounted(self, after: RunState) -> Iterator[str]:
        sweep, found = after.run.sweep, counts(after)
        assert sweep is not None
        together = found.waiting + found.active + found.done + found.failed + found.stopped
        if together != self.total:
            yield f"{together} of {self.total} sets are accounted for"
        limit = sweep.stop_after_failures
        if limit is not None and found.failed >= limit and not is_ending(after.run):
            yield f"it goes on after {found.failed} failures, and stop_after_failures is {limit}"
        # Those that come back, for example all of a node, may be more: they have begun before.
        firsts = (job.attempts[-1] for job in after.jobs if job.attempts[-1].number == 0)
        if sum(first.status is AttemptStatus.SUBMITTED for first in firsts) > MAX_QUEUED:
            yield "more sets have begun to wait for an allocation than may"

    def _begun_wrongly(self, after: RunState) -> Iterator[str]:
        sweep = after.run.sweep
        assert sweep is not None
        sets = by_set(after.jobs)
        active = sum(is_active(after.run, jobs) for jobs in sets.values())
        grown = False
        for job in after.jobs:
            newest, known = job.attempts[-1].number, self._numbers.get(job.id, -1)
            if newest > known:
                grown = True
                if job.replica in self.done:
                    yield f"set {job.replica} began again although it was done"
            self._numbers[job.id] = newest
            yield from self._ends(job)
        most = sweep.max_parallel
        if grown and most is not None and active > max(most, self._active):
            yield f"{active} sets are active, and max_parallel is {most}"
        self._active = active
        yield from (f"set {number} has two jobs" for number, jobs in sets.items() if len(jobs) > 1)

    def _ends(self, job: Job) -> Iterator[str]:
        live = [one for one in job.attempts if one.status not in FINAL_ATTEMPT_STATUSES]
        if len(live) > 1:
            yield f"set {job.replica} has two live attempts"
        for attempt in job.attempts:
            if attempt.reason is not Reason.DONE_BY_RUNNER:
                continue
            if self.done.setdefault(job.replica, attempt.id) != attempt.id:
                yield f"set {job.replica} is done twice"

    def ended(self, state: RunState) -> None:
        """Look at the whole, once its run has ended."""
        found = counts(state)
        self.failed, self.stopped = found.failed, found.stopped
        reasons = [attempt.reason for job in state.all_jobs for attempt in job.attempts]
        self.preempted = reasons.count(Reason.PREEMPTED)
        statuses = {
            number: status_of(state.run, jobs) for number, jobs in by_set(state.all_jobs).items()
        }
        done = {number for number, status in statuses.items() if status is SetStatus.DONE}
        if found.waiting or found.active:
            self.violated(f"the run has ended with {found}")
        if done != set(self.done) or len(done) != found.done:
            self.violated(f"{found.done} sets count as done, and {len(self.done)} jobs were done")
        if (state.run.reason is RunReason.ALL_JOBS_DONE) and found.failed:
            self.violated(f"the run is done with {found}")
