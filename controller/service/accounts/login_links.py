"""One-time links: a user who has a token opens the dashboard in a browser without pasting it."""

from __future__ import annotations

import secrets

import msgspec

from common.refusals import Unauthenticated
from common.tokens import digest
from controller.clock import Clock
from controller.service.accounts.browser_grants import make_room
from controller.service.accounts.users import Gate
from controller.store.accounts import StoredToken

LINK_SECONDS = 120.0


class LoginLink(msgspec.Struct, frozen=True, kw_only=True):
    """`code` is a secret; it stands for the token once, until `expires_at`."""

    code: str
    expires_at: float

    def __repr__(self) -> str:
        return f"LoginLink(expires_at={self.expires_at!r})"


class _Made(msgspec.Struct, frozen=True):
    user: str
    token_id: str
    expires_at: float


class LoginLinks:
    """The links that were not used yet, in memory: a restart of the controller ends them."""

    def __init__(self, gate: Gate, clock: Clock) -> None:
        self._gate = gate
        self._clock = clock
        self._links: dict[str, _Made] = {}

    def make(self, token: StoredToken) -> LoginLink:
        now = self._clock.now()
        self._links = {key: link for key, link in self._links.items() if link.expires_at > now}
        make_room(self._links, token.user, lambda link: link.user)
        made = LoginLink(code=secrets.token_urlsafe(24), expires_at=now + LINK_SECONDS)
        self._links[digest(made.code)] = _Made(token.user, token.id, made.expires_at)
        return made

    def look_up(self, code: str) -> StoredToken:
        """Return the token that the link stands for. Raises Unauthenticated."""
        made = self._links.get(digest(code))
        if made is None or made.expires_at <= self._clock.now():
            raise Unauthenticated(
                "this link was used already, or has expired; `fairlead dashboard` makes another"
            )
        return self._gate.token_by_id(made.token_id)

    def take(self, code: str) -> StoredToken:
        """Return the token that the link stands for, and end the link. Raises Unauthenticated."""
        token = self.look_up(code)
        del self._links[digest(code)]
        return token
