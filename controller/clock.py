"""The only source of time, calendars and fresh ids, so that simulation and tests can replace it."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol

import msgspec
from cronsim import CronSim

_LAST_MOMENT = 1e11
"""Unix seconds. A job may write times that no calendar has."""


def iso(time: float) -> str:
    """Return the time (Unix seconds) as ISO 8601, as users read it.

    By minutes, which many times share: a run of 300 jobs has some 5,000 times, and `isoformat` for
    each was 11 of the 27 ms of its page.
    """
    minute, rest = divmod(round(round(time, 3) * 1000), 60_000)
    second, millisecond = divmod(rest, 1000)
    return f"{_iso_minute(minute)}{second:02}.{millisecond:03}Z"


@lru_cache(maxsize=4096)
def _iso_minute(minute: int) -> str:
    moment = datetime.fromtimestamp(minute * 60, UTC).isoformat(timespec="minutes")
    return moment.replace("+00:00", ":")


def iso_of_job(time_ns: int) -> str:
    """Return a time that a job gave (nanoseconds since 1970) as ISO 8601; an impossible one as the
    nearest possible."""
    return iso(max(0.0, min(time_ns / 1e9, _LAST_MOMENT)))


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


_IDS_AT_ONCE = 256
_ID_DIGITS = 16


def system_chance() -> Chance:
    return Chance(new_id=_ids().__next__, jitter=lambda: random.uniform(-1.0, 1.0))


def _ids() -> Iterator[str]:
    """Yield ids of the kernel's random bytes.

    Many at once: a system call gives the interpreter's lock to another thread, and a run needs
    three ids (`./dev bench submissions`).
    """
    while True:
        digits = secrets.token_hex(_IDS_AT_ONCE * _ID_DIGITS // 2)
        for start in range(0, len(digits), _ID_DIGITS):
            yield digits[start : start + _ID_DIGITS]


def next_trigger(expressions: Sequence[str], after: float) -> float | None:
    """Return the first time after `after` (both Unix seconds) at which any expression fires.

    None when none fires within 50 years. The expressions were checked when the run was submitted.
    """
    start = datetime.fromtimestamp(after, UTC)
    times = (next(CronSim(expression, start), None) for expression in expressions)
    return min((time.timestamp() for time in times if time is not None), default=None)


def month_began(time: float) -> float:
    """Return the start of the UTC month of this time (both Unix seconds)."""
    month = datetime.fromtimestamp(time, UTC).replace(
        day=1, hour=0, minute=0, second=0, microsecond=0
    )
    return month.timestamp()


def time_of_day(day: str) -> float:
    """Return the start of a UTC day such as 2026-01-31 (Unix seconds)."""
    return datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()


def months_between(start: float, end: float) -> list[float]:
    """Return the starts of the UTC months that have a part between two times, the oldest first."""
    found = [month_began(end)]
    while found[0] > start:
        found.insert(0, month_began(found[0] - 1.0))
    return found
