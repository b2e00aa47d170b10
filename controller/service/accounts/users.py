"""Users and their tokens: who may log in, with which role, into which bands.

A change applies as soon as it is committed.
"""

from __future__ import annotations

import asyncio
import hmac
import math
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from common.proxy.browsers.sessions import SESSION_SECONDS
from common.refusals import Conflict, Forbidden, Invalid, NotFound, Unauthenticated
from common.tokens import digest, new_token
from controller.clock import Clock
from controller.lifecycle.model import Band, Role, RunState
from controller.service.accounts.browser_grants import BrowserGrants
from controller.service.accounts.rights import require_admin
from controller.store.accounts import EndedLogin, ServiceKey, StoredToken, User, matching
from controller.store.base import Changes, Store

_HINT = (
    "log in with `fairlead login`, or set FAIRLEAD_TOKEN, or FAIRLEAD_TOKEN_FILE to the file "
    "'admin-token' in the controller's data folder"
)

_LOGIN = "login "
"""It stands before the id of a login among those of tokens and keys."""


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """What a request was admitted by. `login`: the id of the dashboard's login that stands for the
    token; None: the token itself was sent."""

    token: StoredToken
    login: str | None = None


class Gate:
    """Turns bearer tokens into users, and ends the streams of a revoked token."""

    def __init__(
        self,
        users: Iterable[User],
        tokens: Iterable[StoredToken],
        clock: Clock,
        service_keys: Iterable[ServiceKey] = (),
    ) -> None:
        self._clock = clock
        self.service_keys: tuple[ServiceKey, ...] = tuple(service_keys)
        self.users: Mapping[str, User] = {user.name: user for user in users}
        self.tokens: tuple[StoredToken, ...] = tuple(tokens)
        self._by_id: dict[str, StoredToken] = {}
        self._by_id_of: tuple[StoredToken, ...] = ()
        self._leaving: set[str] = set()
        self._ending: dict[str, set[Callable[[], object]]] = {}
        self.grants = BrowserGrants(clock)
        self._listeners: list[Callable[[str], object]] = []

    def listen(self, listener: Callable[[str], object]) -> None:
        """Call this with the digest of each token or key that ended, or whose rights changed."""
        self._listeners.append(listener)

    def token_of(self, token: str | None) -> StoredToken:
        """Return the stored token of a known user. Raises Unauthenticated, with what to do."""
        if not token:
            raise Unauthenticated(f"no token was given; {_HINT}")
        stored = matching(token, self.tokens)
        if stored is None:
            raise Unauthenticated(f"the token is not known to this controller; {_HINT}")
        return self._valid(stored)

    def token_of_digest(self, digest: str) -> StoredToken:
        """Return the token with this digest, as `token_of` does. Raises Unauthenticated."""
        # In constant time: how long it takes must not tell how much of a digest is right.
        stored = next(
            (token for token in self.tokens if hmac.compare_digest(token.digest, digest)), None
        )
        if stored is None:
            raise Unauthenticated(f"the token is not known to this controller; {_HINT}")
        return self._valid(stored)

    def token_with_id(self, token_id: str) -> StoredToken:
        """Return the token with this id, as `token_of` does: of a request whose token another
        controller has checked. Raises Unauthenticated."""
        if self._by_id_of is not self.tokens:
            self._by_id_of = self.tokens
            self._by_id = {token.id: token for token in self.tokens}
        stored = self._by_id.get(token_id)
        if stored is None:
            raise Unauthenticated(f"the token is not known to this controller; {_HINT}")
        return self._valid(stored)

    def token_by_id(self, token_id: str) -> StoredToken:
        """Return the token with this id, as `token_of` does: of a request whose token was checked
        before. Raises Unauthenticated."""
        stored = next((token for token in self.tokens if token.id == token_id), None)
        if stored is None:
            raise Unauthenticated("the token of this login was revoked; log in with another one")
        return self._valid(stored)

    def _valid(self, stored: StoredToken) -> StoredToken:
        if stored.user not in self.users:
            raise Unauthenticated(f"the token is not known to this controller; {_HINT}")
        if self._seconds_left(stored) <= 0:
            raise Unauthenticated(
                f"the token expired; ask an admin for another one (`fairlead token add --user"
                f" {stored.user}`), then `fairlead login`",
                code="token_expired",
            )
        return stored

    @contextmanager
    def leaving(self, name: str) -> Iterator[None]:
        """Let nothing new be made for this user within the block, in which it is removed."""
        self._leaving.add(name)
        try:
            yield
        finally:
            self._leaving.discard(name)

    def require_present(self, user: User) -> None:
        """Raise Unauthenticated if the user was removed since its request came, or is about to be.

        Ask right before what a request makes is committed: most requests wait in between.
        """
        known = self.users.get(user.name)
        if known is None or known.created_at != user.created_at or user.name in self._leaving:
            raise Unauthenticated(f"the user {user.name} is being removed by an admin")

    def require_login(self, credential: Credential) -> None:
        """Raise Unauthenticated if the user has logged out of the credential's login."""
        ended = self.users[credential.token.user].ended_logins
        if any(one.id == credential.login for one in ended):
            raise Unauthenticated("you logged out; log in again")

    def granted(self, proof: str, run_id: str, *, once: bool = False) -> Credential | None:
        """Return what a browser's session with this service stands for, by the digest of its
        secret; None: there is no such session. `once`: it is known no more after this. Raises
        Unauthenticated."""
        grant = self.grants.use(proof, run_id, once=once)
        if grant is None:
            return None
        held = Credential(token=self.token_by_id(grant.token_id), login=grant.login)
        self.require_login(held)
        return held

    def service_key(self, secret: str, service: str, owner: str) -> ServiceKey | None:
        """Return the key of this service that equals `secret`; None if none does."""
        fitting = [key for key in self.service_keys if (key.service, key.user) == (service, owner)]
        return matching(secret, fitting)

    def _seconds_left(self, token: StoredToken) -> float:
        return math.inf if token.expires_at is None else token.expires_at - self._clock.now()

    def apply(self, changes: Changes) -> None:
        """Apply committed changes of users and tokens."""
        before = self._digests()
        logged_out = {
            login.id
            for user in changes.users
            for login in user.ended_logins
            if user.name not in self.users or login not in self.users[user.name].ended_logins
        }
        removed = {
            token.id
            for token in self.tokens
            if token.id in changes.removed_tokens or token.user in changes.removed_users
        }
        changed = {user.name: user for user in changes.users}
        everybody = {**self.users, **changed}
        self.users = {
            name: user for name, user in everybody.items() if name not in changes.removed_users
        }
        kept = [token for token in self.tokens if token.id not in removed]
        self.tokens = (*kept, *changes.tokens)
        gone = {
            key.id
            for key in self.service_keys
            if key.id in changes.removed_service_keys or key.user in changes.removed_users
        }
        kept_keys = [key for key in self.service_keys if key.id not in gone]
        self.service_keys = (*kept_keys, *changes.service_keys)
        for ended_id in removed | gone | {_LOGIN + login for login in logged_out}:
            # A copy: a stream that ends takes itself out of the set.
            for end in tuple(self._ending.get(ended_id, ())):
                end()
        ended_grants = self.grants.end(removed, logged_out)
        for ended in sorted((before - self._digests()).union(ended_grants)):
            self._tell(ended)

    def _tell(self, ended: str) -> None:
        for listener in self._listeners:
            listener(ended)

    def _digests(self) -> set[str]:
        tokens = {token.digest for token in self.tokens}
        return tokens | {key.digest for key in self.service_keys}

    def end_streams(self, user: str) -> None:
        """End the open streams of this user's tokens; they may be opened again."""
        for token in self.tokens:
            if token.user == user:
                for end in tuple(self._ending.get(token.id, ())):
                    end()
                for ended in (token.digest, *self.grants.of_token(token.id)):
                    self._tell(ended)

    @contextmanager
    def until_it_ends(
        self, held: Credential | ServiceKey, end: Callable[[], object]
    ) -> Iterator[None]:
        """Call `end` if the token expires or is revoked within this block, or its user logs out of
        the login that it came by."""
        ids = [held.id] if isinstance(held, ServiceKey) else [held.token.id]
        expiry = None
        if isinstance(held, Credential):
            if held.login is not None:
                ids.append(f"{_LOGIN}{held.login}")
            if held.token.expires_at is not None:
                left = max(self._seconds_left(held.token), 0.0)
                expiry = asyncio.get_running_loop().call_later(left, end)
        for one in ids:
            self._ending.setdefault(one, set()).add(end)
        try:
            yield
        finally:
            if expiry is not None:
                expiry.cancel()
            for one in ids:
                self._ending[one].discard(end)
                if not self._ending[one]:
                    del self._ending[one]


_NAME = re.compile(r"[a-z][a-z0-9._-]{0,39}", re.ASCII)
MAX_LABEL = 100
MAX_ENDED_LOGINS = 256
"""Ended logins that are kept of one user, the latest."""
MAX_LIFETIME = 10 * 365 * 86400.0
"""Seconds until a token expires."""
GRANTABLE = (Band.PRODUCTION,)
"""The bands that need a grant."""


class NewToken(msgspec.Struct, frozen=True, kw_only=True):
    """A new token. `secret` is shown only this once; it cannot be computed from what is stored."""

    token: StoredToken
    secret: str

    def __repr__(self) -> str:
        return f"NewToken(token={self.token!r})"


class UserService:
    """Users and tokens; every change is committed. `live_runs`: runs whose owner must not be
    removed. `settled` waits until each run that was handed in is among them. `committed` hears
    each change."""

    def __init__(
        self,
        *,
        store: Store,
        gate: Gate,
        clock: Clock,
        live_runs: Callable[[], Iterable[RunState]],
        settled: Callable[[], Awaitable[None]],
        committed: Callable[[Changes], None] = lambda changes: None,
    ) -> None:
        self._store = store
        self._gate = gate
        self._clock = clock
        self._live_runs = live_runs
        self._settled = settled
        self._committed = committed
        self._changing = asyncio.Lock()

    def all(self, *, by: User) -> list[User]:
        """Return all users, by name. Raises Forbidden."""
        require_admin(by, "list users")
        return sorted(self._gate.users.values(), key=lambda user: user.name)

    async def add(
        self, name: str, *, role: Role, bands: Iterable[Band], by: User
    ) -> tuple[User, NewToken]:
        """Return a new user and its first token. Raises Forbidden, Invalid, Conflict,
        StoreUnavailable."""
        require_admin(by, "add a user")
        if _NAME.fullmatch(name) is None:
            raise Invalid(
                f"{name!r} is not a user name: a lowercase letter, then up to 39 lowercase "
                f"letters, digits, dots, underscores and hyphens",
                field="name",
            )
        async with self._changing:
            # Under the lock: another request could take the name while this one's commit waits.
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
        """Return a user: an admin may see every one, others only themselves. Raises Forbidden,
        NotFound."""
        if by.name != name:
            require_admin(by, "see another user")
        return self._user(name)

    async def set_role(self, name: str, role: Role, *, by: User) -> User:
        """Change the role at once, and end the user's streams, which may show what only the old
        role may see.

        Raises Forbidden, NotFound, Conflict, StoreUnavailable.
        """
        require_admin(by, "change a user's role")
        async with self._changing:
            user = self._user(name)
            if role is not user.role:
                # Under the lock: two admins who demote each other at once would leave none.
                self._require_other_admin(user)
                user = msgspec.structs.replace(user, role=role)
                await self._commit(Changes(users=(user,)))
                self._gate.end_streams(name)
        return user

    async def grant(self, name: str, bands: Iterable[Band], *, by: User) -> User:
        """Let the user use exactly these bands, beyond those that every user may use.

        Raises Forbidden, NotFound, Invalid, StoreUnavailable.
        """
        require_admin(by, "grant bands")
        async with self._changing:
            user = msgspec.structs.replace(self._user(name), bands=_bands(bands))
            await self._commit(Changes(users=(user,)))
        return user

    async def end_login(self, name: str, ended: EndedLogin) -> None:
        """Record that the user logged out of the dashboard. Raises NotFound, StoreUnavailable."""
        async with self._changing:
            user, now = self._user(name), self._clock.now()
            # A session with a service that began right before the end of its login goes on for some
            # time, if the login has expired; if it was ended, that must be known.
            since = now - SESSION_SECONDS
            kept = [one for one in user.ended_logins if one.until > since and one.id != ended.id]
            logins = (*kept, ended)[-MAX_ENDED_LOGINS:]
            await self._commit(Changes(users=(msgspec.structs.replace(user, ended_logins=logins),)))

    async def remove(self, name: str, *, by: User) -> User:
        """Remove a user with its tokens. Raises Forbidden, NotFound, Conflict, StoreUnavailable."""
        require_admin(by, "remove a user")
        async with self._changing:
            user = self._user(name)
            self._require_other_admin(user)
            with self._gate.leaving(name):
                # A run of this user may be on its way into the store: it counts as live, too.
                await self._settled()
                self._require_no_live_runs(name)
                await self._commit(Changes(removed_users=(name,)))
        return user

    def _require_no_live_runs(self, name: str) -> None:
        live = sorted(state.run.name for state in self._live_runs() if state.run.user == name)
        if live:
            raise Conflict(
                f"{name} has live runs ({', '.join(live[:5])}{' …' * (len(live) > 5)}); stop "
                f"them first (`fairlead stop RUN`), or revoke the tokens alone",
                code="user_busy",
                field="user",
            )

    def tokens(self, name: str | None, *, by: User) -> list[StoredToken]:
        """Return the tokens of one user; None: of all users for an admin, else the caller's own.

        Raises Forbidden, NotFound.
        """
        if name is None and by.role is not Role.ADMIN:
            name = by.name
        if name is not None:
            _require_own(by, self._user(name).name)
        found = [token for token in self._gate.tokens if name in (None, token.user)]
        return sorted(found, key=lambda token: (token.user, token.created_at, token.id))

    async def add_token(
        self, name: str | None, *, label: str, by: User, expires_in: float | None = None
    ) -> NewToken:
        """Make a token for `name`, or for the caller, that expires in so many seconds.

        Raises Forbidden, NotFound, Invalid, StoreUnavailable.
        """
        if expires_in is not None and not 0 < expires_in <= MAX_LIFETIME:
            raise Invalid("a token holds more than 0 s and at most 10 years", field="expires_in")
        if len(label) > MAX_LABEL or not label.isprintable():
            raise Invalid(
                f"a token's label has at most {MAX_LABEL} printable characters", field="label"
            )
        async with self._changing:
            user = self._user(name or by.name)
            _require_own(by, user.name)
            made = self._token(user.name, label, expires_in)
            await self._commit(Changes(tokens=(made.token,)))
        return made

    async def revoke(self, token_id: str, *, by: User) -> StoredToken:
        """Revoke a token. Raises Forbidden, NotFound, StoreUnavailable."""
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

    def _token(self, user: str, label: str, expires_in: float | None = None) -> NewToken:
        secret = new_token(secrets.token_bytes)
        now = self._clock.now()
        token = StoredToken(
            id=secrets.token_hex(8),
            user=user,
            digest=digest(secret),
            created_at=now,
            label=label,
            expires_at=None if expires_in is None else now + expires_in,
        )
        return NewToken(token=token, secret=secret)

    async def _commit(self, changes: Changes) -> None:
        await self._store.commit(changes)
        self._gate.apply(changes)
        self._committed(changes)


def _require_own(by: User, name: str) -> None:
    if by.role is not Role.ADMIN and by.name != name:
        raise Forbidden(f"only {name} or an admin may see or change the tokens of {name}")


def _bands(bands: Iterable[Band]) -> tuple[Band, ...]:
    wanted = tuple(dict.fromkeys(bands))
    for band in wanted:
        if band not in GRANTABLE:
            raise Invalid(f"every user may use the band {band}; only production is granted")
    return wanted
