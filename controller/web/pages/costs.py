"""The page of what rented machines have cost for each day, what they cost now, and the budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from common.refusals import Invalid
from controller.api.machines.rented import list_costs
from controller.clock import iso
from controller.lifecycle.machines.cost import days_between
from controller.web.page import Page, PageRoute, Visit
from fairlead.documents.machines import BudgetView
from fairlead.model.costs import CostKey, CostPeriod, CostRow
from fairlead.queries import DEFAULT_SECONDS, CostsQuery

_MAX_SHOWN = 5
"""Fleets, users or runs with a colour and a column of their own."""
_STEP, _WIDTH, _HEIGHT = 20, 16, 120
"""Of the picture: from one bar to the next, a bar's width, and the height of the highest one."""
_NOBODY = {
    CostKey.USER: "no user: kept by a fleet",
    CostKey.FLEET: "no fleet",
    CostKey.RUN: "no run: kept by a fleet",
}


class CostPart(msgspec.Struct, frozen=True, kw_only=True):
    """The piece of a day's bar that is one group's; `said` is the whole sentence."""

    color: int
    x: int
    y: float
    height: float
    said: str


class CostDay(msgspec.Struct, frozen=True, kw_only=True):
    """A day with the amount of each group, in the order of the groups."""

    day: str
    amounts: tuple[str, ...]
    total: str
    parts: tuple[CostPart, ...]


class CostDays(msgspec.Struct, frozen=True, kw_only=True):
    """The days, the oldest first, and the groups, the dearest first. `width`: of the picture."""

    groups: tuple[str, ...]
    days: tuple[CostDay, ...]
    sums: tuple[str, ...]
    total: str
    highest: str
    width: int
    height: int = _HEIGHT


class BudgetRow(msgspec.Struct, frozen=True, kw_only=True):
    """A budget in words; `remains` says it for the hour and the month."""

    name: str
    hour: str
    hour_remains: str
    month: str
    month_remains: str


def cost_days(rows: Sequence[CostRow], by: CostKey, days: Sequence[str]) -> CostDays:
    """Return what each of these days has cost, by group; days without a row cost nothing."""
    names, sums = _groups(rows, by)
    shown = tuple(sorted(sums, key=lambda key: -sums[key])[:_MAX_SHOWN])
    has_others = len(sums) > len(shown)
    amounts = {
        day: [0.0] * (len(shown) + has_others)
        for day in sorted({*days, *(row.day for row in rows if row.day is not None)})
    }
    for row in rows:
        key = _key(row, by)
        if row.day is not None:
            amounts[row.day][shown.index(key) if key in shown else -1] += row.cost
    highest = max((sum(one) for one in amounts.values()), default=0.0)
    groups = (*(names[key] for key in shown), *(["others"] if has_others else []))
    return CostDays(
        groups=groups,
        days=tuple(
            CostDay(
                day=day,
                amounts=tuple(money(one) for one in of_day),
                total=money(sum(of_day)),
                parts=_parts(day, number * _STEP, of_day, groups, highest),
            )
            for number, (day, of_day) in enumerate(amounts.items())
        ),
        sums=tuple(money(sum(column)) for column in zip(*amounts.values(), strict=True)),
        total=money(sum(row.cost for row in rows)),
        highest=money(highest),
        width=len(amounts) * _STEP,
    )


def _key(row: CostRow, by: CostKey) -> str | None:
    keys: Mapping[CostKey, str | None] = {
        CostKey.USER: row.user,
        CostKey.FLEET: row.fleet,
        CostKey.RUN: row.run,
    }
    return keys[by]


def _groups(
    rows: Sequence[CostRow], by: CostKey
) -> tuple[dict[str | None, str], dict[str | None, float]]:
    """Return the name of each group as it is shown, and what it has cost."""
    names: dict[str | None, str] = {}
    sums: dict[str | None, float] = {}
    for row in rows:
        key = _key(row, by)
        names[key] = _NOBODY[by] if key is None else (row.run_name or key)
        sums[key] = sums.get(key, 0.0) + row.cost
    return names, sums


def _parts(
    day: str, x: int, amounts: Sequence[float], groups: Sequence[str], highest: float
) -> tuple[CostPart, ...]:
    """Return the pieces of a day's bar, the dearest group's at the bottom."""
    found, top = [], float(_HEIGHT)
    for color, (amount, group) in enumerate(zip(amounts, groups, strict=True)):
        if amount:
            height = round(amount / highest * _HEIGHT, 2)
            top = round(top - height, 2)
            said = f"{day}, {group}: {money(amount)}"
            found.append(CostPart(color=color, x=x, y=top, height=height, said=said))
    return tuple(found)


def budget_row(budget: BudgetView) -> BudgetRow:
    name = "all machines" if budget.name is None else f"{budget.owner} {budget.name}"
    return BudgetRow(
        name=name,
        hour=_used(budget.hour_cost, budget.per_hour),
        hour_remains=_remains(budget.hour_cost, budget.per_hour),
        month=_used(budget.month_cost, budget.per_month),
        month_remains=_remains(budget.month_cost, budget.per_month),
    )


def _used(cost: float, limit: float | None) -> str:
    return f"{money(cost)}, no limit" if limit is None else f"{money(cost)} of {money(limit)}"


def _remains(cost: float, limit: float | None) -> str:
    return "" if limit is None else money(max(0.0, limit - cost))


def money(amount: float) -> str:
    return f"{amount:.2f}"


async def show_costs(visit: Visit) -> Page:
    by, now = _by(visit.query("by")), visit.service.clock.now()
    query = CostsQuery(by=by.value, per=CostPeriod.DAY)
    found = await list_costs(visit.as_call(query=query))
    days = [iso(day)[: len("2026-01-31")] for day in days_between(now - DEFAULT_SECONDS, now)]
    return Page(
        template="costs.html",
        title="Cost",
        section="Cost",
        context={
            "by": by.value,
            "keys": [CostKey.USER.value, CostKey.FLEET.value, CostKey.RUN.value],
            "costs": cost_days(found.rows, by, days) if found.rows else None,
            "width": _WIDTH,
            "per_hour": money(found.per_hour),
            "budgets": [budget_row(one) for one in found.budgets],
            "only_own": not visit.is_admin,
            "as_of": iso(now),
        },
    )


def _by(text: str) -> CostKey:
    try:
        return CostKey(text or CostKey.FLEET)
    except ValueError:
        raise Invalid(f"{text!r} is none of {', '.join(CostKey)}", field="by") from None


PAGES: tuple[PageRoute, ...] = (PageRoute(path="/cost", handler=show_costs),)
