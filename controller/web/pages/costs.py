"""The page of what rented machines have cost for each day or month, what they cost now, and the
budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from common.refusals import Invalid
from controller.api.machines.rented import list_costs
from controller.clock import iso, month_began
from controller.service.machines.costs import PERIODS, period_name
from controller.web.page import Page, PageRoute, Visit
from fairlead.documents.machines import BudgetView
from fairlead.model.costs import CostKey, CostPeriod, CostRow, money
from fairlead.queries import DEFAULT_SECONDS, CostsQuery

_YEAR = 365 * 86400.0
"""Each month of it is shown from its first day."""
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
    """The piece of a bar that is one group's; `label` is the whole sentence."""

    color: int
    x: int
    y: float
    height: float
    label: str


class CostBar(msgspec.Struct, frozen=True, kw_only=True):
    """A day or month with the amount of each group, in the order of the groups."""

    period: str
    amounts: tuple[str, ...]
    total: str
    parts: tuple[CostPart, ...]


class CostPeriods(msgspec.Struct, frozen=True, kw_only=True):
    """The days or months, the oldest first, and the groups, the dearest first. `width`: of the
    picture."""

    groups: tuple[str, ...]
    bars: tuple[CostBar, ...]
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


def cost_periods(rows: Sequence[CostRow], by: CostKey, periods: Sequence[str]) -> CostPeriods:
    """Return what each of these periods has cost, by group; those without a row cost nothing."""
    names, sums = _groups(rows, by)
    shown = tuple(sorted(sums, key=lambda key: -sums[key])[:_MAX_SHOWN])
    has_others = len(sums) > len(shown)
    amounts = {
        period: [0.0] * (len(shown) + has_others)
        for period in sorted({*periods, *(row.period for row in rows if row.period is not None)})
    }
    for row in rows:
        key = _key(row, by)
        if row.period is not None:
            amounts[row.period][shown.index(key) if key in shown else -1] += row.cost
    highest = max((sum(one) for one in amounts.values()), default=0.0)
    groups = (*(names[key] for key in shown), *(["others"] if has_others else []))
    return CostPeriods(
        groups=groups,
        bars=tuple(
            CostBar(
                period=period,
                amounts=tuple(money(one) for one in parts),
                total=money(sum(parts)),
                parts=_parts(period, number * _STEP, parts, groups, highest),
            )
            for number, (period, parts) in enumerate(amounts.items())
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
    period: str, x: int, amounts: Sequence[float], groups: Sequence[str], highest: float
) -> tuple[CostPart, ...]:
    """Return the pieces of a bar, the dearest group's at the bottom."""
    found, top = [], float(_HEIGHT)
    for color, (amount, group) in enumerate(zip(amounts, groups, strict=True)):
        if amount:
            height = round(amount / highest * _HEIGHT, 2)
            top = round(top - height, 2)
            label = f"{period}, {group}: {money(amount)}"
            found.append(CostPart(color=color, x=x, y=top, height=height, label=label))
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


async def show_costs(visit: Visit) -> Page:
    by, per, now = _by(visit.query("by")), _per(visit.query("per")), visit.service.clock.now()
    seconds = DEFAULT_SECONDS if per is CostPeriod.DAY else now - month_began(now - _YEAR)
    query = CostsQuery(by=by.value, per=per, seconds=seconds)
    found = await list_costs(visit.as_call(query=query))
    periods = [period_name(one, per) for one in PERIODS[per](now - seconds, now)]
    return Page(
        template="costs.html",
        title="Cost",
        section="Cost",
        context={
            "by": by.value,
            "keys": [CostKey.USER.value, CostKey.FLEET.value, CostKey.RUN.value],
            "per": per.value,
            "pers": [one.value for one in CostPeriod],
            "whole": _whole(per, len(periods)),
            "costs": cost_periods(found.rows, by, periods) if found.rows else None,
            "width": _WIDTH,
            "per_hour": money(found.per_hour),
            "orphans": found.orphans if found.orphans.count else None,
            "of_orphans": money(found.orphans.per_hour),
            "budgets": [budget_row(one) for one in found.budgets],
            "only_own": not visit.is_admin,
            "as_of": iso(now),
        },
    )


def _whole(per: CostPeriod, months: int) -> str:
    return f"{DEFAULT_SECONDS / 86400.0:.0f} days" if per is CostPeriod.DAY else f"{months} months"


def _by(text: str) -> CostKey:
    try:
        return CostKey(text or CostKey.FLEET)
    except ValueError:
        raise Invalid(f"{text!r} is none of {', '.join(CostKey)}", field="by") from None


def _per(text: str) -> CostPeriod:
    try:
        return CostPeriod(text or CostPeriod.DAY)
    except ValueError:
        raise Invalid(f"{text!r} is none of {', '.join(CostPeriod)}", field="per") from None


PAGES: tuple[PageRoute, ...] = (PageRoute(path="/cost", handler=show_costs),)
