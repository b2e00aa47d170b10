"""What rented machines have cost, by user, fleet and run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from typing import Literal, TypeVar

import msgspec

from controller.clock import Clock, iso, month_began, months_between, time_of_day
from controller.lifecycle.inventory import Budget, Spending
from controller.lifecycle.machines.cost import (
    DAY_SECONDS,
    CostOfDay,
    DayCosts,
    Share,
    Stay,
    day_began,
    days_between,
    shares,
    shares_by,
    shares_of_hour,
    times_between,
)
from controller.lifecycle.machines.model import Machine, cost_between
from controller.lifecycle.model import Fleet
from controller.pipelines.run_pipeline import RunPipeline
from controller.service.machines.rented import RentedService
from controller.store.accounts import User
from controller.store.base import COSTS_SECONDS, MACHINES_SECONDS, Changes, Store
from fairlead.documents.machines import BudgetView, OrphanCosts
from fairlead.model.costs import CostKey, CostPeriod, CostRow
from fairlead.model.spec import Role

C = TypeVar("C", CostRow, CostOfDay)
SETTLED_SECONDS = 3600.0
"""After so long nothing changes of a day that is over."""
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

        A user who is no admin sees what his own runs have cost. Sums of days are kept for
        COSTS_SECONDS; a day that ended longer than MACHINES_SECONDS ago counts as a whole. Raises
        StoreUnavailable.
        """
        now = self._clock.now()
        start = now - min(seconds, COSTS_SECONDS)
        days = await self._whole_days(start, now)
        found: dict[tuple[str | None, ...], CostRow] = {}

        def add(cost: CostOfDay, period: str | None) -> None:
            if cost.user != user.name and user.role is not Role.ADMIN:
                return
            row = CostRow(
                user=cost.user if CostKey.USER in by else None,
                # An orphan may have no tag of a fleet.
                fleet=(cost.fleet or None) if CostKey.FLEET in by else None,
                run=cost.run if CostKey.RUN in by else None,
                run_name=cost.run_name if CostKey.RUN in by else None,
                hours=cost.hours,
                cost=cost.cost,
                day=period if per is CostPeriod.DAY else None,
                month=period if per is CostPeriod.MONTH else None,
            )
            key = (period, row.user, row.fleet, row.run)
            found[key] = row if key not in found else _sum(found[key], row)

        for day in days:
            began = time_of_day(day.day)
            for cost in day.costs:
                add(cost, None if per is None else period_name(began, per))
            late = self._found_late(began)
            async for period, cost in self._of_records(began, began + DAY_SECONDS, per, late):
                add(cost, period)
        for first, last in times_between(start, now, [time_of_day(one.day) for one in days]):
            async for period, cost in self._of_records(first, last, per, self._machines()):
                add(cost, period)
        return sorted(found.values(), key=lambda one: (one.period or "", -one.cost))

    async def settle(self) -> None:
        """Keep the sums of the days that are over, and forget those that are too old.

        Records and runs say the same of them for some time only. Raises LeaseLost,
        StoreUnavailable.
        """
        # A controller that rents nothing has nothing to sum up.
        if not self._machines():
            return
        now = self._clock.now()
        # Of the first day some records may be forgotten already.
        first = day_began(now - MACHINES_SECONDS) + DAY_SECONDS
        known = {one.day for one in await self._store.costs_of_days(_day_name(first))}
        for day in days_between(first, day_began(now - SETTLED_SECONDS)):
            if (name := _day_name(day)) not in known:
                sums = await self._sums_of(day)
                old = _day_name(now - COSTS_SECONDS)
                changes = Changes(costs=(DayCosts(day=name, costs=sums),), costs_before=old)
                await self._store.commit(changes)

    def _machines(self) -> list[Machine]:
        """Return all machines that have cost something, those without a record included."""
        known, orphans = self._rented.all(with_ended=True), self._rented.paid_orphans
        return [*known, *orphans(with_ended=True)]

    def orphans(self, user: User) -> OrphanCosts:
        """Return what is spent now on machines without a record; only admins see it."""
        if user.role is not Role.ADMIN:
            return OrphanCosts()
        there = self._rented.known_orphans(user)
        now = self._clock.now()
        prices = [one.price for one in there if one.costs_at(now)]
        return OrphanCosts(
            count=len(there),
            per_hour=sum(one for one in prices if one is not None),
            without_price=sum(one.price is None for one in there),
        )

    async def per_hour(self, user: User) -> float:
        """Return what is spent now for an hour; for who is no admin, by runs of his own.

        Raises StoreUnavailable.
        """
        is_admin, now, cost = user.role is Role.ADMIN, self._clock.now(), 0.0
        machines = [*self._rented.all(), *self._rented.paid_orphans()]
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
            self._pipeline.fleets.values(), rentals.spending, self._machines(), self._clock.now()
        )
        if user.role is not Role.ADMIN:
            return [one for one in found if (one.owner, one.name) == ("user", user.name)]
        return found

    async def _whole_days(self, start: float, now: float) -> list[DayCosts]:
        """Return the days whose sums are kept; the one in which `start` lies only if no record
        tells what a part of it has cost."""
        if day_began(start) == day_began(now):
            return []
        found = await self._store.costs_of_days(_day_name(start))
        has_records = start >= now - MACHINES_SECONDS
        return [
            one
            for one in found
            # A clock that went wrong has summed up days that are to come.
            if time_of_day(one.day) + DAY_SECONDS <= now
            and (not has_records or time_of_day(one.day) >= start)
        ]

    async def _sums_of(self, day: float) -> tuple[CostOfDay, ...]:
        found: dict[tuple[str | None, ...], CostOfDay] = {}
        late = {one.id for one in self._found_late(day)}
        known = [one for one in self._machines() if one.id not in late]
        async for _, cost in self._of_records(day, day + DAY_SECONDS, None, known):
            key = (cost.fleet, cost.user, cost.run)
            found[key] = cost if key not in found else _sum(found[key], cost)
        return tuple(found.values())

    def _found_late(self, day: float) -> list[Machine]:
        """Return the orphans that were found when the day's sums may have been kept already, as
        those of a restored backup. The sums leave them out."""
        settled_at = day + DAY_SECONDS + SETTLED_SECONDS
        return self._rented.paid_orphans(with_ended=True, found_after=settled_at)

    async def _of_records(
        self, start: float, end: float, per: CostPeriod | None, known: Iterable[Machine]
    ) -> AsyncIterator[tuple[str | None, CostOfDay]]:
        """Yield what the records of these machines, and runs, say of this time, and in which period
        it was."""
        machines = [
            one
            for one in known
            if one.ordered_at <= end and (one.terminated_at is None or one.terminated_at > start)
        ]
        owners: dict[str | None, _Owner] = {None: _Owner()}
        stays = await self._stays(machines, start)
        for machine in machines:
            for period, share in _split(machine, stays.get(machine.id, ()), start, end, per):
                if share.run_id not in owners:
                    owners[share.run_id] = await self._owner(share.run_id, machine)
                owner = owners[share.run_id]
                yield (
                    period,
                    CostOfDay(
                        fleet=machine.fleet,
                        user=owner.user,
                        run=owner.run_id,
                        run_name=owner.run_name,
                        hours=share.hours,
                        cost=share.cost,
                    ),
                )

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


def _day_name(time: float) -> str:
    return period_name(time, CostPeriod.DAY)


def period_name(began: float, per: CostPeriod) -> str:
    """Return the day or month that begins at this Unix time, as costs name it."""
    return iso(began)[: len("2026-01-31" if per is CostPeriod.DAY else "2026-01")]


def _sum(one: C, other: C) -> C:
    return msgspec.structs.replace(one, hours=one.hours + other.hours, cost=one.cost + other.cost)
