"""The starts of a simulated container's job after its first, as the runner makes them
(docs/rules.md 2.15)."""

from __future__ import annotations

from fairlead.wire.runner import AgainRequest, ExitReason, ExitRecord, StartEnd
from runner.client import RunnerError
from tests.simulation.script import Script, script_from

GRACE = 10.0
"""Seconds that a job has to stop when it starts again."""


class Starts:
    """`waits`: how the last start ended while the container only waits for the next one. It stays
    when the container is killed."""

    def __init__(self) -> None:
        self.waits: ExitRecord | None = None
        self.begun = 0
        self.closed = False
        self._accepted = 0
        self._due: AgainRequest | None = None

    @property
    def is_due(self) -> bool:
        return self._due is not None and not self.closed

    def offer(self, request: AgainRequest) -> bool:
        """Return whether this start is new and due. Raises RunnerError."""
        if request.number <= self._accepted:
            return False
        self.require_open()
        self._accepted, self._due = request.number, request
        return True

    def require_open(self) -> None:
        if self.closed:
            raise RunnerError("ended", "this runner's job has ended", 409)

    def wait(self, reason: ExitReason, exit_code: int | None, at: float) -> StartEnd:
        self.waits = ExitRecord(reason=reason, exit_code=exit_code, finished_at=at, log_end=0)
        return StartEnd(number=self.begun, at=at, reason=reason, exit_code=exit_code)

    def take(self, task_id: str) -> Script:
        """Begin the start that is due, and return what its job does."""
        assert self._due is not None
        due, self._due, self.waits = self._due, None, None
        assert due.number > self.begun
        self.begun = due.number
        return script_from(due.submission.job.env).of(f"{task_id} {due.number}")
