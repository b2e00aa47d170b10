"""Stored secrets as REST: bodies, answers and routes. No answer has a value."""

from __future__ import annotations

import msgspec

from controller.api.http.paging import PageQuery, page
from controller.api.http.routes import Call, Route
from controller.api.views import derived
from controller.store.accounts import StoredSecret
from fairlead.documents.accounts import SecretView
from fairlead.queries import Query


class SecretBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`shared`: for the runs of all users; only an admin may set it."""

    value: str
    shared: bool = False

    def __repr__(self) -> str:
        return "SecretBody(***)"


class SecretQuery(Query, frozen=True, kw_only=True):
    """`shared`: the secret of all users, not the caller's own."""

    shared: bool = False


class SecretsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    secrets: tuple[SecretView, ...]
    next_cursor: str | None


class RotationAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`secrets`: how many are sealed with the new key."""

    secrets: int


async def list_secrets(call: Call) -> SecretsAnswer:
    query: PageQuery = call.query
    secrets = call.service.accounts.secrets.all(by=call.caller)
    found, cursor = page(secrets, query, _key)
    return SecretsAnswer(secrets=tuple(map(secret_view, found)), next_cursor=cursor)


async def set_secret(call: Call) -> SecretView:
    body: SecretBody = call.body
    stored = await call.service.accounts.secrets.set(
        call.path("secret"), body.value, shared=body.shared, by=call.caller
    )
    return secret_view(stored)


async def delete_secret(call: Call) -> SecretView:
    query: SecretQuery = call.query
    secrets = call.service.accounts.secrets
    return secret_view(
        await secrets.delete(call.path("secret"), shared=query.shared, by=call.caller)
    )


async def rotate_secrets_key(call: Call) -> RotationAnswer:
    return RotationAnswer(secrets=await call.service.accounts.secrets.rotate(by=call.caller))


def _key(secret: StoredSecret) -> str:
    return f"{secret.name}/{'' if secret.user is None else 'own'}"


def secret_view(secret: StoredSecret) -> SecretView:
    return derived(SecretView, secret, shared=secret.user is None)


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path="/v1/secrets",
        summary="The caller's stored secrets and the shared ones, without their values",
        handler=list_secrets,
        query=PageQuery,
        answer=SecretsAnswer,
    ),
    Route(
        method="PUT",
        path="/v1/secrets/{secret}",
        summary="Store a secret, or a new value of it",
        handler=set_secret,
        body=SecretBody,
        answer=SecretView,
    ),
    Route(
        method="DELETE",
        path="/v1/secrets/{secret}",
        summary="Delete a stored secret",
        handler=delete_secret,
        query=SecretQuery,
        answer=SecretView,
    ),
    Route(
        method="POST",
        path="/v1/secrets-key/rotate",
        summary="Seal all stored secrets with a new key, and forget the old one",
        handler=rotate_secrets_key,
        answer=RotationAnswer,
    ),
)
