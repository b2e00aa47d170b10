"""The only source of time, calendars and fresh ids, so that simulation and tests can replace it."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Protocol

import msgspec
from cronsim import CronSim


class Clock(Protocol):
    """Tells the time."""

    def now(self) -> float:
        """Return Unix seconds."""


class SystemClock:
    def now(self) -> float:
        return time.time()


class Chance(msgspec.Struct, frozen=True):
    """The source of ids and jitter; a simulation makes its own from its seed."""

    new_id: Callable[[], str]
    """Returns 16 hex digits, never the same twice."""
    jitter: Callable[[], float]
    """Returns a number, uniform in [-1, 1]."""


def system_chance() -> Chance:
    return Chance(new_id=lambda: secrets.token_hex(8), jitter=lambda: random.uniform(-1.0, 1.0))


def next_trigger(expressions: Sequence[str], after: float) -> float | None:
    """Return the first time after `after` (both Unix seconds) at which any expression fires.

    None when none fires within 50 years. The expressions were checked when the run was submitted.
    """
    start = datetime.fromtimestamp(after, UTC)
    times = (next(CronSim(expression, start), None) for expression in expressions)
    return min((time.timestamp() for time in times if time is not None), default=None)
