"""What rented machines have cost, by user, fleet and run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import msgspec

from controller.clock import Clock, iso, month_began, months_between
from controller.lifecycle.inventory import Budget, Spending
from controller.lifecycle.machines.cost import (
    Share,
    Stay,
    days_between,
    shares,
    shares_by,
    shares_of_hour,
)
from controller.lifecycle.machines.model import Machine, cost_between
from controller.lifecycle.model import Fleet
from controller.pipelines.run_pipeline import RunPipeline
from controller.service.machines.rented import RentedService
from controller.store.accounts import User
from controller.store.base import MACHINES_SECONDS, Store
from fairlead.documents.machines import BudgetView
from fairlead.model.costs import CostKey, CostPeriod, CostRow
from fairlead.model.spec import Role

_MAX_STAYS = 10_000
"""Of one machine."""
_AT_ONCE = 500
"""The machines of one question to the database."""
PERIODS = {CostPeriod.DAY: days_between, CostPeriod.MONTH: months_between}
"""What tells the beginnings of the periods between two times."""


class CostService:
    def __init__(
        self, pipeline: RunPipeline, rented: RentedService, store: Store, clock: Clock
    ) -> None:
        self._pipeline = pipeline
        self._rented = rented
        self._store = store
        self._clock = clock

    async def costs(
        self,
        by: tuple[CostKey, ...],
        *,
        seconds: float,
        user: User,
        per: CostPeriod | None = None,
    ) -> list[CostRow]:
        """Return what the machines have cost in the last `seconds`, the dearest first; with `per`
        the oldest days or months first.

        Who is no admin sees what runs of his own have cost. Records of ended machines are kept
        for MACHINES_SECONDS. Raises StoreUnavailable.
        """
        now = self._clock.now()
        start = now - min(seconds, MACHINES_SECONDS)
        owners: dict[str | None, _Owner] = {None: _Owner()}
        found: dict[tuple[str | None, ...], CostRow] = {}
        machines = self._rented.all(with_ended=True)
        stays = await self._stays(machines, start)
        for machine in machines:
            for period, share in _split(machine, stays.get(machine.id, ()), start, now, per):
                if share.run_id not in owners:
                    owners[share.run_id] = await self._owner(share.run_id, machine)
                owner = owners[share.run_id]
                if owner.user != user.name and user.role is not Role.ADMIN:
                    continue
                row = CostRow(
                    user=owner.user if CostKey.USER in by else None,
                    fleet=machine.fleet if CostKey.FLEET in by else None,
                    run=owner.run_id if CostKey.RUN in by else None,
                    run_name=owner.run_name if CostKey.RUN in by else None,
                    hours=share.hours,
                    cost=share.cost,
                    day=period if per is CostPeriod.DAY else None,
                    month=period if per is CostPeriod.MONTH else None,
                )
                key = (period, row.user, row.fleet, row.run)
                found[key] = row if key not in found else _sum(found[key], row)
        return sorted(found.values(), key=lambda one: (one.period or "", -one.cost))

    async def per_hour(self, user: User) -> float:
        """Return what is spent now for an hour; for who is no admin, by runs of his own.

        Raises StoreUnavailable.
        """
        is_admin, now, cost = user.role is Role.ADMIN, self._clock.now(), 0.0
        machines = self._rented.all()
        stays = await self._stays(machines, now)
        for machine in machines:
            for run_id, part in shares_of_hour(machine, stays.get(machine.id, ()), now):
                if is_admin or (await self._owner(run_id, machine)).user == user.name:
                    cost += part
        return cost

    def budgets(self, user: User) -> list[BudgetView]:
        """Return the budgets and what is used of them; for who is no admin, his own."""
        rentals = self._pipeline.rentals
        if rentals is None:
            return []
        found = budgets_of(
            self._pipeline.fleets.values(),
            rentals.spending,
            rentals.committed.values(),
            self._clock.now(),
        )
        if user.role is not Role.ADMIN:
            return [one for one in found if (one.owner, one.name) == ("user", user.name)]
        return found

    async def _stays(self, machines: Sequence[Machine], start: float) -> dict[str, list[Stay]]:
        """Return who was on the machines since then, by the machine's id."""
        joined = [one.id for one in machines if one.joined_at is not None]
        found: dict[str, list[Stay]] = {}
        for first in range(0, len(joined), _AT_ONCE):
            some = joined[first : first + _AT_ONCE]
            limit = _MAX_STAYS * len(some)
            for run_id, one in await self._store.attempts_on(some, since=start, limit=limit):
                if one.node_id is not None and one.provisioned_at is not None:
                    stay = Stay(run_id=run_id, start=one.provisioned_at, end=one.finished_at)
                    found.setdefault(one.node_id, []).append(stay)
        return found

    async def _owner(self, run_id: str | None, machine: Machine) -> _Owner:
        """Return whose run it is; one that is forgotten has no name any more."""
        if run_id is None:
            return _Owner()
        state = self._pipeline.runs.get(run_id) or await self._store.find_run(run_id)
        if state is not None:
            return _Owner(user=state.run.user, run_id=run_id, run_name=state.run.name)
        user = machine.user if machine.run_id == run_id else None
        return _Owner(user=user, run_id=run_id)


def budgets_of(
    fleets: Iterable[Fleet], spending: Spending, machines: Collection[Machine], now: float
) -> list[BudgetView]:
    """Return what each budget allows and what is used of it. A user without limits of his own is
    there if he has machines in this month."""
    since = month_began(now)
    current = [one for one in machines if one.is_live or cost_between(one, since, now)]

    def used(
        owner: Literal["installation", "user", "fleet"],
        name: str | None,
        budget: Budget,
        own: Sequence[Machine],
    ) -> BudgetView:
        return BudgetView(
            owner=owner,
            name=name,
            per_hour=budget.per_hour,
            hour_cost=sum(one.offer.price for one in own if one.is_live),
            per_month=budget.per_month,
            month_cost=sum(cost_between(one, since, now) for one in own),
        )

    users = {one.user for one in current if one.user is not None} | set(spending.users)
    found = [
        used("installation", None, spending.together, current),
        *(
            used("fleet", fleet.name, fleet.budget, [x for x in current if x.fleet == fleet.name])
            for fleet in fleets
        ),
        *(
            used("user", user, spending.of(user), [x for x in current if x.user == user])
            for user in sorted(users)
        ),
    ]
    return [one for one in found if one.per_hour is not None or one.per_month is not None]


class _Owner(msgspec.Struct, frozen=True, kw_only=True):
    user: str | None = None
    run_id: str | None = None
    run_name: str | None = None


def _split(
    machine: Machine, stays: Sequence[Stay], start: float, end: float, per: CostPeriod | None
) -> list[tuple[str | None, Share]]:
    if per is None:
        return [(None, share) for share in shares(machine, stays, start, end)]
    found = shares_by(PERIODS[per](start, end), machine, stays, start, end)
    return [(period_name(began, per), share) for began, share in found]


def period_name(began: float, per: CostPeriod) -> str:
    """Return the day or month that begins at this Unix time, as costs name it."""
    return iso(began)[: len("2026-01-31" if per is CostPeriod.DAY else "2026-01")]


def _sum(one: CostRow, other: CostRow) -> CostRow:
    return msgspec.structs.replace(one, hours=one.hours + other.hours, cost=one.cost + other.cost)
