"""Who used what of a machine's price: a pure function of its record and the jobs that were on it.

While jobs are on a machine they share its price equally. While none is, the run pays for which the
machine was bought, and nobody for a machine that its fleet keeps.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import msgspec

from controller.lifecycle.machines.model import Machine

_HOUR, DAY_SECONDS = 3600.0, 86400.0


class Stay(msgspec.Struct, frozen=True, kw_only=True):
    """The time of one job on a machine, as Unix seconds; `end` None: it is there."""

    run_id: str
    start: float
    end: float | None = None


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the machine's price. `run_id` None: no run pays for it. `hours`: of the machine."""

    run_id: str | None
    hours: float
    cost: float


class CostOfDay(msgspec.Struct, frozen=True, kw_only=True):
    """What a run, or a fleet for no run, has paid for machines on one day."""

    fleet: str
    user: str | None
    run: str | None
    """Its id."""
    run_name: str | None
    hours: float
    cost: float


class DayCosts(msgspec.Struct, frozen=True, kw_only=True):
    """All that machines have cost on one day of UTC, such as 2026-01-31."""

    day: str
    costs: tuple[CostOfDay, ...] = ()


def shares(machine: Machine, stays: Iterable[Stay], start: float, end: float) -> list[Share]:
    """Return what each run pays for the machine between two times; together it is its cost."""
    hours: dict[str | None, float] = {}
    for _, run_id, part in _parts(machine, stays, start, end):
        hours[run_id] = hours.get(run_id, 0.0) + part
    return [_share(machine, run_id, part) for run_id, part in hours.items()]


def shares_by(
    periods: Sequence[float], machine: Machine, stays: Iterable[Stay], start: float, end: float
) -> list[tuple[float, Share]]:
    """Return what each run pays for each period, with the Unix time at which the period begins; the
    periods of a run together are its share. `periods`: their beginnings, the first one not after
    `start`."""
    hours: dict[tuple[float, str | None], float] = {}
    for since, run_id, part in _parts(machine, stays, start, end, periods):
        key = (periods[bisect_right(periods, since) - 1], run_id)
        hours[key] = hours.get(key, 0.0) + part
    return [(began, _share(machine, run_id, part)) for (began, run_id), part in hours.items()]


def shares_of_hour(
    machine: Machine, stays: Iterable[Stay], now: float
) -> list[tuple[str | None, float]]:
    """Return what each run pays for an hour of the machine as it is now; together it is its
    price."""
    if not machine.is_live:
        return []
    there = Counter(
        stay.run_id for stay in stays if stay.start <= now and (stay.end is None or now < stay.end)
    )
    each = machine.offer.price / max(1, there.total())
    return [(run_id, each * jobs) for run_id, jobs in there.items() or ((machine.run_id, 1),)]


def day_began(time: float) -> float:
    """Return the start of the UTC day of this time (both Unix seconds)."""
    return time // DAY_SECONDS * DAY_SECONDS


def times_between(start: float, end: float, days: Iterable[float]) -> list[tuple[float, float]]:
    """Return the beginning and end of each part of a time that is in none of these whole days.
    `days`: their starts, the oldest first; the first one may begin before the time."""
    found, since = [], start
    for day in days:
        if since < day:
            found.append((since, day))
        since = max(since, day + DAY_SECONDS)
    return [*found, (since, end)] if since < end else found


def days_between(start: float, end: float) -> list[float]:
    """Return the starts of the UTC days that have a part between two times, the oldest first."""
    first = day_began(start)
    return [first + day * DAY_SECONDS for day in range(math.ceil((end - first) / DAY_SECONDS))]


def _share(machine: Machine, run_id: str | None, hours: float) -> Share:
    return Share(run_id=run_id, hours=hours, cost=hours * machine.offer.price)


def _parts(
    machine: Machine, stays: Iterable[Stay], start: float, end: float, cuts: Iterable[float] = ()
) -> Iterator[tuple[float, str | None, float]]:
    """Yield when a part of the machine's time began, who pays for it, and its hours. No part goes
    over a cut."""
    began = max(start, machine.ordered_at)
    ended = end if machine.terminated_at is None else min(end, machine.terminated_at)
    if ended <= began:
        return
    # Thousands of jobs may have been there, so the times are gone through once.
    changes: dict[float, Counter[str]] = {began: Counter(), ended: Counter()}
    for stay in stays:
        first = max(began, stay.start)
        last = ended if stay.end is None else min(ended, stay.end)
        if first < last:
            changes.setdefault(first, Counter())[stay.run_id] += 1
            changes.setdefault(last, Counter())[stay.run_id] -= 1
    for cut in cuts:
        if began < cut < ended:
            changes.setdefault(cut, Counter())
    there: Counter[str] = Counter()
    for since, until in pairwise(sorted(changes)):
        there.update(changes[since])
        there = +there
        each = (until - since) / _HOUR / max(1, there.total())
        for run_id, jobs in there.items() or ((machine.run_id, 1),):
            yield since, run_id, each * jobs
