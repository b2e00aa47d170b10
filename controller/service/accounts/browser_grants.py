"""What lets a browser into one service: its user opened it from the dashboard.

The dashboard gives a code, which the browser that asked for it turns into a session of the service.
A grant is known by the digest of the secret that the two make together (`common.tokens`), so a
gateway can ask for it like for a token. Grants are in memory: a restart of the controller ends
them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from typing import TypeVar

import msgspec

from common.tokens import browser_secret, digest
from controller.clock import Clock
from controller.store.accounts import StoredToken

T = TypeVar("T")

CODE_SECONDS = 60.0
"""How long a code may wait for its first use."""
GRANT_SECONDS = 12 * 3600.0
MAX_OF_USER = 256
"""Grants, and links to log in, that one user may have; the oldest goes."""


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """The user of this token may use the run's service from one browser. `login`: the dashboard's
    login, with which it ends."""

    run_id: str
    user: str
    token_id: str
    login: str | None
    expires_at: float
    is_used: bool = False


def make_room(kept: dict[str, T], user: str, user_of: Callable[[T], str]) -> None:
    """Drop the user's oldest, so that one more fits.

    A user may ask for codes without end: the memory for them stays small, and others keep theirs.
    """
    own = [key for key, one in kept.items() if user_of(one) == user]
    for key in own[: max(len(own) - MAX_OF_USER + 1, 0)]:
        del kept[key]


class BrowserGrants:
    """The grants that have not ended, by digest."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._grants: dict[str, Grant] = {}

    def make(self, run_id: str, token: StoredToken, login: str | None, state: str) -> str:
        """Return a code for the browser that asked with this state."""
        now = self._clock.now()
        self._grants = {key: one for key, one in self._grants.items() if one.expires_at > now}
        make_room(self._grants, token.user, lambda grant: grant.user)
        code = secrets.token_hex(24)
        self._grants[digest(browser_secret(code, state))] = Grant(
            run_id=run_id,
            user=token.user,
            token_id=token.id,
            login=login,
            expires_at=now + CODE_SECONDS,
        )
        return code

    def use(self, proof: str, run_id: str, *, once: bool = False) -> Grant | None:
        """Return the grant with this digest; None: there is none for this run. Its first use makes
        it last, or ends it if it is used `once`."""
        now, found = self._clock.now(), self._grants.get(proof)
        if found is None or found.run_id != run_id or found.expires_at <= now:
            return None
        if once:
            return self._grants.pop(proof)
        if not found.is_used:
            found = msgspec.structs.replace(found, is_used=True, expires_at=now + GRANT_SECONDS)
            self._grants[proof] = found
        return found

    def end(self, tokens: Collection[str], logins: Collection[str]) -> list[str]:
        """End the grants of these tokens and logins; return their digests."""
        ended = [
            proof
            for proof, one in self._grants.items()
            if one.token_id in tokens or one.login in logins
        ]
        for proof in ended:
            del self._grants[proof]
        return ended

    def of_token(self, token_id: str) -> list[str]:
        """Return the digests of the grants of this token."""
        return [proof for proof, one in self._grants.items() if one.token_id == token_id]
