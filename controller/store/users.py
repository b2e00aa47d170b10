"""Who may talk to the controller; a token is kept only as its hash (see `tokens`)."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from controller.lifecycle.model import Band


class Role(StrEnum):
    ADMIN = "admin"
    USER = "user"


class User(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    role: Role
    created_at: float
    bands: tuple[Band, ...] = ()
    """Granted beyond those that everybody may use."""


class StoredToken(msgspec.Struct, frozen=True, kw_only=True):
    """`digest` is what `tokens.digest` made of the token; the token itself is never stored."""

    id: str
    user: str
    digest: str
    created_at: float
    label: str = ""
