"""When cron expressions fire, in UTC: the one place that knows about calendars."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from cronsim import CronSim


def next_trigger(expressions: Sequence[str], after: float) -> float | None:
    """The first time after `after` (both Unix seconds) at which any expression fires; None when
    none does within 50 years. The expressions were checked when the run was submitted."""
    start = datetime.fromtimestamp(after, UTC)
    times = (next(CronSim(expression, start), None) for expression in expressions)
    return min((time.timestamp() for time in times if time is not None), default=None)
