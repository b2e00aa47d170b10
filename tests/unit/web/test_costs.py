"""The page of what rented machines have cost: its amounts, its words and its rights."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

import msgspec
import pytest

from controller.clock import iso
from controller.lifecycle.inventory import Budget, Spending
from controller.lifecycle.machines.model import MachineStatus
from controller.lifecycle.model import Attempt
from controller.scheduling.index import CapacityIndex
from controller.service.machines.costs import budgets_of
from controller.web.pages.costs import budget_row, cost_periods
from fairlead.model.costs import CostKey, CostRow
from tests.unit.api.conftest import Controller
from tests.unit.machines.parts import NOW, fleet, known_orphan, machine, offer, rentals_of
from tests.unit.web.conftest import Browser

XSS = "<img src=x onerror=alert(1)>"
HOUR = 3600.0


def row(day: str, fleet: str, cost: float) -> CostRow:
    return CostRow(user=None, fleet=fleet, run=None, run_name=None, hours=1.0, cost=cost, day=day)


def test_days_without_costs_are_there_and_bars_stand_upon_each_other() -> None:
    rows = [row("2026-01-01", "a", 1.0), row("2026-01-03", "a", 3.0), row("2026-01-03", "b", 1.0)]
    found = cost_periods(rows, CostKey.FLEET, ["2026-01-01", "2026-01-02", "2026-01-03"])
    assert found.groups == ("a", "b")
    assert [(one.period, one.amounts, one.total) for one in found.bars] == [
        ("2026-01-01", ("1.00", "0.00"), "1.00"),
        ("2026-01-02", ("0.00", "0.00"), "0.00"),
        ("2026-01-03", ("3.00", "1.00"), "4.00"),
    ]
    assert (found.sums, found.total, found.highest) == (("4.00", "1.00"), "5.00", "4.00")
    assert [(part.y, part.height) for part in found.bars[2].parts] == [(30.0, 90.0), (0.0, 30.0)]


def test_the_cheap_groups_are_one_column() -> None:
    rows = [row("2026-01-01", f"f{number}", 10.0 - number) for number in range(8)]
    found = cost_periods(rows, CostKey.FLEET, [])
    assert found.groups == ("f0", "f1", "f2", "f3", "f4", "others")
    assert found.sums[-1] == "12.00"
    assert found.total == "52.00"


def test_no_costs_have_no_bars() -> None:
    found = cost_periods([], CostKey.RUN, ["2026-01-01"])
    assert (found.total, found.groups, found.bars[0].parts) == ("0.00", (), ())


def test_a_budget_says_what_is_used_and_what_remains() -> None:
    """The machines of a month that has ended no longer count for it."""
    month = 1_698_796_800.0  # 2023-11-01T00:00Z
    old = machine(
        "old",
        user="ada",
        status=MachineStatus.TERMINATED,
        ordered_at=month - 5 * HOUR,
        terminated_at=month + HOUR,
    )
    live = machine("live", user="bob", offer=offer(price=2.0), ordered_at=NOW - 3 * HOUR)
    spending = Spending(
        together=Budget(per_hour=10.0, per_month=5.0), each_user=Budget(per_month=50.0)
    )
    fleets = [fleet(budget=Budget(per_hour=1.5)), fleet("other")]
    found = [budget_row(one) for one in budgets_of(fleets, spending, [old, live], NOW)]
    assert [msgspec.structs.astuple(one) for one in found] == [
        ("all machines", "2.00 of 10.00", "8.00", "7.00 of 5.00", "0.00"),
        ("fleet burst", "2.00 of 1.50", "0.00", "7.00, no limit", ""),
        ("user ada", "0.00, no limit", "", "1.00 of 50.00", "49.00"),
        ("user bob", "2.00, no limit", "", "6.00 of 50.00", "44.00"),
    ]


async def test_the_page_shows_a_user_his_own_costs_and_escapes_names(
    admin: Browser, ada: Browser, controller: Controller
) -> None:
    assert 'href="/dashboard/cost"' not in await (await admin.open("/dashboard/runs")).text()
    assert "Nothing was spent" in await (await admin.open("/dashboard/cost")).text()
    now = controller.service.clock.now()
    ended = {
        "ordered_at": now - HOUR,
        "terminated_at": now,
        "status": MachineStatus.TERMINATED,
    }
    own, other = {"run_id": "r1", "user": "ada"}, {"run_id": "r2", "user": XSS}
    controller.pipeline.rentals = rentals_of(
        CapacityIndex(),
        machine("m1", offer=offer(price=2.0), **own, **ended),
        machine("m2", offer=offer(price=40.0), **other, **ended),
        machine("m3", offer=offer(price=0.01), ordered_at=now, **own),
        machine("m4", offer=offer(price=0.02), ordered_at=now, **other),
    )
    controller.pipeline.fleets["burst"] = fleet(budget=Budget(per_hour=3.0))
    assert 'href="/dashboard/cost"' in await (await admin.open("/dashboard/runs")).text()

    seen_by_admin = await (await admin.open("/dashboard/cost?by=user")).text()
    seen_by_ada = await (await ada.open("/dashboard/cost?by=user")).text()

    assert "0.03 an hour now, 42.00 in the last 30 days" in seen_by_admin
    assert "&lt;img src=x" in seen_by_admin
    assert XSS not in seen_by_admin
    assert "fleet burst" in seen_by_admin
    assert "0.03 of 3.00" in seen_by_admin
    assert "0.01 an hour now, 2.00 in the last 30 days" in seen_by_ada
    assert "40.00" not in seen_by_ada
    assert "fleet burst" not in seen_by_ada
    assert "img src=x" not in seen_by_ada
    assert (await admin.open("/dashboard/cost?by=team")).status == 400


async def test_the_page_shows_months_and_follows_changes(
    admin: Browser, controller: Controller
) -> None:
    now = controller.service.clock.now()
    controller.pipeline.rentals = rentals_of(
        CapacityIndex(), machine("m1", offer=offer(price=2.0), ordered_at=now - HOUR)
    )
    seen = await (await admin.open("/dashboard/cost?per=month")).text()
    assert "Each month" in seen
    assert f">{iso(now)[:7]}<" in seen
    # The same month of the last year is there, too, from its first day.
    assert f">{int(iso(now)[:4]) - 1}{iso(now)[4:7]}<" in seen
    assert "in the last 13 months" in seen
    assert 'data-live="any" hx-get="/dashboard/cost?per=month"' in seen
    assert (await admin.open("/dashboard/cost?per=year")).status == 400


async def test_the_page_shows_admins_what_machines_without_a_record_cost(
    admin: Browser, controller: Controller
) -> None:
    began = time.time() - HOUR
    orphans = [
        known_orphan(costs_since=began, price=0.25),
        known_orphan(id="o2", instance_id="i-2", costs_since=began, price=None),
    ]
    controller.pipeline.rentals = rentals_of(CapacityIndex(), orphans=orphans)
    shown = await admin.fragment("/dashboard/cost", "costs")
    assert "2 machines without a record are among these, 0.25 an hour; the price of 1 is" in shown
    assert "0.25 an hour now" in shown
    controller.pipeline.rentals = rentals_of(CapacityIndex())
    assert "without a record" not in await admin.fragment("/dashboard/cost", "costs")


async def test_the_jobs_of_all_machines_are_one_question(
    admin: Browser, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = controller.service.clock.now()
    some = [machine(f"m{one}", ordered_at=now, joined_at=now) for one in range(50)]
    controller.pipeline.rentals = rentals_of(CapacityIndex(), *some)
    asked: list[int] = []
    ask = controller.store.attempts_on

    async def counted(node_ids: Collection[str], **more: Any) -> list[tuple[str, Attempt]]:
        asked.append(len(node_ids))
        return await ask(node_ids, **more)

    monkeypatch.setattr(controller.store, "attempts_on", counted)
    assert (await admin.open("/dashboard/cost")).status == 200
    # What they have cost, and what they cost an hour.
    assert asked == [50, 50]
