"""Bearer tokens as the store sees them: a hash to compare with, never the token.

A token has 256 random bits, so a plain SHA-256 cannot be reversed by guessing: a slow password hash
would only make every request slow.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable

from controller.store.users import StoredToken

TOKEN_PREFIX = "fl_"
TOKEN_BYTES = 32


def new_token(random_bytes: Callable[[int], bytes]) -> str:
    """A token made of `random_bytes(32)`, which must come from the system's secure source."""
    return TOKEN_PREFIX + random_bytes(TOKEN_BYTES).hex()


def digest(token: str) -> str:
    """The hex SHA-256 of the token: all that is stored of it."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def matching(token: str, stored: Iterable[StoredToken]) -> StoredToken | None:
    """The stored token that `token` is, compared in constant time; None if it is none of them."""
    presented = digest(token)
    found = None
    for candidate in stored:
        if hmac.compare_digest(presented, candidate.digest):
            found = candidate
    return found
