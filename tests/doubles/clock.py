"""A clock that stands still until a test moves it. The simulation has one of its own."""

from __future__ import annotations

NOW = 1_700_000_000.0


class ManualClock:
    """`time` is what it says; a test sets it."""

    def __init__(self, now: float = NOW) -> None:
        self.time = now

    def now(self) -> float:
        return self.time
