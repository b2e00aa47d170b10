"""Users and their tokens: who is let in, with what role, and into which bands.

What a change promises holds at once: the gate is told as soon as it is committed.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Iterable

import msgspec

from controller.clock import Clock
from controller.lifecycle.model import Band, RunState
from controller.service.access import Gate, require_admin
from controller.service.errors import Conflict, Forbidden, Invalid, NotFound
from controller.store.base import Changes, Store
from controller.store.tokens import digest, new_token
from controller.store.users import Role, StoredToken, User

_NAME = re.compile(r"[a-z][a-z0-9._-]{0,39}", re.ASCII)
MOST_LABEL = 100
GRANTABLE = (Band.PRODUCTION,)
"""The bands that not everybody may use anyway."""


class NewToken(msgspec.Struct, frozen=True, kw_only=True):
    """`secret` is shown this once; what is kept of it can't be turned back."""

    token: StoredToken
    secret: str

    def __repr__(self) -> str:
        return f"NewToken(token={self.token!r})"


class UserService:
    """`live_runs` are those whose owner must not disappear."""

    def __init__(
        self,
        *,
        store: Store,
        gate: Gate,
        clock: Clock,
        live_runs: Callable[[], Iterable[RunState]],
    ) -> None:
        self._store = store
        self._gate = gate
        self._clock = clock
        self._live_runs = live_runs
        self._changing = asyncio.Lock()

    def all(self, *, by: User) -> list[User]:
        """By name. Raises Forbidden."""
        require_admin(by, "list users")
        return sorted(self._gate.users.values(), key=lambda user: user.name)

    async def add(
        self, name: str, *, role: Role, bands: Iterable[Band], by: User
    ) -> tuple[User, NewToken]:
        """The user and a first token. Raises Forbidden, Invalid, Conflict, StoreUnavailable."""
        require_admin(by, "add a user")
        if _NAME.fullmatch(name) is None:
            raise Invalid(
                f"{name!r} is not a user name: a small letter, then up to 39 small letters, digits,"
                f" dots, underscores and hyphens",
                field="name",
            )
        async with self._changing:
            if name in self._gate.users:
                raise Conflict(
                    f"there is a user {name} already; `fairlead token add --user {name}` makes one "
                    f"more token",
                    code="name_taken",
                    field="name",
                )
            user = User(name=name, role=role, created_at=self._clock.now(), bands=_bands(bands))
            made = self._token(name, "first")
            await self._commit(Changes(users=(user,), tokens=(made.token,)))
        return user, made

    def get(self, name: str, *, by: User) -> User:
        """Oneself, or for an admin anybody. Raises Forbidden, NotFound."""
        if by.name != name:
            require_admin(by, "see another user")
        return self._user(name)

    async def set_role(self, name: str, role: Role, *, by: User) -> User:
        """At once in force; what goes on under the user's tokens ends, so that nobody goes on
        seeing what the old role showed. Raises Forbidden, NotFound, Conflict, StoreUnavailable."""
        require_admin(by, "change a user's role")
        async with self._changing:
            user = self._user(name)
            if role is not user.role:
                self._require_other_admin(user)
                user = msgspec.structs.replace(user, role=role)
                await self._commit(Changes(users=(user,)))
                self._gate.end_streams(name)
        return user

    async def grant(self, name: str, bands: Iterable[Band], *, by: User) -> User:
        """The user may use exactly these bands, beyond those that everybody may.

        Raises Forbidden, NotFound, Invalid, StoreUnavailable."""
        require_admin(by, "grant bands")
        async with self._changing:
            user = msgspec.structs.replace(self._user(name), bands=_bands(bands))
            await self._commit(Changes(users=(user,)))
        return user

    async def remove(self, name: str, *, by: User) -> User:
        """The user's tokens end with it. Raises Forbidden, NotFound, Conflict, StoreUnavailable."""
        require_admin(by, "remove a user")
        async with self._changing:
            user = self._user(name)
            self._require_other_admin(user)
            live = sorted(state.run.name for state in self._live_runs() if state.run.user == name)
            if live:
                raise Conflict(
                    f"{name} has live runs ({', '.join(live[:5])}{' …' * (len(live) > 5)}); stop "
                    f"them first (`fairlead stop RUN`), or revoke the tokens alone",
                    code="user_busy",
                    field="user",
                )
            await self._commit(Changes(removed_users=(name,)))
        return user

    def tokens(self, name: str | None, *, by: User) -> list[StoredToken]:
        """Of one user; None: of everybody for an admin, else one's own. Raises Forbidden,
        NotFound."""
        if name is None and by.role is not Role.ADMIN:
            name = by.name
        if name is not None:
            _require_own(by, self._user(name).name)
        found = [token for token in self._gate.tokens if name in (None, token.user)]
        return sorted(found, key=lambda token: (token.user, token.created_at, token.id))

    async def add_token(self, name: str | None, *, label: str, by: User) -> NewToken:
        """For `name`, or oneself. Raises Forbidden, NotFound, Invalid, StoreUnavailable."""
        if len(label) > MOST_LABEL or not label.isprintable():
            raise Invalid(
                f"a token's label has at most {MOST_LABEL} printable characters", field="label"
            )
        async with self._changing:
            user = self._user(name or by.name)
            _require_own(by, user.name)
            made = self._token(user.name, label)
            await self._commit(Changes(tokens=(made.token,)))
        return made

    async def revoke(self, token_id: str, *, by: User) -> StoredToken:
        """Raises Forbidden, NotFound, StoreUnavailable."""
        async with self._changing:
            token = next((one for one in self._gate.tokens if one.id == token_id), None)
            if token is None:
                raise NotFound(
                    f"there is no token {token_id!r}; `fairlead token list` shows them",
                    field="token",
                )
            _require_own(by, token.user)
            await self._commit(Changes(removed_tokens=(token_id,)))
        return token

    def _user(self, name: str) -> User:
        user = self._gate.users.get(name)
        if user is None:
            raise NotFound(
                f"there is no user {name!r}; `fairlead user list` shows them", field="user"
            )
        return user

    def _require_other_admin(self, user: User) -> None:
        admins = [one for one in self._gate.users.values() if one.role is Role.ADMIN]
        if admins == [user]:
            raise Conflict(
                f"{user.name} is the only admin; add another one first "
                f"(`fairlead user add NAME --role admin`)",
                code="last_admin",
                field="user",
            )

    def _token(self, user: str, label: str) -> NewToken:
        secret = new_token(secrets.token_bytes)
        token = StoredToken(
            id=secrets.token_hex(8),
            user=user,
            digest=digest(secret),
            created_at=self._clock.now(),
            label=label,
        )
        return NewToken(token=token, secret=secret)

    async def _commit(self, changes: Changes) -> None:
        await self._store.commit(changes)
        self._gate.apply(changes)


def _require_own(by: User, name: str) -> None:
    if by.role is not Role.ADMIN and by.name != name:
        raise Forbidden(f"only {name} or an admin may see or change the tokens of {name}")


def _bands(bands: Iterable[Band]) -> tuple[Band, ...]:
    wanted = tuple(dict.fromkeys(bands))
    for band in wanted:
        if band not in GRANTABLE:
            raise Invalid(f"everybody may use the band {band}; only production is granted")
    return wanted
