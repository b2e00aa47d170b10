"""What `logs` reads of a run's document: its jobs, and their attempts.

All types of that document take longer to load than a short log takes to print.
"""

from __future__ import annotations

import msgspec

from fairlead.cli.errors import CliError
from fairlead.model.statuses import FINAL_RUN_STATUSES, RunStatus
from fairlead.summaries.job_names import job_name


class LoggedAttempt(msgspec.Struct, frozen=True):
    id: str
    number: int


class LoggedJob(msgspec.Struct, frozen=True):
    id: str
    index: int
    group: str
    cookie: int
    attempts: tuple[LoggedAttempt, ...]


class LoggedSweep(msgspec.Struct, frozen=True):
    """That there is one."""


class LoggedRun(msgspec.Struct, frozen=True):
    id: str
    name: str
    status: RunStatus
    jobs: tuple[LoggedJob, ...]
    sweep: LoggedSweep | None = None

    @property
    def is_over(self) -> bool:
        return self.status in FINAL_RUN_STATUSES

    def job(self, key: str | None) -> LoggedJob:
        """Return the job with this id, index or GROUP/COOKIE; None: the first. Raises CliError."""
        for job in self.jobs:
            if key is None or key in (job.id, str(job.index), job_name(job)):
                return job
        raise CliError(f"--job: {self.name} has no job {key!r}")

    def attempt(self, job: str | None, attempt: str | None) -> str:
        """Return the attempt's id, so that a follower that reconnects stays with that attempt.
        Raises CliError."""
        attempts = self.job(job).attempts
        if attempt is None and attempts:
            return attempts[-1].id
        for one in attempts:
            if attempt in (one.id, str(one.number)):
                return one.id
        raise CliError(f"--attempt: {self.name} has no attempt {attempt or 'yet'}")

    def is_past(self, job: str | None, attempt: str | None) -> bool:
        """Return whether the attempt is older than the recent ones, so that its log is complete.
        Raises CliError."""
        attempts = self.job(job).attempts
        if attempt is None or not attempt.isdecimal() or not attempts:
            return False
        return int(attempt) < attempts[0].number
