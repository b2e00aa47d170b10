"""The tokens and keys of users: how they look, and the digest by which they are known."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

TOKEN_PREFIX = "fl_"
KEY_PREFIX = "flk_"
BROWSER_PREFIX = "flb_"
TOKEN_BYTES = 32


def new_token(random_bytes: Callable[[int], bytes], prefix: str = TOKEN_PREFIX) -> str:
    """Make a token from `random_bytes(32)`, which must come from the system's secure source."""
    return prefix + random_bytes(TOKEN_BYTES).hex()


def digest(token: str) -> str:
    """Return the hex SHA-256 of the token; nothing else of it is stored."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def browser_secret(code: str, state: str) -> str:
    """Return the secret of a browser's session with a service: the dashboard's code, and the
    SHA-256 of what only that browser has."""
    return f"{BROWSER_PREFIX}{code}.{state}"
