"""Nodes as REST: add, show, drain, cordon and remove them, and list their unknown tasks."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from common.links.host_keys import fingerprint
from common.refusals import Unavailable
from controller.api.http.paging import PageQuery, page
from controller.api.http.routes import Call, Route
from controller.api.views import derived, iso_or_none
from controller.clock import iso
from controller.lifecycle.inventory import NodeImage
from controller.lifecycle.model import Node, NodeEvent
from controller.service.machines.nodes import NodeRequest
from controller.service.machines.registrations import Announcement
from controller.service.machines.use import NodeUse
from fairlead.documents.nodes import (
    GpuView,
    NodeAllowsView,
    NodeEventView,
    NodeImageView,
    NodeView,
    QuarantinedTaskView,
)
from fairlead.queries import Query
from fairlead.wire.node import Finding


class DrainBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`deadline`: seconds from now; jobs that still run there then end as node_drained."""

    reason: str | None = None
    deadline: float | None = None


class CordonBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: str | None = None


class NodeBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The changes. `attributes`: null removes one. `host_key` and `accept_host_key` pin another
    host key, as when a node is added."""

    attributes: dict[str, str | None] = {}
    fleet: str | None = None
    host_key: str | None = None
    accept_host_key: str | None = None


class RegisterBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The address of the node's sshd."""

    host: str
    port: int = 22


class RemoveQuery(Query, frozen=True):
    """`lost`: the machine is gone for good, with everything that ran there."""

    lost: bool = False


class NodesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    nodes: tuple[NodeView, ...]
    next_cursor: str | None


class NodeKeyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The controller's OpenSSH public key line, for the nodes' `authorized_keys`."""

    public_key: str


class FindingsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    findings: tuple[Finding, ...]


class TasksAnswer(msgspec.Struct, frozen=True, kw_only=True):
    tasks: tuple[QuarantinedTaskView, ...]


class UserDataAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`user_data` holds the node's private host key: it is stored nowhere else, and no request
    shows it again."""

    node: NodeView
    user_data: str


async def list_nodes(call: Call) -> NodesAnswer:
    found, cursor = page(call.service.machines.nodes.all(), call.query, lambda node: node.name)
    nodes = call.service.machines.nodes
    uses = nodes.uses(call.caller)
    views = (node_view(node, uses.get(node.id, NodeUse()), nodes.seen_at(node)) for node in found)
    return NodesAnswer(nodes=tuple(views), next_cursor=cursor)


async def add_node(call: Call) -> NodeView:
    request: NodeRequest = call.body
    return shown_node(call, await call.service.machines.nodes.add(request, user=call.caller))


async def get_node(call: Call) -> NodeView:
    return shown_node(call, call.service.machines.nodes.get(call.path("node")))


async def drain_node(call: Call) -> NodeView:
    body: DrainBody = call.body
    node = await call.service.machines.nodes.drain(
        call.path("node"), reason=body.reason, deadline=body.deadline, user=call.caller
    )
    return shown_node(call, node)


async def resume_node(call: Call) -> NodeView:
    return shown_node(
        call, await call.service.machines.nodes.resume(call.path("node"), user=call.caller)
    )


async def clear_gpu(call: Call) -> NodeView:
    key, uuid = call.path("node"), call.path("gpu")
    return shown_node(call, await call.service.machines.gpus.clear(key, uuid, user=call.caller))


async def remove_node(call: Call) -> NodeView:
    query: RemoveQuery = call.query
    node = await call.service.machines.nodes.remove(
        call.path("node"), lost=query.lost, user=call.caller
    )
    return shown_node(call, node)


async def get_node_key(call: Call) -> NodeKeyAnswer:
    if call.service.machines.node_key is None:
        raise Unavailable("this controller has no SSH key: it was started without one")
    return NodeKeyAnswer(public_key=call.service.machines.node_key)


async def announce_node(call: Call) -> UserDataAnswer:
    body: Announcement = call.body
    node, user_data = await call.service.machines.registrations.announce(body, user=call.caller)
    return UserDataAnswer(node=shown_node(call, node), user_data=user_data)


async def register_node(call: Call) -> NodeView:
    body: RegisterBody = call.body
    node = await call.service.machines.registrations.register(
        call.path("node"), host=body.host, port=body.port, user=call.caller
    )
    return shown_node(call, node)


async def cordon_node(call: Call) -> NodeView:
    body: CordonBody = call.body
    return await _cordon(call, True, body.reason)


async def uncordon_node(call: Call) -> NodeView:
    return await _cordon(call, False, None)


async def _cordon(call: Call, cordoned: bool, reason: str | None) -> NodeView:
    node = await call.service.machines.nodes.cordon(
        call.path("node"), cordoned=cordoned, reason=reason, user=call.caller
    )
    return shown_node(call, node)


async def change_node(call: Call) -> NodeView:
    body: NodeBody = call.body
    node = await call.service.machines.nodes.set(
        call.path("node"),
        attributes=body.attributes,
        fleet=body.fleet,
        host_key=body.host_key,
        accept_host_key=body.accept_host_key,
        user=call.caller,
    )
    return shown_node(call, node)


async def examine_node(call: Call) -> FindingsAnswer:
    found = await call.service.machines.doctor.examine(call.path("node"), user=call.caller)
    return FindingsAnswer(findings=found)


async def list_quarantined(call: Call) -> TasksAnswer:
    tasks = call.service.machines.nodes.quarantine(call.path("node"), call.caller)
    return TasksAnswer(tasks=tuple(derived(QuarantinedTaskView, task) for task in tasks))


async def stop_quarantined(call: Call) -> NodeView:
    node = await call.service.machines.nodes.stop_task(
        call.path("node"), call.path("task"), user=call.caller
    )
    return shown_node(call, node)


def shown_node(call: Call, node: Node) -> NodeView:
    nodes = call.service.machines.nodes
    use = nodes.use(node, call.caller)
    images = call.service.machines.fleets.images_on(node)
    return node_view(node, use, nodes.seen_at(node), history=node.history, images=images)


def node_view(
    node: Node,
    use: NodeUse,
    seen_at: float | None,
    *,
    history: Sequence[NodeEvent] = (),
    images: Sequence[NodeImage] = (),
) -> NodeView:
    capacity = node.capacity
    address = node.address
    return derived(
        NodeView,
        node,
        address=_address(node),
        host_key_fingerprint=fingerprint(address.host_key) if address.host_key else None,
        status=node.status.value,
        drain_deadline=iso_or_none(node.drain_deadline),
        engine=capacity.engine,
        isolation=capacity.isolation,
        host_network=capacity.host_network,
        cpu=capacity.cpu,
        cpu_allocated=use.cpu,
        memory=capacity.memory,
        memory_allocated=use.memory,
        disk=capacity.disk,
        disk_allocated=use.disk,
        gpus=tuple(derived(GpuView, gpu, in_use=gpu.uuid in use.gpus) for gpu in capacity.gpus),
        runs=use.runs,
        ended_runs=use.ended,
        quarantined=len(node.quarantine),
        controllers=capacity.controllers,
        networks=capacity.networks,
        network_kind=capacity.network_kind,
        network_why=capacity.network_why,
        engine_lacks=tuple(one.value for one in capacity.engine_lacks),
        allows=None if capacity.allows is None else derived(NodeAllowsView, capacity.allows),
        last_seen_at=iso_or_none(seen_at),
        register_until=iso(node.registration.expires_at) if node.registration else None,
        events=tuple(derived(NodeEventView, event) for event in history),
        images=tuple(
            derived(NodeImageView, one, since=iso(one.since) if one.since else None)
            for one in images
        ),
    )


def _address(node: Node) -> str:
    address = node.address
    if address.local_socket:
        return address.shim_socket
    if address.host is None:
        return "-"
    port = "" if address.port == 22 else f":{address.port}"
    return f"{address.user}@{address.host}{port}"


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path="/v1/nodes",
        summary="All nodes",
        handler=list_nodes,
        query=PageQuery,
        answer=NodesAnswer,
    ),
    Route(
        method="POST",
        path="/v1/nodes",
        summary="Add a node; its host key is given, or its fingerprint accepted",
        handler=add_node,
        body=NodeRequest,
        answer=NodeView,
        status=201,
    ),
    Route(
        method="GET",
        path="/v1/nodes/{node}",
        summary="One node, by id or name",
        handler=get_node,
        answer=NodeView,
    ),
    Route(
        method="POST",
        path="/v1/nodes/{node}/drain",
        summary="Drain a node: no new placements; running jobs stay until the deadline",
        handler=drain_node,
        body=DrainBody,
        answer=NodeView,
    ),
    Route(
        method="POST",
        path="/v1/nodes/{node}/resume",
        summary="Allow new placements on a drained node",
        handler=resume_node,
        answer=NodeView,
    ),
    Route(
        method="POST",
        path="/v1/nodes/{node}/gpus/{gpu}/clear",
        summary="Offer a GPU again that was cordoned because of a fault",
        handler=clear_gpu,
        answer=NodeView,
    ),
    Route(
        method="DELETE",
        path="/v1/nodes/{node}",
        summary="Remove a node that has no jobs, or a lost one with its jobs",
        handler=remove_node,
        query=RemoveQuery,
        answer=NodeView,
    ),
    Route(
        method="GET",
        path="/v1/node-key",
        summary="The controller's public SSH key, for the nodes",
        handler=get_node_key,
        answer=NodeKeyAnswer,
    ),
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
        path="/v1/nodes/{node}/doctor",
        summary="What a job needs of the node, looked at now, with a fix for what is wrong",
        handler=examine_node,
        answer=FindingsAnswer,
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
)
