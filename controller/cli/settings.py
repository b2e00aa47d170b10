"""The environment alone says which controller a command talks to, and with which token."""

from __future__ import annotations

import os
from pathlib import Path

from controller.cli.client import ControllerClient
from controller.cli.errors import CliError

DEFAULT_URL = "http://127.0.0.1:8700"


def client() -> ControllerClient:
    """Return the client. Raises CliError when FAIRLEAD_URL or FAIRLEAD_TOKEN_FILE is unusable."""
    return ControllerClient(os.environ.get("FAIRLEAD_URL") or DEFAULT_URL, _token())


def _token() -> str | None:
    token = os.environ.get("FAIRLEAD_TOKEN")
    path = os.environ.get("FAIRLEAD_TOKEN_FILE")
    if token or not path:
        return _clean(token, "FAIRLEAD_TOKEN")
    try:
        return _clean(Path(path).read_text(), "FAIRLEAD_TOKEN_FILE")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not a text"
        raise CliError(f"FAIRLEAD_TOKEN_FILE: cannot read {path}: {why}") from None


def _clean(token: str | None, source: str) -> str | None:
    if token is None or not token.strip():
        return None
    token = token.strip()
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise CliError(f"{source} does not hold a token (it has other characters in it)")
    return token
