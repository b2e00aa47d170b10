"""Who used what of a machine's price: a pure function of its record and the jobs that were on it.

While jobs are on a machine they share its price equally. While none is, the run pays for which the
machine was bought, and nobody for a machine that its fleet keeps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

import msgspec

from controller.lifecycle.machines.model import Machine

_HOUR = 3600.0


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


def shares(machine: Machine, stays: Iterable[Stay], start: float, end: float) -> list[Share]:
    """Return what each run pays for the machine between two times; together it is its cost."""
    began = max(start, machine.ordered_at)
    ended = end if machine.terminated_at is None else min(end, machine.terminated_at)
    if ended <= began:
        return []
    # Thousands of jobs may have been there, so the times are gone through once.
    changes: dict[float, Counter[str]] = {began: Counter(), ended: Counter()}
    for stay in stays:
        first = max(began, stay.start)
        last = ended if stay.end is None else min(ended, stay.end)
        if first < last:
            changes.setdefault(first, Counter())[stay.run_id] += 1
            changes.setdefault(last, Counter())[stay.run_id] -= 1
    there: Counter[str] = Counter()
    hours: dict[str | None, float] = {}
    for since, until in pairwise(sorted(changes)):
        there.update(changes[since])
        there = +there
        each = (until - since) / _HOUR / max(1, there.total())
        for run_id, jobs in there.items() or ((machine.run_id, 1),):
            hours[run_id] = hours.get(run_id, 0.0) + each * jobs
    return [
        Share(run_id=run_id, hours=part, cost=part * machine.offer.price)
        for run_id, part in hours.items()
    ]
