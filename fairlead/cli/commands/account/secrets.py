"""Commands for stored secrets: `secret set`, `list`, `delete`, `rotate-key`.

A value comes from a file, standard input or a prompt, never from the command line, which others can
read.
"""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from fairlead import settings
from fairlead.cli import output
from fairlead.cli.commands.options import Json
from fairlead.cli.errors import EXIT_USAGE, CliError
from fairlead.documents.accounts import SecretView
from fairlead.rest import decode, secret_path

Shared = Annotated[
    bool, Parameter(negative=(), help="The secret is for the runs of all users (admins only).")
]
_STANDARD_INPUT = Path("-")


class _Secrets(msgspec.Struct):
    secrets: list[SecretView]


class _Rotated(msgspec.Struct):
    secrets: int


def set_secret(
    name: str,
    /,
    *,
    from_file: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    shared: Shared = False,
    json: Json = False,
) -> int:
    """Store a secret, or a new value of it. Jobs get it by ${{ secrets.NAME }} in their YAML.

    The value is read from standard input, or asked for; one line's end after it is left out.

    Parameters
    ----------
    from_file
        Read the value from this file; - for standard input.
    """
    value = _value(name, from_file)
    data = settings.client().put(secret_path(name), {"value": value, "shared": shared})
    return output.emit_done(data, json, f"secret {name} stored")


def list_secrets(*, json: Json = False) -> int:
    """List your stored secrets and the shared ones, without their values."""
    data = settings.client().get("/v1/secrets")
    if json:
        output.emit_json(data)
        return 0
    output.emit_table(
        ("NAME", "FOR", "SINCE", "CHANGED"),
        [
            (
                secret.name,
                "all users" if secret.shared else "you",
                secret.created_at,
                secret.updated_at,
            )
            for secret in decode(data, _Secrets).secrets
        ],
    )
    return 0


def delete_secret(name: str, /, *, shared: Shared = False, json: Json = False) -> int:
    """Delete a stored secret; jobs that have it keep it, and no more get it."""
    query = {"shared": "true"} if shared else {}
    data = settings.client().delete(secret_path(name), **query)
    return output.emit_done(data, json, f"secret {name} deleted")


def rotate_key(*, json: Json = False) -> int:
    """Seal all stored secrets with a new key and forget the old one (admins only).

    If it is cut off, give the command again.
    """
    data = settings.client().post("/v1/secrets-key/rotate", {})
    return output.emit_done(data, json, f"{decode(data, _Rotated).secrets} secrets have a new key")


def _value(name: str, file: Path | None) -> str:
    """Return the value without one line's end. Raises CliError."""
    try:
        if file is None and sys.stdin.isatty():
            return getpass.getpass(f"value of {name}: ")
        source = "standard input" if file in (None, _STANDARD_INPUT) else str(file)
        if file is None or file == _STANDARD_INPUT:
            data = sys.stdin.buffer.read()
        else:
            data = file.read_bytes()
        text = data.decode("utf-8")
    except OSError as error:
        raise CliError(f"--from-file {file}: can't be read: {error.strerror}", EXIT_USAGE) from None
    except UnicodeDecodeError:
        raise CliError(
            f"{source} is not UTF-8 text; encode it first, such as with base64", EXIT_USAGE
        ) from None
    return text.removesuffix("\n").removesuffix("\r")
