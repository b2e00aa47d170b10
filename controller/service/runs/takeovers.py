"""Takeovers reserve a name for the client that replaces the run that has it."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from controller.clock import Clock

KEPT_SECONDS = 30.0
"""Seconds after the end of the old run in which the second request must come."""
Owner: TypeAlias = tuple[str, str | None]
"""A user, and the client key of the submission."""


class Takeovers:
    """The reserved names. They are in memory only: after a restart of the controller the name is
    free, or taken by the first that asks."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_name: dict[str, _Takeover] = {}

    def begin(self, name: str, owner: Owner, run_id: str) -> None:
        """Reserve the name for this owner; `run_id`: the run that has the name now."""
        self._by_name[name] = _Takeover(owner=owner, run_id=run_id)

    def end(self, name: str, owner: Owner) -> None:
        known = self._by_name.get(name)
        if known is not None and known.owner == owner:
            del self._by_name[name]

    def is_anothers(self, name: str, owner: Owner, live_id: str | None) -> bool:
        """Return whether the name is reserved for another owner; `live_id`: the run that has the
        name now, if any."""
        known = self._by_name.get(name)
        if known is None or known.owner == owner:
            return False
        now = self._clock.now()
        if known.free_at is None and known.run_id != live_id:
            known.free_at = now + KEPT_SECONDS
        if known.free_at is not None and now >= known.free_at:
            del self._by_name[name]
            return False
        return True


class _Takeover(msgspec.Struct):
    owner: Owner
    run_id: str
    free_at: float | None = None
    """Set when the old run is seen to have ended."""
