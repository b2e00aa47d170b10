"""Users, their tokens and their secrets."""

from __future__ import annotations

import msgspec

from fairlead.model.spec import Band, Role


class UserView(msgspec.Struct, frozen=True, kw_only=True):
    """`bands`: those granted beyond the bands that every user may use."""

    name: str
    role: Role
    bands: tuple[Band, ...]
    created_at: str


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    user: str
    label: str
    created_at: str
    expires_at: str | None


class SecretView(msgspec.Struct, frozen=True, kw_only=True):
    """A stored secret without its value. `shared`: all users' runs may name it."""

    name: str
    shared: bool
    created_at: str
    updated_at: str


class NewTokenView(TokenView, frozen=True, kw_only=True):
    """`token` is the secret itself; no other answer has it."""

    token: str


class NewUserView(UserView, frozen=True, kw_only=True):
    token: NewTokenView


class CallerView(UserView, frozen=True, kw_only=True):
    """`token`: the one that the request was made with."""

    token: TokenView


class LoginLinkView(msgspec.Struct, frozen=True, kw_only=True):
    """A link that logs a browser in to the dashboard, once. `path` is a secret until then."""

    path: str
    expires_at: str
