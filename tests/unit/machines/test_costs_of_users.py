"""What `fairlead cost` sums up, and who sees it."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import pytest

from controller.clock import iso
from controller.service.machines.costs import CostService
from controller.store.accounts import User
from fairlead.model.costs import CostKey, CostPeriod
from fairlead.model.spec import Role
from tests.doubles.clock import ManualClock
from tests.unit.machines.parts import machine, offer


class _Records:
    """Machines that ended before they were nodes, so nobody was on them."""

    runs: ClassVar[dict[str, Any]] = {}

    def __init__(self, clock: ManualClock) -> None:
        hour = {"ordered_at": clock.now() - 3600.0, "terminated_at": clock.now()}
        self._machines = [
            machine("a", offer=offer(price=2.0), user="ada", run_id="r1", **hour),
            machine("b", offer=offer(price=3.0), user="bob", run_id="r2", **hour),
            machine("c", offer=offer(price=4.0), user="ada", run_id="r3", **hour),
            machine("d", offer=offer(price=5.0), **hour),
        ]

    def all(self, *, with_ended: bool) -> list[Any]:
        return self._machines

    def paid_orphans(self, *, with_ended: bool = False) -> list[Any]:
        return []

    async def find_run(self, key: str) -> None:
        return None

    async def costs_of_days(self, first: str) -> list[Any]:
        return []


async def rows(by: tuple[CostKey, ...], role: Role) -> list[tuple[str | None, str | None, float]]:
    clock = ManualClock()
    records = cast(Any, _Records(clock))
    service = CostService(records, records, records, clock)
    asking = User(name="ada", role=role, created_at=0.0)
    found = await service.costs(by, seconds=86400.0, user=asking)
    return [(one.user, one.run, one.cost) for one in found]


async def test_an_admin_sees_all_and_the_machines_that_fleets_keep() -> None:
    assert await rows((CostKey.USER,), Role.ADMIN) == [
        ("ada", None, 6.0),
        (None, None, 5.0),
        ("bob", None, 3.0),
    ]


async def test_a_user_sees_what_his_own_runs_have_cost() -> None:
    assert await rows((CostKey.USER, CostKey.RUN), Role.USER) == [
        ("ada", "r3", 4.0),
        ("ada", "r1", 2.0),
    ]


async def test_the_days_of_a_user_are_his_and_together_what_the_time_has_cost() -> None:
    clock = ManualClock()
    records = cast(Any, _Records(clock))
    service = CostService(records, records, records, clock)
    asking = User(name="ada", role=Role.USER, created_at=0.0)
    by = (CostKey.USER,)
    whole = await service.costs(by, seconds=86400.0, user=asking)
    found = await service.costs(by, seconds=86400.0, user=asking, per=CostPeriod.DAY)
    assert sum(one.cost for one in found) == pytest.approx(sum(one.cost for one in whole))
    assert {one.user for one in found} == {"ada"}
    assert [one.day for one in found] == sorted(
        {iso(clock.now() - back)[:10] for back in (1, 3599)}
    )
