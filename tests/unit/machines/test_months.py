"""The end of a month: what is spent begins again, and nothing that is due then waits for more."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from controller.clock import iso, month_began, months_between
from controller.lifecycle.inventory import Budget, Fleet, Spending
from controller.lifecycle.machines.cost import Stay, shares, shares_by
from controller.lifecycle.machines.market import Month, Purses
from controller.lifecycle.machines.model import Machine, MachineStatus, cost_between
from controller.lifecycle.renting_reasons import OverBudget
from controller.pipelines.renting.settings import Pinned, RentalSettings
from controller.service.machines.costs import budgets_of
from tests.doubles.clouds import MemoryCloud
from tests.doubles.memory_store import MemoryDatabase
from tests.unit.machines.looking import look, sentences, waiting
from tests.unit.machines.parts import fleet, machine, offer, shop
from tests.unit.machines.renting import Renting, quick, renting
from tests.unit.scheduling import parts

__all__ = ["quick"]

HOUR, DAY = 3600.0, 86400.0
MONTHS = (
    ((2023, 12), 31),
    ((2024, 2), 29),
    ((2026, 2), 28),
    ((2026, 3), 31),
    ((2026, 10), 31),
    ((2026, 11), 30),
    ((2100, 2), 28),
)
"""With a leap day and without, with a change of the clocks in Europe, and with the year's end."""


@pytest.fixture(params=["UTC", "Europe/Berlin", "Pacific/Kiritimati", "America/St_Johns"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The time zone of the controller's machine."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def settings() -> RentalSettings:
    return RentalSettings(
        installation="here",
        pin=lambda one: Pinned(host_key=one, token_digest=one),
        new_id=lambda: "id",
        month_of=month_began,
    )


def at(year: int, month: int, day: int = 1) -> float:
    return datetime(year, month, day, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(("month", "days"), MONTHS, ids=str)
def test_a_month_is_one_of_utc_from_its_first_to_its_last_moment(
    zone: str, month: tuple[int, int], days: int
) -> None:
    began, ends = at(*month), at(*month) + days * DAY
    for moment in (began, began + 1.0, began + 13 * DAY, ends - 1.0, ends - 0.001):
        assert settings().month(moment) == Month(began, ends, iso(ends)[:10])
    assert settings().month(began - 0.001).ends == began
    assert settings().month(ends).began == ends


@pytest.mark.parametrize(("month", "days"), MONTHS, ids=str)
def test_a_machine_that_runs_over_the_end_is_paid_by_both_months(
    zone: str, month: tuple[int, int], days: int
) -> None:
    ends = at(*month) + days * DAY
    one = machine(offer=offer(price=2.0), ordered_at=ends - 1.5 * HOUR, run_id="r1")
    now = ends + 2.5 * HOUR
    assert cost_between(one, settings().month(ends - 1.0).began, ends) == 3.0
    assert cost_between(one, settings().month(now).began, now) == 5.0
    stays = [Stay(run_id="r2", start=ends - 0.5 * HOUR, end=ends + 0.5 * HOUR)]
    start = ends - 40 * DAY
    found = shares_by(months_between(start, now), one, stays, start, now)
    assert sorted((began, share.run_id, share.cost) for began, share in found) == [
        (at(*month), "r1", 2.0),
        (at(*month), "r2", 1.0),
        (ends, "r1", 4.0),
        (ends, "r2", 1.0),
    ]
    whole = {share.run_id: share.cost for share in shares(one, stays, start, now)}
    assert whole == {"r1": 6.0, "r2": 2.0}


def test_budgets_are_shown_from_the_first_moment_of_the_month() -> None:
    ends = at(2026, 12)
    thrifty = fleet(budget=Budget(per_month=10.0))
    machines = [
        machine("m1", ordered_at=ends - 5 * HOUR),
        machine(
            "m2",
            status=MachineStatus.TERMINATED,
            ordered_at=ends - 4 * HOUR,
            terminated_at=ends - HOUR,
        ),
    ]

    def shown(now: float) -> list[tuple[float, float]]:
        found = budgets_of([thrifty], Spending(), machines, now)
        return [(one.hour_cost, one.month_cost) for one in found]

    ((_, spent),) = shown(ends - 1.0)
    assert 7.99 < spent < 8.0
    assert shown(ends) == [(1.0, 0.0)]
    assert shown(ends + HOUR) == [(1.0, 1.0)]


def reason(now: float, budget: float, *machines: Machine) -> OverBudget:
    found = look(
        waiting(1, fleet(budget=Budget(per_month=budget)), cpu=4.0),
        shop(offer(), month=settings().month(now)),
        *machines,
        now=now,
    )
    (told,) = {one for one in found.reasons.values() if isinstance(one, OverBudget)}
    assert {told.sentence()} == sentences(found)
    return told


@pytest.mark.parametrize(("month", "days"), MONTHS, ids=str)
def test_a_job_over_the_budget_of_the_month_is_told_when_the_next_one_begins(
    zone: str, month: tuple[int, int], days: int
) -> None:
    ends = at(*month) + days * DAY
    spent = machine(
        status=MachineStatus.TERMINATED, ordered_at=ends - 20 * HOUR, terminated_at=ends - 10 * HOUR
    )
    for now in (ends - 9 * HOUR, ends - 0.01):
        told = reason(now, 10.0, spent)
        day = datetime.fromtimestamp(ends, UTC).strftime("%Y-%m-%d")
        assert told.next_month == day
        assert told.sentence().endswith(f"; the next try is on {day} at 00:00:00 UTC")


def test_no_time_is_told_that_changes_nothing() -> None:
    now = at(2026, 11, 20)
    busy = machine(offer=offer(price=9.5), ordered_at=now - HOUR, status=MachineStatus.JOINED)
    # The next month begins with an hour of the machine that is there, which leaves no room.
    assert reason(now, 10.0, busy).next_month is None
    hourly = fleet(budget=Budget(per_hour=0.5))
    found = look(waiting(1, hourly, cpu=4.0), shop(offer(), month=settings().month(now)), now=now)
    (told,) = found.reasons.values()
    assert isinstance(told, OverBudget)
    assert (told.limit, told.next_month) == ("an hour", None)


@pytest.mark.parametrize(
    ("together", "also", "is_told"),
    [
        (Budget(per_month=10.0), "this installation may cost 10.00 a month", True),
        # The next month changes nothing of these.
        (Budget(per_hour=0.5), "this installation may cost 0.50 an hour", False),
        (Budget(per_month=0.5), "this installation may cost 0.50 a month", False),
    ],
    ids=str,
)
def test_the_next_try_is_that_of_all_limits_that_refuse(
    together: Budget, also: str, is_told: bool
) -> None:
    now = at(2026, 11, 20)
    spent = machine(
        status=MachineStatus.TERMINATED, ordered_at=now - 20 * HOUR, terminated_at=now - 10 * HOUR
    )
    market = shop(offer(), month=settings().month(now), spending=Spending(together=together))
    found = look(waiting(1, fleet(budget=Budget(per_month=10.0))), market, spent, now=now)
    (told,) = sentences(found)
    assert told.startswith("fleet burst may cost 10.00 a month; its machines cost 10.00, and")
    assert f"; {also}; its machines cost" in told
    assert told.endswith("; the next try is on 2026-12-01 at 00:00:00 UTC") is is_told


def test_a_fleet_at_its_most_names_the_budget_that_refuses_too() -> None:
    full = machine(status=MachineStatus.JOINED)
    spending = Spending(together=Budget(per_hour=1.5))
    found = look(waiting(1, fleet(max=1), cpu=4.0), shop(offer(), spending=spending), full)
    (told,) = sentences(found)
    assert told.startswith("fleet burst has its most machines (1); this installation may cost 1.50")


def test_it_is_known_when_what_is_live_will_have_used_up_a_budget() -> None:
    now = at(2026, 11, 20)
    live = machine(ordered_at=now - HOUR, user="ada")

    def used_up_at(
        *machines: Machine, of_fleet: float | None = None, spending: Spending | None = None
    ) -> float | None:
        mine = fleet(budget=Budget(per_month=of_fleet))
        month = settings().month(now)
        return Purses([mine], spending or Spending(), machines, now, month).used_up_at()

    of_user = Spending(each_user=Budget(per_month=2.0))
    of_all = Spending(together=Budget(per_month=1.5))
    assert used_up_at(live) is None
    assert used_up_at(live, of_fleet=3.0) == now + 2 * HOUR
    assert used_up_at(live, of_fleet=3.0, spending=of_user) == now + HOUR
    assert used_up_at(live, spending=of_all) == now + HOUR / 2
    assert used_up_at(live, of_fleet=1.0) is None  # It is used up already.
    assert used_up_at(of_fleet=3.0) is None


def wakes_at(lab: Renting) -> float:
    found = lab.rentals.wakes_at(lab.pipeline.nodes, lab.pipeline.fleets, lab.clock.now())
    assert found is not None
    return found


async def kept(lab: Renting) -> Machine:
    """Wait until the fleet has its kept machine as a node that nothing uses."""
    await lab.join()
    await lab.until(lambda: lab.only().idle_since is not None)
    return lab.only()


def keeping(per_month: float) -> Fleet:
    return fleet(min=1, idle_duration=60.0, budget=Budget(per_month=per_month))


async def test_a_kept_machine_ends_when_its_budget_is_used_up_although_nothing_happens() -> None:
    async with renting(MemoryCloud(offer()), keeping(3.0)) as lab:
        machine_ = await kept(lab)
        due = machine_.ordered_at + 3 * HOUR
        # Nothing else makes a turn: without this time the machine went on until something did.
        await lab.until(lambda: wakes_at(lab) > lab.clock.now() + HOUR)
        assert wakes_at(lab) == pytest.approx(due, abs=0.001)
        lab.clock.time = due + 1.0
        await lab.until(lambda: not lab.rentals.committed[machine_.id].is_live)
        assert len(lab.rentals.committed) == 1


async def test_what_a_fleet_keeps_is_ordered_in_the_second_in_which_the_month_begins() -> None:
    cloud, database = MemoryCloud(offer()), MemoryDatabase()
    async with renting(cloud, keeping(3.0), database) as lab:
        midnight = settings().month(lab.clock.now()).ends
        lab.clock.time = midnight - 4 * HOUR
        machine_ = await kept(lab)
        lab.clock.time = machine_.ordered_at + 3 * HOUR + 1.0
        await lab.until(lambda: not lab.rentals.committed[machine_.id].is_live)
        # Right before midnight something happens, after which no look follows for a minute.
        lab.clock.time = midnight - 5.0
        await lab.pipeline.save_fleet(keeping(3.0), "burst")
        await lab.until(lambda: lab.clock.now() > midnight - 3.0)
        assert len(lab.rentals.committed) == 1
        assert wakes_at(lab) == midnight
        lab.clock.time = midnight
        await lab.until(lambda: len(lab.rentals.committed) == 2)
        newest = max(one.ordered_at for one in lab.rentals.committed.values())
        assert midnight <= newest <= midnight + 1.0


async def test_a_clock_that_is_put_back_over_the_end_counts_the_former_month_again() -> None:
    cloud = MemoryCloud(offer())
    async with renting(cloud, fleet(budget=Budget(per_month=2.1))) as lab:
        midnight = settings().month(lab.clock.now()).ends
        lab.clock.time = midnight - 5400.0
        await lab.pipeline.admit(parts.run("first", cpu=4.0))
        await lab.join()
        lab.clock.time = midnight - 600.0
        second = parts.run("second", cpu=4.0)
        await lab.pipeline.admit(second)
        await lab.until(lambda: "burst may cost 2.10 a month" in lab.waits_for(second))
        lab.clock.time = midnight + 10.0
        await lab.until(lambda: len(lab.rentals.committed) == 2)
        lab.clock.time = midnight - 300.0
        third = parts.run("third", cpu=4.0)
        await lab.pipeline.admit(third)
        await lab.until(lambda: "burst may cost 2.10 a month" in lab.waits_for(third))
        assert len(lab.rentals.committed) == 2
