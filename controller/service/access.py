"""Who may do what, in one place; and how a token becomes somebody.

A run is seen and changed by its owner and by admins; nodes are seen by everybody, without the names
of others' runs on them, and changed by admins alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from controller.lifecycle.model import Band, Run
from controller.service.errors import Forbidden, Refused, Unauthenticated
from controller.store.base import Changes
from controller.store.tokens import matching
from controller.store.users import Role, StoredToken, User

_HINT = (
    "set FAIRLEAD_TOKEN, or FAIRLEAD_TOKEN_FILE to the file 'admin-token' in the controller's "
    "data folder"
)


class Gate:
    """Turns bearer tokens into users, and ends what goes on under a token that is revoked."""

    def __init__(self, users: Iterable[User], tokens: Iterable[StoredToken]) -> None:
        self.users: Mapping[str, User] = {user.name: user for user in users}
        self.tokens: tuple[StoredToken, ...] = tuple(tokens)
        self._ending: dict[str, set[Callable[[], object]]] = {}

    def token_of(self, token: str | None) -> StoredToken:
        """What is stored of this token, its user being known. Raises Unauthenticated,
        with what to do about it."""
        if not token:
            raise Unauthenticated(f"no token was given; {_HINT}")
        stored = matching(token, self.tokens)
        if stored is None or stored.user not in self.users:
            raise Unauthenticated(f"the token is not known to this controller; {_HINT}")
        return stored

    def apply(self, changes: Changes) -> None:
        """These changes of users and tokens are committed: they hold from now on."""
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
        for token_id in removed:
            for end in tuple(self._ending.get(token_id, ())):
                end()

    def end_streams(self, user: str) -> None:
        """Of this user's tokens; they may be opened again."""
        for token in self.tokens:
            if token.user == user:
                for end in tuple(self._ending.get(token.id, ())):
                    end()

    @contextmanager
    def until_revoked(self, token_id: str, end: Callable[[], object]) -> Iterator[None]:
        """`end` is called if the token is revoked meanwhile."""
        self._ending.setdefault(token_id, set()).add(end)
        try:
            yield
        finally:
            self._ending[token_id].discard(end)
            if not self._ending[token_id]:
                del self._ending[token_id]


def require_admin(user: User, action: str) -> None:
    """Raises Forbidden."""
    if user.role is not Role.ADMIN:
        raise Forbidden(f"only an admin may {action}; you are {user.name} (role {user.role})")


def require_control(user: User, run: Run) -> None:
    """Raises Forbidden unless the run is the user's own, or the user is an admin."""
    if user.role is not Role.ADMIN and run.user != user.name:
        raise Forbidden(
            f"run {run.name} belongs to {run.user}; only its owner or an admin may change it",
            field="run",
        )


def require_sight(user: User, run: Run) -> None:
    """Raises Forbidden unless the run is the user's own, or the user is an admin."""
    if user.role is not Role.ADMIN and run.user != user.name:
        raise Forbidden(
            f"run {run.name} belongs to {run.user}; only its owner or an admin may see it",
            field="run",
        )


def require_band(user: User, band: Band) -> None:
    """Raises Refused for a band that the user was not granted; admins may use every one."""
    if band is Band.PRODUCTION and band not in user.bands and user.role is not Role.ADMIN:
        raise Refused(
            f"the band production was not granted to {user.name}: leave out `band`, or ask an "
            f"admin for `fairlead user grant {user.name} --band production`",
            code="band_not_granted",
            field="band",
        )


def sees_all(user: User) -> bool:
    return user.role is Role.ADMIN


def names_for(user: User) -> Callable[[Run], str]:
    """Others' runs have no names for a user, only owners."""

    def name_of(run: Run) -> str:
        return run.name if sees_all(user) or run.user == user.name else f"a run of {run.user}"

    return name_of
