"""What must be true before the jobs of a run begin: what became of other runs, and the time.

Times are Unix seconds, durations seconds.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class When(StrEnum):
    """What must have become of a run before another one begins (docs/rules.md 4.17)."""

    DONE = "done"
    ENDED = "ended"
    FAILED = "failed"
    RUNNING = "running"
    """A job of it was RUNNING once."""


class SameJob(StrEnum):
    """The jobs of a predecessor that one job waits for."""

    ALL = "all"
    SAME = "same"
    """The one with its own number."""


class After(msgspec.Struct, frozen=True, kw_only=True):
    """A run that must come first, as its user wrote it."""

    run: str
    """Its name or id."""
    when: When = When.DONE
    job: SameJob = SameJob.ALL


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """A time, or a duration that begins with the submission; exactly one of them is given."""

    at: float | None = None
    within: float | None = None
    written: str = ""
    """As the user wrote it."""

    def after(self, submitted_at: float) -> float:
        """Return the time that is meant for a run of this submission."""
        return self.at if self.at is not None else submitted_at + (self.within or 0.0)

    def words(self) -> str:
        """Return it for people."""
        return f"at {self.written}" if self.at is not None else f"{self.written} after submission"
