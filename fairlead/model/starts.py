"""The starts of one attempt's job after its first (docs/rules.md 2.15)."""

from __future__ import annotations

import msgspec


class Starts(msgspec.Struct, frozen=True, kw_only=True):
    """Counted from 1. `asked`: the last one that a user asked for; `begun`: the last one of which
    the runner said that it has begun. `refused`: why the one that was asked for never will."""

    asked: int = 0
    begun: int = 0
    refused: str | None = None

    @property
    def is_owed(self) -> bool:
        """Whether the runner must still be asked."""
        return self.begun < self.asked and self.refused is None
