"""Keys of services as REST."""

from __future__ import annotations

import msgspec

from controller.api.http.paging import PageQuery, page
from controller.api.http.routes import Call, Route
from controller.api.views import derived
from fairlead.documents.services import NewServiceKeyView, ServiceKeyView


class ServiceKeyBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    service: str
    label: str = ""


class ServiceKeysQuery(PageQuery, frozen=True, kw_only=True):
    """`service`: only the keys of this service."""

    service: str | None = None


class ServiceKeysAnswer(msgspec.Struct, frozen=True, kw_only=True):
    keys: tuple[ServiceKeyView, ...]
    next_cursor: str | None


async def list_service_keys(call: Call) -> ServiceKeysAnswer:
    query: ServiceKeysQuery = call.query
    keys = call.service.accounts.service_keys.keys(query.service, by=call.caller)
    found, cursor = page(keys, query, lambda key: key.id)
    views = tuple(derived(ServiceKeyView, key) for key in found)
    return ServiceKeysAnswer(keys=views, next_cursor=cursor)


async def add_service_key(call: Call) -> NewServiceKeyView:
    body: ServiceKeyBody = call.body
    made = await call.service.accounts.service_keys.add(
        body.service, label=body.label, by=call.caller
    )
    return derived(NewServiceKeyView, made.key, secret=made.secret, live=made.live)


async def revoke_service_key(call: Call) -> ServiceKeyView:
    key = await call.service.accounts.service_keys.revoke(call.path("key"), by=call.caller)
    return derived(ServiceKeyView, key)


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path="/v1/service-keys",
        summary="Keys of services, without their secrets",
        handler=list_service_keys,
        query=ServiceKeysQuery,
        answer=ServiceKeysAnswer,
    ),
    Route(
        method="POST",
        path="/v1/service-keys",
        summary="Make a key that opens one service; only this answer has it",
        handler=add_service_key,
        body=ServiceKeyBody,
        answer=NewServiceKeyView,
        status=201,
    ),
    Route(
        method="DELETE",
        path="/v1/service-keys/{key}",
        summary="Revoke a key of a service; its open requests end",
        handler=revoke_service_key,
        answer=ServiceKeyView,
    ),
)
