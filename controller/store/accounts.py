"""Users, and the tokens, keys and secrets that they keep, as the store has them."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from common.tokens import digest
from controller.lifecycle.model import Band, Role


class EndedLogin(msgspec.Struct, frozen=True):
    """A login to the dashboard that its user ended. `until`: when it would have expired."""

    id: str
    until: float


class User(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    role: Role
    created_at: float
    bands: tuple[Band, ...] = ()
    """Bands granted to this user beyond those that every user may use."""
    ended_logins: tuple[EndedLogin, ...] = ()


class StoredToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token of a user. `digest` is the result of `tokens.digest`; the token itself is never
    stored."""

    id: str
    user: str
    digest: str
    created_at: float
    label: str = ""
    expires_at: float | None = None
    """Unix seconds; None: it holds until it is revoked."""


class ServiceKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that opens one service alone: the one of this name while `user` owns it."""

    id: str
    service: str
    user: str
    """The owner of the service."""
    digest: str
    created_at: float
    label: str = ""


class StoredSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that jobs can name. `user` None: all users share it. `sealed` is its value, as only
    the key file can open it."""

    id: str
    user: str | None
    name: str
    sealed: str
    created_at: float
    updated_at: float

    def __repr__(self) -> str:
        return f"StoredSecret(user={self.user!r}, name={self.name!r})"


_Secret = TypeVar("_Secret", StoredToken, ServiceKey)


def matching(token: str, stored: Iterable[_Secret]) -> _Secret | None:
    """Return the stored token that equals `token`, compared in constant time; None if none does."""
    presented = digest(token)
    found = None
    for candidate in stored:
        if hmac.compare_digest(presented, candidate.digest):
            found = candidate
    return found
