"""Commands about users and tokens."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import msgspec
from cyclopts import Parameter

from fairlead import settings
from fairlead.cli import output
from fairlead.cli.commands.options import Json
from fairlead.cli.errors import EXIT_USAGE, CliError
from fairlead.configuration.values.units import parse_duration
from fairlead.documents.accounts import NewTokenView, NewUserView, TokenView, UserView
from fairlead.model.spec import Band, Role
from fairlead.rest import decode

Bands = Annotated[tuple[Band, ...], Parameter(name="--band", negative=())]


class _Users(msgspec.Struct):
    users: list[UserView]


class _Tokens(msgspec.Struct):
    tokens: list[TokenView]


def add_user(name: str, /, *, role: Role = Role.USER, band: Bands = (), json: Json = False) -> int:
    """Add a user and show a first token; it is shown only once.

    Parameters
    ----------
    role
        An admin may change everything.
    band
        A band to grant, in addition to the bands that every user may use.
    """
    body = {"name": name, "role": role.value, "bands": [one.value for one in band]}
    data = settings.client().post("/v1/users", body)
    if json:
        output.emit_json(data)
        return 0
    _show_secret(decode(data, NewUserView).token)
    return 0


def list_users(*, json: Json = False) -> int:
    """List users."""
    data = settings.client().get("/v1/users")
    if json:
        output.emit_json(data)
        return 0
    output.emit_table(
        ("NAME", "ROLE", "GRANTED", "SINCE"),
        [
            (user.name, user.role, ", ".join(user.bands) or "-", user.created_at)
            for user in decode(data, _Users).users
        ],
    )
    return 0


def show_user(name: str, /, *, json: Json = False) -> int:
    """Show a user."""
    return _shown(settings.client().get(f"/v1/users/{quote(name, safe='')}"), json)


def set_user(name: str, /, *, role: Role, json: Json = False) -> int:
    """Change a user's role; it applies at once.

    Parameters
    ----------
    role
        An admin may change everything.
    """
    path = f"/v1/users/{quote(name, safe='')}"
    return _shown(settings.client().patch(path, {"role": role.value}), json)


def _shown(data: bytes, json: bool) -> int:
    if json:
        output.emit_json(data)
        return 0
    user = decode(data, UserView)
    granted = ", ".join(user.bands) or "nothing"
    output.emit(f"user {user.name} (role {user.role}), granted {granted}, since {user.created_at}")
    return 0


def grant(name: str, /, *, band: Bands = (), json: Json = False) -> int:
    """Set the bands that a user may use beyond those that every user may; none: no grants.

    Parameters
    ----------
    band
        A band; may be repeated.
    """
    body = {"bands": [one.value for one in band]}
    data = settings.client().put(f"/v1/users/{quote(name, safe='')}/bands", body)
    if json:
        output.emit_json(data)
        return 0
    user = decode(data, UserView)
    granted = ", ".join(user.bands) or "nothing beyond the bands of every user"
    output.emit(f"user {user.name} is granted: {granted}")
    return 0


def remove_user(name: str, /, *, json: Json = False) -> int:
    """Remove a user who has no live runs; the user's tokens end at once."""
    data = settings.client().delete(f"/v1/users/{quote(name, safe='')}")
    return output.emit_done(data, json, f"user {name} removed")


def add_token(
    *,
    user: str | None = None,
    label: str = "",
    expires: str | None = None,
    json: Json = False,
) -> int:
    """Make another token and show it; it is shown only once.

    Parameters
    ----------
    user
        The token's user; default: you.
    label
        A label that tells the token from others.
    expires
        How long the token is valid, such as 8h or 30d; default: until it is revoked.
    """
    body = {"user": user, "label": label, "expires_in": _seconds(expires)}
    data = settings.client().post("/v1/tokens", body)
    if json:
        output.emit_json(data)
        return 0
    _show_secret(decode(data, NewTokenView))
    return 0


def list_tokens(*, user: str | None = None, json: Json = False) -> int:
    """List tokens, without their secrets.

    Parameters
    ----------
    user
        Only this user's tokens; default: yours, or all for an admin.
    """
    data = settings.client().get("/v1/tokens", user=user)
    if json:
        output.emit_json(data)
        return 0
    output.emit_table(
        ("ID", "USER", "LABEL", "SINCE", "EXPIRES"),
        [
            (token.id, token.user, token.label or "-", token.created_at, token.expires_at or "-")
            for token in decode(data, _Tokens).tokens
        ],
    )
    return 0


def revoke_token(id: str, /, *, json: Json = False) -> int:
    """Revoke a token at once; its open streams end."""
    data = settings.client().delete(f"/v1/tokens/{quote(id, safe='')}")
    return output.emit_done(data, json, f"token {id} revoked")


def _seconds(expires: str | None) -> float | None:
    try:
        return None if expires is None else parse_duration(expires)
    except ValueError as error:
        raise CliError(f"--expires: {error}; write 8h or 30d", EXIT_USAGE) from None


def _show_secret(made: NewTokenView) -> None:
    output.emit(made.token)
