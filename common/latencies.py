"""The histogram of latencies, in which gateways tell the controller how long requests took."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

BOUNDS = tuple(0.001 * 1.25**power for power in range(60))
"""Seconds: the upper ends of the histogram's parts, from 1 ms to 9 min."""


def latency_part(seconds: float) -> int:
    """Return the part of the histogram to which this duration belongs."""
    return bisect.bisect_left(BOUNDS, seconds)


def quantile(latencies: Sequence[int], part: float) -> float | None:
    """Return the seconds within which this part of all requests ended; None: there were none."""
    total = sum(latencies)
    if not total:
        return None
    rest = part * total
    for number, count in enumerate(latencies):
        if count and rest <= count:
            upper = BOUNDS[min(number, len(BOUNDS) - 1)]
            lower = BOUNDS[number - 1] if number else 0.0
            return lower + (upper - lower) * rest / count
        rest -= count
    return BOUNDS[-1]
