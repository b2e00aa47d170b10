"""Rented machines as REST."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from controller.api.http.paging import PageQuery, page
from controller.api.http.routes import Call, Route
from controller.api.machines.fleets import fleet_view
from controller.api.views import derived
from controller.clock import iso
from controller.lifecycle.machines.model import Machine
from controller.lifecycle.machines.reconcile import Orphan
from controller.service.machines.rented import status_of
from fairlead.documents.machines import CostsView, MachineView, OrphanView
from fairlead.documents.nodes import FleetView
from fairlead.queries import CostsQuery


class MachinesBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sections `machines` and `budget` of a fleet's file; with `machines` null the fleet rents
    no more."""

    machines: dict[str, Any] | None
    budget: dict[str, Any] | None = None


class MachinesQuery(PageQuery, frozen=True, kw_only=True):
    """`all`: those that have ended, too."""

    all: bool = False


class MachinesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    machines: tuple[MachineView, ...]
    next_cursor: str | None


class EndOrphansBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`instance_ids`: the ids of orphans at the provider, as their list has them."""

    provider: str
    instance_ids: Annotated[tuple[str, ...], msgspec.Meta(max_length=1000)]


class ForgetOrphanBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`instance_id`: the id of an orphan at the provider, in an account that nobody uses now."""

    provider: str
    instance_id: str


class OrphansAnswer(msgspec.Struct, frozen=True, kw_only=True):
    orphans: tuple[OrphanView, ...]


async def set_machines(call: Call) -> FleetView:
    body: MachinesBody = call.body
    fleet = await call.service.machines.rented.set_machines(
        call.path("fleet"), machines=body.machines, budget=body.budget, user=call.caller
    )
    return fleet_view(call, fleet)


async def list_machines(call: Call) -> MachinesAnswer:
    query: MachinesQuery = call.query
    machines = call.service.machines.rented.all(with_ended=query.all)
    found, cursor = page(machines, query, _order_of)
    return MachinesAnswer(
        machines=tuple(_machine(call, machine) for machine in found), next_cursor=cursor
    )


async def list_costs(call: Call) -> CostsView:
    query: CostsQuery = call.query
    rows = await call.service.machines.costs.costs(
        query.keys(), seconds=query.seconds, user=call.caller, per=query.per
    )
    return CostsView(
        rows=tuple(rows),
        total=sum(one.cost for one in rows),
        per_hour=await call.service.machines.costs.per_hour(call.caller),
        budgets=tuple(call.service.machines.costs.budgets(call.caller)),
        orphans=call.service.machines.costs.orphans(call.caller),
    )


async def forget_machine(call: Call) -> MachineView:
    return _machine(
        call, await call.service.machines.rented.forget(call.path("machine"), call.caller)
    )


async def list_orphans(call: Call) -> OrphansAnswer:
    found = call.service.machines.rented.orphans(call.caller)
    return OrphansAnswer(orphans=tuple(_orphan(call, one) for one in found))


async def end_orphans(call: Call) -> OrphansAnswer:
    body: EndOrphansBody = call.body
    found = await call.service.machines.rented.end_orphans(
        body.provider, body.instance_ids, call.caller
    )
    return OrphansAnswer(orphans=tuple(_orphan(call, one) for one in found))


async def forget_orphan(call: Call) -> OrphanView:
    body: ForgetOrphanBody = call.body
    gone = await call.service.machines.rented.forget_orphan(
        body.provider, body.instance_id, call.caller
    )
    return _orphan(call, gone)


def _orphan(call: Call, orphan: Orphan) -> OrphanView:
    traits = orphan.traits
    known = call.service.machines.rented.known_orphan(orphan)
    return derived(
        OrphanView,
        orphan,
        ends_at=_ends_at(orphan.ends_at()),
        instance_type=traits.instance_type,
        region=traits.region,
        zone=traits.zone,
        spot=traits.spot,
        fleet=orphan.fleet if known is None else known.fleet,
        price=None if known is None else known.price,
    )


def _order_of(machine: Machine) -> str:
    """Return what sorts machines by their order; as strings, its digits have one length."""
    return f"{machine.ordered_at:020.6f}-{machine.id}"


def _ends_at(at: float | None) -> str | None:
    return None if at is None else iso(at)


def _machine(call: Call, machine: Machine) -> MachineView:
    offer, rented = machine.offer, call.service.machines.rented
    return derived(
        MachineView,
        machine,
        status=status_of(machine),
        provider=offer.provider,
        instance_type=offer.instance_type,
        region=offer.region,
        zone=offer.zone,
        spot=offer.spot,
        price=offer.price,
        cost=rented.cost_of(machine),
        end=None if machine.end is None else machine.end.value,
        idle_since=None if machine.idle_since is None else iso(machine.idle_since),
    )


ROUTES: tuple[Route, ...] = (
    Route(
        method="PUT",
        path="/v1/fleets/{fleet}/machines",
        summary="Say what machines a fleet may rent",
        handler=set_machines,
        body=MachinesBody,
        answer=FleetView,
    ),
    Route(
        method="GET",
        path="/v1/machines",
        summary="The rented machines",
        handler=list_machines,
        query=MachinesQuery,
        answer=MachinesAnswer,
    ),
    Route(
        method="DELETE",
        path="/v1/machines/{machine}",
        summary="End the record of a machine in an account that nobody uses any more",
        handler=forget_machine,
        answer=MachineView,
    ),
    Route(
        method="GET",
        path="/v1/costs",
        summary="What rented machines have cost, by user, fleet and run, also for each day",
        handler=list_costs,
        query=CostsQuery,
        answer=CostsView,
    ),
    Route(
        method="GET",
        path="/v1/machine-orphans",
        summary="Machines at providers that no record knows",
        handler=list_orphans,
        answer=OrphansAnswer,
    ),
    Route(
        method="POST",
        path="/v1/machine-orphans/end",
        summary="End machines at a provider that no record knows",
        handler=end_orphans,
        body=EndOrphansBody,
        answer=OrphansAnswer,
    ),
    Route(
        method="POST",
        path="/v1/machine-orphans/forget",
        summary="Forget a machine without a record, in an account that nobody uses any more",
        handler=forget_orphan,
        body=ForgetOrphanBody,
        answer=OrphanView,
    ),
)
