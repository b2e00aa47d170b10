"""Who pays for a machine: the jobs that are on it, or the run that it was bought for."""

from __future__ import annotations

import random
from datetime import datetime

import pytest

from controller.clock import iso, months_between
from controller.lifecycle.machines.cost import (
    Stay,
    day_began,
    days_between,
    shares,
    shares_by,
    shares_of_hour,
)
from controller.lifecycle.machines.model import Machine, MachineStatus, cost_between
from tests.unit.machines.parts import NOW, machine, offer

HOUR = 3600.0


def paid(one: Machine, *stays: Stay, start: float = 0.0, hours: float = 4.0) -> dict[str, float]:
    found = shares(one, stays, start, NOW + hours * HOUR)
    total = cost_between(one, start, NOW + hours * HOUR)
    assert sum(share.cost for share in found) == pytest.approx(total)
    return {share.run_id or "-": round(share.cost, 6) for share in found}


def stay(run_id: str, start: float, end: float | None = None) -> Stay:
    until = None if end is None else NOW + end * HOUR
    return Stay(run_id=run_id, start=NOW + start * HOUR, end=until)


BOUGHT = machine(offer=offer(price=6.0), run_id="buyer", user="ada")


def test_the_run_that_a_machine_was_bought_for_pays_while_it_is_idle() -> None:
    assert paid(BOUGHT) == {"buyer": 24.0}
    assert paid(BOUGHT, stay("other", 1.0, 2.0)) == {"buyer": 18.0, "other": 6.0}


def test_nobody_pays_for_a_machine_that_its_fleet_keeps() -> None:
    assert paid(machine(offer=offer(price=1.0))) == {"-": 4.0}


def test_jobs_that_are_there_together_share_the_price() -> None:
    found = paid(BOUGHT, stay("a", 0.0, 2.0), stay("b", 1.0), stay("b", 1.0, 2.0))
    assert found == {"a": 8.0, "b": 16.0}


def test_only_the_asked_time_counts_and_no_time_after_the_end() -> None:
    assert paid(BOUGHT, stay("a", 0.0), start=NOW + 3 * HOUR) == {"a": 6.0}
    ended = machine(offer=offer(price=6.0), run_id="buyer", terminated_at=NOW + HOUR)
    assert paid(ended, stay("a", 0.5)) == {"buyer": 3.0, "a": 3.0}


def test_an_order_that_was_refused_costs_nothing() -> None:
    assert paid(machine(run_id="buyer", terminated_at=NOW)) == {}


def days(one: Machine, *stays: Stay, start: float, end: float) -> dict[tuple[str, str], float]:
    """Return what each day costs each run, after a look whether it is the cost of the whole."""
    found = shares_by(days_between(start, end), one, stays, start, end)
    whole = {share.run_id: share.cost for share in shares(one, stays, start, end)}
    for run_id, cost in whole.items():
        of_days = sum(share.cost for _, share in found if share.run_id == run_id)
        assert of_days == pytest.approx(cost)
    assert sum(share.cost for _, share in found) == pytest.approx(cost_between(one, start, end))
    return {(iso(day)[:10], share.run_id or "-"): round(share.cost, 6) for day, share in found}


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_a_machine_that_ran_over_midnight_of_utc_is_split() -> None:
    ordered, ended = at("2026-01-30T22:00Z"), at("2026-02-01T01:00Z")
    one = machine(offer=offer(price=6.0), run_id="r", ordered_at=ordered, terminated_at=ended)
    later = Stay(run_id="other", start=at("2026-01-31T23:00Z"))
    assert days(one, later, start=0.0, end=at("2026-03-01T00:00Z")) == {
        ("2026-01-30", "r"): 12.0,
        ("2026-01-31", "r"): 138.0,
        ("2026-01-31", "other"): 6.0,
        ("2026-02-01", "other"): 6.0,
    }


def test_a_machine_that_still_runs_counts_until_now_and_from_the_asked_time() -> None:
    one = machine(offer=offer(price=2.0), ordered_at=at("2026-01-01T00:00Z"))
    assert days(one, start=at("2026-01-30T12:00Z"), end=at("2026-02-01T00:00Z")) == {
        ("2026-01-30", "-"): 24.0,
        ("2026-01-31", "-"): 48.0,
    }


def test_each_day_has_24_hours_where_clocks_change() -> None:
    """In Berlin, 2026-03-29 has 23 hours, and 2026-10-25 has 25."""
    for day in ("2026-03-29", "2026-10-25"):
        start = at(f"{day}T00:00Z")
        assert day_began(start + 23.9 * HOUR) == start
        one = machine(offer=offer(price=1.0), ordered_at=start)
        assert days(one, start=start, end=start + 24 * HOUR) == {(day, "-"): 24.0}


def test_a_machine_that_ran_over_the_end_of_a_month_is_split() -> None:
    ordered, ended = at("2025-12-31T22:00Z"), at("2026-02-01T01:00Z")
    one = machine(offer=offer(price=1.0), run_id="r", ordered_at=ordered, terminated_at=ended)
    start, end = at("2025-12-31T23:00Z"), at("2026-02-15T00:00Z")
    months = months_between(start, end)
    assert [iso(month)[:10] for month in months] == ["2025-12-01", "2026-01-01", "2026-02-01"]
    found = shares_by(months, one, [], start, end)
    assert [(iso(month)[:7], share.cost) for month, share in found] == [
        ("2025-12", 1.0),
        ("2026-01", 744.0),
        ("2026-02", 1.0),
    ]


def test_no_time_has_no_days() -> None:
    assert days(machine(terminated_at=NOW), start=0.0, end=NOW + HOUR) == {}
    assert days_between(NOW, NOW) == [day_began(NOW)]
    midnight = day_began(NOW)
    assert days_between(midnight, midnight) == []


@pytest.mark.parametrize("seed", range(50))
def test_the_days_together_cost_what_the_whole_time_costs(seed: int) -> None:
    chance = random.Random(seed)
    ended = NOW + chance.uniform(0.0, 900.0) * HOUR
    one = machine(
        offer=offer(price=chance.uniform(0.01, 90.0)),
        run_id="buyer",
        terminated_at=chance.choice([None, ended]),
    )
    stays = [
        stay(f"r{chance.randrange(4)}", begin, chance.choice([None, begin + chance.uniform(0, 99)]))
        for begin in (chance.uniform(-5.0, 900.0) for _ in range(chance.randrange(30)))
    ]
    start = NOW + chance.uniform(-100.0, 100.0) * HOUR
    end = NOW + 840 * HOUR
    total = sum(days(one, *stays, start=start, end=end).values())
    assert total == pytest.approx(cost_between(one, start, end), abs=1e-3)


def test_the_jobs_that_are_there_now_share_the_price_of_an_hour() -> None:
    now = NOW + 2 * HOUR
    assert shares_of_hour(BOUGHT, [stay("old", 0.0, 1.0)], now) == [("buyer", 6.0)]
    there = [stay("a", 0.0), stay("b", 1.0), stay("b", 1.0, 3.0), stay("later", 4.0)]
    assert shares_of_hour(BOUGHT, there, now) == [("a", 2.0), ("b", 4.0)]
    ended = machine(status=MachineStatus.TERMINATED, terminated_at=now)
    assert shares_of_hour(ended, [stay("a", 0.0)], now) == []
