"""The story of a run: one event for each transition, with what caused it.

`fairlead events` tells these in order; nothing is ever decided from them.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class EventKind(StrEnum):
    RUN = "run"
    """The run's status changed."""
    ATTEMPT = "attempt"
    """An attempt's status changed, or it was made (`from_status` None)."""
    ALLOCATION = "allocation"
    """An allocation's state changed, or it was taken (`from_status` None)."""
    LATER_REASON = "later_reason"
    """A reason that came after the first: recorded, not applied."""
    CONNECTION = "connection"
    """The attempt's node was `connected` or `disconnected`."""
    WAIT = "wait"
    """The job waits before its next attempt."""
    SWITCH = "switch"
    """A gang began its next incarnation; `from_status` and `to_status` are the numbers, the attempt
    is the one that caused it."""
    REQUEST = "request"
    """A user asked for something that no status tells: suspend, resume, scale, abandon, interrupt;
    `to_status` is what holds since."""
    OCCURRENCE = "occurrence"
    """An execution of a scheduled run: `started`, `skipped`, or its final status."""
    STORING = "storing"
    """What became of the run was `refused` by the database: the run waits as it was before."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """`cause` names the report, limit or rule that made it happen; `at` is Unix seconds."""

    run_id: str
    job_id: str | None = None
    attempt_id: str | None = None
    at: float
    kind: EventKind
    from_status: str | None = None
    to_status: str | None = None
    reason: str | None = None
    message: str | None = None
    cause: str
