"""Who is placed first: LIFECYCLE.md section 6."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from controller.scheduling.units import Unit
from controller.scheduling.use import UseMeter

Order: TypeAlias = tuple[bool, int, tuple[int, int], int, bool, float, str, int, int]


def in_order(units: Iterable[Unit], use: UseMeter, now: float) -> list[Unit]:
    """First come first. The order is total: no two units are equal in it."""
    used: dict[str, tuple[int, int]] = {}

    def key(unit: Unit) -> Order:
        user = unit.run.user
        if user not in used:
            used[user] = use.used(user, now)
        return (
            not unit.is_replacement,
            unit.band,
            used[user],
            -unit.run.policy.priority,
            not unit.gang,
            unit.run.submitted_at,
            unit.run.id,
            unit.kind,
            unit.members[0].job.index,
        )

    return sorted(units, key=key)
