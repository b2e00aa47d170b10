"""One-time links: a user who has a token opens the dashboard in a browser without pasting it."""

from __future__ import annotations

import secrets

import msgspec

from controller.clock import Clock
from controller.service.errors import Unauthenticated
from controller.service.users import Gate
from controller.store.base import StoredToken, digest

LINK_SECONDS = 120.0
_MOST_LINKS = 10_000


class LoginLink(msgspec.Struct, frozen=True, kw_only=True):
    """`code` is a secret; it stands for the token once, until `expires_at`."""

    code: str
    expires_at: float

    def __repr__(self) -> str:
        return f"LoginLink(expires_at={self.expires_at!r})"


class LoginLinks:
    """The links that were not used yet, in memory: a restart of the controller ends them."""

    def __init__(self, gate: Gate, clock: Clock) -> None:
        self._gate = gate
        self._clock = clock
        self._links: dict[str, tuple[str, float]] = {}

    def make(self, token: StoredToken) -> LoginLink:
        now = self._clock.now()
        self._links = {key: link for key, link in self._links.items() if link[1] > now}
        if len(self._links) >= _MOST_LINKS:
            del self._links[next(iter(self._links))]
        made = LoginLink(code=secrets.token_urlsafe(24), expires_at=now + LINK_SECONDS)
        self._links[digest(made.code)] = (token.id, made.expires_at)
        return made

    def look_up(self, code: str) -> StoredToken:
        """Return the token that the link stands for. Raises Unauthenticated."""
        token_id, expires_at = self._links.get(digest(code), ("", 0.0))
        if expires_at <= self._clock.now():
            raise Unauthenticated(
                "this link was used already, or has expired; `fairlead dashboard` makes another"
            )
        return self._gate.token_by_id(token_id)

    def take(self, code: str) -> StoredToken:
        """Return the token that the link stands for, and end the link. Raises Unauthenticated."""
        token = self.look_up(code)
        del self._links[digest(code)]
        return token
