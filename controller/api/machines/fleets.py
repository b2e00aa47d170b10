"""Fleets as REST."""

from __future__ import annotations

from typing import Any

import msgspec

from controller.api.http.paging import PageQuery, page
from controller.api.http.routes import Call, Route
from controller.api.views import derived
from controller.lifecycle.model import Fleet
from fairlead.documents.machines import FleetMachinesView
from fairlead.documents.nodes import FleetView


class NewFleetBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`placement`: the attribute whose value the nodes of one gang share. `machines`, `budget`: the
    sections of a fleet's file."""

    name: str
    placement: str | None = None
    attributes: dict[str, str] = {}
    machines: dict[str, Any] | None = None
    budget: dict[str, Any] | None = None


class FleetBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The changes. An empty `placement` and an attribute of null are removed."""

    placement: str | None = None
    attributes: dict[str, str | None] = {}


class FleetImagesBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields `images` and `registry_auth` of a fleet's file. It replaces what was there."""

    images: list[Any]
    registry_auth: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"FleetImagesBody(images={self.images!r})"


class FleetsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    fleets: tuple[FleetView, ...]
    next_cursor: str | None


async def list_fleets(call: Call) -> FleetsAnswer:
    found, cursor = page(call.service.machines.fleets.all(), call.query, lambda fleet: fleet.name)
    return FleetsAnswer(
        fleets=tuple(fleet_view(call, fleet) for fleet in found), next_cursor=cursor
    )


async def add_fleet(call: Call) -> FleetView:
    body: NewFleetBody = call.body
    fleet = await call.service.machines.rented.add(
        body.name,
        placement=body.placement,
        attributes=body.attributes,
        machines=body.machines,
        budget=body.budget,
        user=call.caller,
    )
    return fleet_view(call, fleet)


async def change_fleet(call: Call) -> FleetView:
    body: FleetBody = call.body
    fleet = await call.service.machines.fleets.set(
        call.path("fleet"),
        placement=body.placement,
        attributes=body.attributes,
        user=call.caller,
    )
    return fleet_view(call, fleet)


async def set_images(call: Call) -> FleetView:
    body: FleetImagesBody = call.body
    fleet = await call.service.machines.fleets.set_images(
        call.path("fleet"), images=body.images, registry_auth=body.registry_auth, user=call.caller
    )
    return fleet_view(call, fleet)


async def remove_fleet(call: Call) -> FleetView:
    return fleet_view(
        call, await call.service.machines.fleets.remove(call.path("fleet"), user=call.caller)
    )


def fleet_view(call: Call, fleet: Fleet) -> FleetView:
    nodes = tuple(call.service.machines.fleets.nodes_of(fleet.name))
    rents = fleet.machines
    if rents is None:
        return derived(FleetView, fleet, nodes=nodes, machines=None)
    machines = derived(
        FleetMachinesView,
        rents,
        spot=rents.spot.value,
        per_hour=fleet.budget.per_hour,
        per_month=fleet.budget.per_month,
        month_cost=call.service.machines.rented.month_cost(fleet.name),
        why_never=call.service.machines.rented.why_never(fleet),
    )
    return derived(FleetView, fleet, nodes=nodes, machines=machines)


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path="/v1/fleets",
        summary="All fleets",
        handler=list_fleets,
        query=PageQuery,
        answer=FleetsAnswer,
    ),
    Route(
        method="POST",
        path="/v1/fleets",
        summary="Add a fleet",
        handler=add_fleet,
        body=NewFleetBody,
        answer=FleetView,
        status=201,
    ),
    Route(
        method="PATCH",
        path="/v1/fleets/{fleet}",
        summary="Change a fleet's placement or attributes",
        handler=change_fleet,
        body=FleetBody,
        answer=FleetView,
    ),
    Route(
        method="PUT",
        path="/v1/fleets/{fleet}/images",
        summary="Say which images a fleet's nodes pull ahead",
        handler=set_images,
        body=FleetImagesBody,
        answer=FleetView,
    ),
    Route(
        method="DELETE",
        path="/v1/fleets/{fleet}",
        summary="Remove a fleet that has no nodes",
        handler=remove_fleet,
        answer=FleetView,
    ),
)
