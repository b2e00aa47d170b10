"""The sums of days: what costs tell once records and runs are forgotten."""

from __future__ import annotations

from typing import Any, cast

import pytest

from controller.clock import iso, time_of_day
from controller.lifecycle.machines.cost import DayCosts, times_between
from controller.lifecycle.machines.orphans import KnownOrphan, OrphanMachines
from controller.service.machines.costs import CostService
from controller.store.accounts import User
from controller.store.base import COSTS_SECONDS, MACHINES_SECONDS
from fairlead.model.costs import CostKey, CostPeriod, CostRow
from fairlead.model.spec import Role
from tests.doubles.clock import ManualClock
from tests.doubles.memory_store import MemoryStore
from tests.unit.machines.parts import known_orphan, machine, offer

HOUR, DAY = 3600.0, 86400.0
MIDNIGHT = 1_700_006_400.0  # 2023-11-15T00:00Z
ADMIN = User(name="root", role=Role.ADMIN, created_at=0.0)
ADA = User(name="ada", role=Role.USER, created_at=0.0)


class Installation:
    """A controller with these machines, of which none was a node."""

    def __init__(self, *machines: Any) -> None:
        self.clock = ManualClock(MIDNIGHT)
        self.store = MemoryStore(now=self.clock.now)
        self.runs: dict[str, Any] = {}
        self.machines = list(machines)
        self.orphans: list[KnownOrphan] = []
        records = cast(Any, self)
        self.costs = CostService(records, records, self.store, self.clock)

    def all(self, *, with_ended: bool = False) -> list[Any]:
        return self.machines

    def paid_orphans(
        self, *, with_ended: bool = False, found_after: float = float("-inf")
    ) -> list[Any]:
        found = [one for one in self.orphans if one.found_at > found_after]
        return list(OrphanMachines().of(found, self.clock.now()))

    def forget_records(self) -> None:
        """What a restart does with machines that ended long ago."""
        before = self.clock.now() - MACHINES_SECONDS
        self.machines = [
            one for one in self.machines if one.terminated_at is None or one.terminated_at > before
        ]

    async def rows(self, days: float, user: User = ADMIN, **more: Any) -> list[CostRow]:
        by = more.pop("by", (CostKey.USER,))
        return await self.costs.costs(by, seconds=days * DAY, user=user, **more)


@pytest.fixture
async def installation() -> Installation:
    """Two days ago ada's run had a machine from 18:00 to 06:00, for 2 an hour, and bob's for 1."""
    since = {"ordered_at": MIDNIGHT - 30 * HOUR, "terminated_at": MIDNIGHT - 18 * HOUR}
    made = Installation(
        machine("a", offer=offer(price=2.0), user="ada", run_id="r1", **since),
        machine("b", offer=offer(price=1.0), user="bob", run_id="r2", **since),
    )
    await made.store.open()
    return made


async def test_costs_are_told_for_a_year_although_the_records_are_forgotten(
    installation: Installation,
) -> None:
    before = await installation.rows(30)
    assert [(one.user, one.hours, one.cost) for one in before] == [
        ("ada", 12.0, 24.0),
        ("bob", 12.0, 12.0),
    ]
    installation.clock.time += 2 * HOUR
    await installation.costs.settle()
    assert await installation.rows(30) == before
    installation.clock.time += 390 * DAY
    installation.forget_records()
    assert installation.machines == []
    assert await installation.rows(30) == []
    assert await installation.rows(400) == before
    assert [one.cost for one in await installation.rows(400, ADA)] == [24.0]
    (of_run,) = await installation.rows(400, ADA, by=(CostKey.RUN, CostKey.FLEET))
    assert (of_run.run, of_run.fleet) == ("r1", "burst")


async def test_days_and_months_of_kept_sums_are_together_the_whole(
    installation: Installation,
) -> None:
    installation.clock.time += 2 * HOUR
    await installation.costs.settle()
    installation.clock.time += 100 * DAY
    installation.forget_records()
    days = await installation.rows(200, ADA, per=CostPeriod.DAY)
    assert [(one.day, one.cost) for one in days] == [("2023-11-13", 12.0), ("2023-11-14", 12.0)]
    months = await installation.rows(200, ADA, per=CostPeriod.MONTH)
    assert [(one.month, one.cost) for one in months] == [("2023-11", 24.0)]


async def test_a_day_is_kept_once_and_only_when_it_has_been_over_for_an_hour(
    installation: Installation,
) -> None:
    live = machine("c", offer=offer(price=1.0), user="ada", ordered_at=MIDNIGHT - HOUR)
    installation.machines.append(live)
    installation.clock.time += HOUR - 1.0
    await installation.costs.settle()
    kept = await installation.store.costs_of_days("2023-11-13")
    assert [one.day for one in kept] == ["2023-11-13"]
    installation.clock.time += 1.0
    await installation.costs.settle()
    first = await installation.store.costs_of_days("2023-11-13")
    assert [one.day for one in first] == ["2023-11-13", "2023-11-14"]
    assert sum(one.cost for one in first[1].costs) == 12.0 + 6.0 + 1.0
    # What is kept is not summed up again, from records of which some are forgotten.
    installation.machines = [live]
    await installation.costs.settle()
    assert await installation.store.costs_of_days("2023-11-13") == first


async def test_a_part_of_a_day_is_told_from_its_records_while_they_are_there(
    installation: Installation,
) -> None:
    installation.clock.time += 2 * HOUR
    await installation.costs.settle()
    # From 20:00 of the first day: its last four hours, and six of the next day.
    since = (installation.clock.now() - (MIDNIGHT - 28 * HOUR)) / DAY
    assert [one.hours for one in await installation.rows(since, ADA)] == [10.0]
    installation.clock.time += 60 * DAY
    installation.forget_records()
    assert [one.hours for one in await installation.rows(since + 60, ADA)] == [12.0]


async def test_sums_are_removed_after_their_time_and_a_controller_without_machines_keeps_none(
    installation: Installation,
) -> None:
    installation.clock.time += 2 * HOUR
    await installation.costs.settle()
    assert await installation.store.costs_of_days("") != []
    installation.clock.time += COSTS_SECONDS + DAY
    installation.machines = []
    await installation.costs.settle()
    assert {one.day[:4] for one in await installation.store.costs_of_days("")} == {"2023"}
    installation.machines = [machine("c", ordered_at=installation.clock.now())]
    await installation.costs.settle()
    assert {one.day[:4] for one in await installation.store.costs_of_days("")} == {"2024"}


async def test_days_that_a_wrong_clock_summed_up_count_only_once_they_are_over(
    installation: Installation,
) -> None:
    installation.clock.time -= 26 * HOUR
    before = await installation.rows(30)
    assert [one.hours for one in before] == [4.0, 4.0]
    installation.clock.time += 40 * HOUR
    await installation.costs.settle()
    installation.clock.time -= 40 * HOUR
    assert await installation.rows(30) == before


def test_what_no_whole_day_has_is_asked_of_the_records() -> None:
    days = [time_of_day(day) for day in ("2023-11-15", "2023-11-16", "2023-11-18")]
    assert iso(days[0]) == "2023-11-15T00:00:00.000Z"
    start, end = MIDNIGHT - HOUR, MIDNIGHT + 4 * DAY + HOUR
    assert times_between(start, end, days) == [
        (start, MIDNIGHT),
        (MIDNIGHT + 2 * DAY, MIDNIGHT + 3 * DAY),
        (MIDNIGHT + 4 * DAY, end),
    ]
    assert times_between(MIDNIGHT + HOUR, MIDNIGHT + DAY, days[:1]) == []
    assert times_between(start, end, []) == [(start, end)]


def test_a_day_without_costs_is_kept_as_one() -> None:
    assert DayCosts(day="2023-11-15").costs == ()


async def test_an_orphan_that_is_found_days_after_it_was_made_costs_on_each_of_them(
    installation: Installation,
) -> None:
    # As after a restore from backup: the sums of the days before it are kept at the start.
    installation.clock.time += 2 * HOUR
    await installation.costs.settle()
    made_at = MIDNIGHT - 3 * DAY
    late = known_orphan(
        costs_since=made_at, created_at=made_at, found_at=installation.clock.now(), fleet="lost"
    )
    installation.orphans = [late]
    by = (CostKey.FLEET,)
    for _ in range(2):
        (row,) = [one for one in await installation.rows(30, by=by) if one.fleet == "lost"]
        assert (row.hours, row.cost) == pytest.approx((74.0, 74.0))
        days = await installation.rows(30, by=by, per=CostPeriod.DAY)
        assert [one.cost for one in days if one.fleet == "lost"] == pytest.approx(
            [24.0, 24.0, 24.0, 2.0]
        )
        # What is summed up later is told once, too.
        await installation.costs.settle()
    installation.clock.time += DAY
    await installation.costs.settle()
    (row,) = [one for one in await installation.rows(30, by=by) if one.fleet == "lost"]
    assert row.cost == pytest.approx(98.0)
