"""The starts of one attempt's job after its first (docs/rules.md 2.15)."""

from __future__ import annotations

import msgspec

from fairlead.model.reasons import Reason

LEASE_SECONDS = 60.0
"""For how long a watcher counts as there after its last sign."""


class StartEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one start, after which its container waits. `number` 0: the attempt's first."""

    number: int
    at: float
    reason: Reason
    message: str | None = None
    exit_code: int | None = None


class Watcher(msgspec.Struct, frozen=True, kw_only=True):
    """A client that may ask for the next start; it counts as there until then."""

    id: str
    until: float


class Starts(msgspec.Struct, frozen=True, kw_only=True):
    """Counted from 1. `asked`: the last one that a user asked for; `begun`: the last one of which
    the runner said that it has begun. `refused`: why the one that was asked for never will.
    `ended`: the last one that ended. `watchers` None: no client ever told that it watches."""

    asked: int = 0
    begun: int = 0
    refused: str | None = None
    ended: StartEnd | None = None
    watchers: tuple[Watcher, ...] | None = None

    @property
    def is_owed(self) -> bool:
        """Whether the runner must still be asked."""
        return self.begun < self.asked and self.refused is None

    @property
    def result(self) -> StartEnd | None:
        """The end of the last start while the container only waits for the next; None: a start
        runs, or is owed."""
        ended = self.ended
        return None if ended is None or ended.number < self.begun or self.is_owed else ended

    @property
    def for_next_attempt(self) -> Starts | None:
        """What the job's next attempt knows from the start on: who watches."""
        return None if self.watchers is None else Starts(watchers=self.watchers)

    @property
    def watched_until(self) -> float | None:
        """When the last watcher is gone; None: nobody told, so the longest wait counts."""
        if self.watchers is None:
            return None
        return max((one.until for one in self.watchers), default=0.0)
