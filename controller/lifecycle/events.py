"""Events tell what happened to a run: one for each transition, with its cause.

`fairlead events` prints them in order. No decision reads them.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class EventKind(StrEnum):
    """The kinds of events."""

    RUN = "run"
    """The run's status changed."""
    ATTEMPT = "attempt"
    """An attempt's status changed, or the attempt was made (`from_status` None)."""
    ALLOCATION = "allocation"
    """An allocation's state changed, or the allocation was made (`from_status` None)."""
    LATER_REASON = "later_reason"
    """A reason came after the first one: it is recorded, not applied."""
    CONNECTION = "connection"
    """The attempt's node was `connected` or `disconnected`."""
    WAIT = "wait"
    """The job waits before its next attempt."""
    SWITCH = "switch"
    """A gang began its next incarnation. `from_status` and `to_status` are the numbers; the attempt
    is the one that caused the switch."""
    REQUEST = "request"
    """A user made a request that no status shows: suspend, resume, scale, abandon or interrupt.
    `to_status` is what holds since then."""
    OCCURRENCE = "occurrence"
    """An occurrence of a scheduled run `started`, was `skipped`, or got its final status."""
    TRAFFIC = "traffic"
    """A replica of a service is `registered` for requests, or `unregistered`."""
    SCALE = "scale"
    """A replica group shall have another number of replicas: `from_status` and `to_status`."""
    DEPLOYMENT = "deployment"
    """A service's deployment is `rolling`, `done`, `rolled_back` or `replaced`."""
    OUTPUTS = "outputs"
    """The job's outputs were `collected`, or are `lost`."""
    STORING = "storing"
    """The database `refused` the run's new state: the run stays as it was before."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a run. `cause` names the report, limit or rule that caused it; `at` is Unix
    seconds."""

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
