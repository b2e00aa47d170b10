"""Fleets as REST, and what admins do with nodes besides adding and draining them."""

from __future__ import annotations

import msgspec

from controller.api.bodies import CordonBody, FleetBody, NewFleetBody, NodeBody, RegisterBody
from controller.api.documents import FleetView, NodeView, QuarantinedTaskView
from controller.api.handlers import shown_node
from controller.api.paging import PageQuery, page
from controller.api.routes import Call, Route
from controller.api.views import fleet_view, quarantined_view
from controller.lifecycle.model import Fleet
from controller.service.registrations import Announcement


class FleetsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    fleets: tuple[FleetView, ...]
    next_cursor: str | None


class TasksAnswer(msgspec.Struct, frozen=True, kw_only=True):
    tasks: tuple[QuarantinedTaskView, ...]


class UserDataAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`user_data` holds the node's private host key: it is stored nowhere else, and no request
    shows it again."""

    node: NodeView
    user_data: str


async def announce_node(call: Call) -> UserDataAnswer:
    body: Announcement = call.body
    node, user_data = await call.service.registrations.announce(body, user=call.caller)
    return UserDataAnswer(node=shown_node(call, node), user_data=user_data)


async def register_node(call: Call) -> NodeView:
    body: RegisterBody = call.body
    node = await call.service.registrations.register(
        call.path("node"), host=body.host, port=body.port, user=call.caller
    )
    return shown_node(call, node)


async def cordon_node(call: Call) -> NodeView:
    body: CordonBody = call.body
    return await _cordon(call, True, body.reason)


async def uncordon_node(call: Call) -> NodeView:
    return await _cordon(call, False, None)


async def _cordon(call: Call, cordoned: bool, reason: str | None) -> NodeView:
    node = await call.service.nodes.cordon(
        call.path("node"), cordoned=cordoned, reason=reason, user=call.caller
    )
    return shown_node(call, node)


async def change_node(call: Call) -> NodeView:
    body: NodeBody = call.body
    node = await call.service.nodes.set(
        call.path("node"),
        attributes=body.attributes,
        fleet=body.fleet,
        host_key=body.host_key,
        accept_host_key=body.accept_host_key,
        user=call.caller,
    )
    return shown_node(call, node)


async def list_quarantined(call: Call) -> TasksAnswer:
    tasks = call.service.nodes.quarantine(call.path("node"), call.caller)
    return TasksAnswer(tasks=tuple(map(quarantined_view, tasks)))


async def stop_quarantined(call: Call) -> NodeView:
    node = await call.service.nodes.stop_task(
        call.path("node"), call.path("task"), user=call.caller
    )
    return shown_node(call, node)


async def list_fleets(call: Call) -> FleetsAnswer:
    found, cursor = page(call.service.fleets.all(), call.query, lambda fleet: fleet.name)
    return FleetsAnswer(fleets=tuple(_fleet(call, fleet) for fleet in found), next_cursor=cursor)


async def add_fleet(call: Call) -> FleetView:
    body: NewFleetBody = call.body
    fleet = await call.service.fleets.add(
        body.name, placement=body.placement, attributes=body.attributes, user=call.caller
    )
    return _fleet(call, fleet)


async def change_fleet(call: Call) -> FleetView:
    body: FleetBody = call.body
    fleet = await call.service.fleets.set(
        call.path("fleet"),
        placement=body.placement,
        attributes=body.attributes,
        user=call.caller,
    )
    return _fleet(call, fleet)


async def remove_fleet(call: Call) -> FleetView:
    return _fleet(call, await call.service.fleets.remove(call.path("fleet"), user=call.caller))


def _fleet(call: Call, fleet: Fleet) -> FleetView:
    return fleet_view(fleet, call.service.fleets.nodes_of(fleet.name))


INVENTORY: tuple[Route, ...] = (
    Route(
        method="POST",
        path="/v1/user-data",
        summary="Announce a node; the answer is its user-data, shown once",
        handler=announce_node,
        body=Announcement,
        answer=UserDataAnswer,
        status=201,
    ),
    Route(
        method="POST",
        path="/v1/nodes/{node}/register",
        summary="Give an expected node its address; its host key is already pinned",
        handler=register_node,
        body=RegisterBody,
        answer=NodeView,
    ),
    Route(
        method="POST",
        path="/v1/nodes/{node}/cordon",
        summary="Stop new placements on a node; running jobs stay",
        handler=cordon_node,
        body=CordonBody,
        answer=NodeView,
    ),
    Route(
        method="POST",
        path="/v1/nodes/{node}/uncordon",
        summary="Allow new placements on a cordoned node",
        handler=uncordon_node,
        answer=NodeView,
    ),
    Route(
        method="PATCH",
        path="/v1/nodes/{node}",
        summary="Change a node's attributes, its fleet or the host key that is pinned",
        handler=change_node,
        body=NodeBody,
        answer=NodeView,
    ),
    Route(
        method="GET",
        path="/v1/nodes/{node}/tasks",
        summary="The node's tasks that this controller does not know",
        handler=list_quarantined,
        answer=TasksAnswer,
    ),
    Route(
        method="DELETE",
        path="/v1/nodes/{node}/tasks/{task}",
        summary="Stop and remove a task that this controller does not know",
        handler=stop_quarantined,
        answer=NodeView,
    ),
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
        method="DELETE",
        path="/v1/fleets/{fleet}",
        summary="Remove a fleet that has no nodes",
        handler=remove_fleet,
        answer=FleetView,
    ),
)
