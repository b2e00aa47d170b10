"""Rented machines and what they cost."""

from __future__ import annotations

from typing import Literal

from fairlead.documents.base import View
from fairlead.model.costs import CostRow


class FleetMachinesView(View, frozen=True):
    """What machines a fleet may rent. Prices are per machine and hour; `per_hour` and `per_month`
    are its budget, and `month_cost` what its machines have cost in this month of UTC. `why_never`:
    why it rents nothing at all of what its provider has now, or never its least."""

    provider: str
    min: int
    max: int
    spot: str
    idle_duration: float
    max_price: float | None
    per_hour: float | None
    per_month: float | None
    month_cost: float
    why_never: str | None = None


class MachineView(View, frozen=True):
    """A rented machine. `price` is per hour; `cost` is what it has cost so far. `trouble`: why the
    last call to its provider failed."""

    id: str
    name: str
    fleet: str
    status: str
    provider: str
    instance_type: str
    region: str
    zone: str | None
    spot: bool
    price: float
    cost: float
    instance_id: str | None
    end: str | None
    message: str | None
    trouble: str | None
    ordered_at: str
    joined_at: str | None
    idle_since: str | None
    terminated_at: str | None


class BudgetView(View, frozen=True):
    """What a fleet, a user or the whole installation may spend, and spends. `name` null: the
    installation. `hour_cost`: the price of an hour of the machines that it has now; `month_cost`:
    what its machines have cost in this month of UTC. A limit that is null is none."""

    owner: Literal["installation", "user", "fleet"]
    name: str | None
    per_hour: float | None
    hour_cost: float
    per_month: float | None
    month_cost: float


class OrphanCosts(View, frozen=True):
    """The machines without a record, for admins. `per_hour`: what is spent on them now for an hour,
    but for those `without_price`: the price of these is not known."""

    count: int = 0
    per_hour: float = 0.0
    without_price: int = 0


class CostsView(View, frozen=True):
    """What rented machines have cost, the dearest first; with `per` the oldest days first.
    `per_hour`: what is spent now for an hour. `orphans`: they are in all of these."""

    rows: tuple[CostRow, ...]
    total: float
    per_hour: float = 0.0
    budgets: tuple[BudgetView, ...] = ()
    orphans: OrphanCosts = OrphanCosts()


class OrphanView(View, frozen=True):
    """A machine at a provider that no record knows. `ends_at` null: it is kept until an admin has
    it ended; `is_to_end`: an admin did. `fleet`: its tag; `instance_type` to `spot`: what the
    provider's list tells of it. `price`: of an hour, as budgets count it; null: it is not known, so
    no budget counts it. `unlisted`: why no list of the provider tells now whether it is there, and
    the fix."""

    provider: str
    instance_id: str
    machine_id: str | None
    created_at: str
    seen_at: str
    ends_at: str | None
    is_duplicate: bool
    quarantined: bool
    is_to_end: bool = False
    fleet: str | None = None
    instance_type: str | None = None
    region: str | None = None
    zone: str | None = None
    spot: bool = False
    price: float | None = None
    unlisted: str | None = None
