"""Gateways as REST."""

from __future__ import annotations

import msgspec

from common.refusals import Invalid
from controller.api.http.paging import PageQuery, page
from controller.api.http.routes import Call, Route
from controller.clock import iso
from controller.service.machines.gateways import GatewayNow, GatewayRequest
from fairlead.documents.installation import GatewayView, HostCertificateView


class GatewaysAnswer(msgspec.Struct, frozen=True, kw_only=True):
    gateways: tuple[GatewayView, ...]
    next_cursor: str | None


async def list_gateways(call: Call) -> GatewaysAnswer:
    query: PageQuery = call.query
    found, cursor = page(call.service.gateways.all(), query, lambda one: one.gateway.name)
    return GatewaysAnswer(gateways=tuple(map(_view, found)), next_cursor=cursor)


async def get_gateway(call: Call) -> GatewayView:
    return _view(call.service.gateways.get(call.path("gateway")))


async def add_gateway(call: Call) -> GatewayView:
    request: GatewayRequest = call.body
    return _view(await call.service.gateways.add(request, user=call.caller))


async def put_gateway(call: Call) -> GatewayView:
    request: GatewayRequest = call.body
    if request.name != call.path("gateway"):
        raise Invalid("the body names another gateway than the path", field="name")
    return _view(await call.service.gateways.put(request, user=call.caller))


async def remove_gateway(call: Call) -> GatewayView:
    return _view(await call.service.gateways.remove(call.path("gateway"), user=call.caller))


def _view(now: GatewayNow) -> GatewayView:
    gateway = now.gateway
    address = gateway.address
    return GatewayView(
        name=gateway.name,
        domain=gateway.domain,
        host=address.host,
        port=None if address.host is None else address.port,
        local_socket=address.shim_socket if address.local_socket else None,
        certificate=gateway.certificate,
        default=gateway.is_default,
        status="connected" if now.is_up else "away",
        message=now.message,
        version=now.version,
        key=gateway.key,
        services=now.services,
        created_at=iso(gateway.created_at),
        certificates=tuple(
            HostCertificateView(
                host=one.host,
                issuer=one.issuer,
                expires_at=None if one.expires is None else iso(one.expires),
                error=one.error,
            )
            for one in now.certificates
        ),
    )


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path="/v1/gateways",
        summary="Gateways, and how their agents are",
        handler=list_gateways,
        query=PageQuery,
        answer=GatewaysAnswer,
    ),
    Route(
        method="POST",
        path="/v1/gateways",
        summary="Add a gateway whose agent answers",
        handler=add_gateway,
        body=GatewayRequest,
        answer=GatewayView,
        status=201,
    ),
    Route(
        method="GET",
        path="/v1/gateways/{gateway}",
        summary="A gateway",
        handler=get_gateway,
        answer=GatewayView,
    ),
    Route(
        method="PUT",
        path="/v1/gateways/{gateway}",
        summary="Add a gateway, or change the one with this name",
        handler=put_gateway,
        body=GatewayRequest,
        answer=GatewayView,
    ),
    Route(
        method="DELETE",
        path="/v1/gateways/{gateway}",
        summary="Remove a gateway that no live service uses",
        handler=remove_gateway,
        answer=GatewayView,
    ),
)
