"""Makes the snapshot that a gateway serves, from the committed routes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controller.lifecycle.model import Node
from controller.store.base import Gateway
from controller.traffic.routes import ReplicaRoute, Route
from fairlead.model.service import Https
from fairlead.wire.gateway import (
    Browsers,
    GatewayNode,
    GatewayRateLimit,
    GatewayReplica,
    GatewayService,
    ProxyLimits,
    Snapshot,
)

Offered = Mapping[str, tuple[ReplicaRoute, ...]]
"""The replicas that are being registered, by run id."""


def host_of(service: str, gateway: Gateway) -> str:
    """Return the host name of a service."""
    return f"{service}.{gateway.domain}"


def url_of(service: str, https: Https, gateway: Gateway) -> str:
    plain = https is Https.OFF or gateway.certificate.kind == "none"
    return f"{'http' if plain else 'https'}://{host_of(service, gateway)}/"


def snapshot_of(
    gateway: Gateway,
    version: int,
    routes: Iterable[Route],
    offered: Offered,
    nodes: Mapping[str, Node],
    limits: ProxyLimits,
    browsers: Browsers,
    controller_id: str,
) -> Snapshot:
    """Return all that this gateway serves."""
    services = tuple(
        _service(gateway, route, offered.get(route.run_id, ()))
        for route in sorted(routes, key=lambda route: route.run_id)
        if route.service.gateway == gateway.name
    )
    used = {replica.node_id for service in services for replica in service.replicas}
    return Snapshot(
        version=version,
        controller=controller_id,
        gateway=gateway.name,
        domain=gateway.domain,
        certificate=gateway.certificate,
        limits=limits,
        browsers=browsers,
        nodes=tuple(node_of(nodes[node_id]) for node_id in sorted(used) if node_id in nodes),
        services=services,
    )


def _service(gateway: Gateway, route: Route, offered: Iterable[ReplicaRoute]) -> GatewayService:
    policy = route.service
    shown = {one.attempt_id: one for one in (*offered, *route.replicas, *route.unreached)}
    return GatewayService(
        run_id=route.run_id,
        name=route.name,
        owner=route.user,
        host=host_of(route.name, gateway),
        https=policy.https.value,
        auth=policy.auth,
        model=policy.model,
        model_prefix=policy.model_prefix,
        headers=policy.headers,
        eject_for=policy.eject_for,
        groups=tuple(group.name for group in policy.groups),
        rate_limits=tuple(
            GatewayRateLimit(prefix=one.prefix, header=one.header, rps=one.rps, burst=one.burst + 1)
            for one in policy.rate_limits
        ),
        replicas=tuple(
            GatewayReplica(id=id, group=one.group, node_id=one.node_id, socket=one.exposed_socket)
            for id, one in sorted(shown.items())
            if one.exposed_socket is not None
        ),
        draining=tuple(sorted(one.attempt_id for one in route.draining)),
        is_held=not route.ending and all(group.least == 0 for group in policy.groups),
    )


def node_of(node: Node) -> GatewayNode:
    """Return how the exposed sockets of a node are reached."""
    address = node.address
    return GatewayNode(
        id=node.id,
        host=address.host or "",
        port=address.port,
        host_key=address.host_key or "",
        local=address.local_socket,
    )
