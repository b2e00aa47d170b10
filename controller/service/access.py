"""Who may do what, in one place; and how a token becomes somebody.

Everybody with a token sees everything; a run may be changed by its owner and by admins, nodes by
admins alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from controller.lifecycle.model import Run
from controller.service.errors import Forbidden, Unauthenticated
from controller.store.tokens import matching
from controller.store.users import Role, StoredToken, User

_HINT = (
    "set FAIRLEAD_TOKEN, or FAIRLEAD_TOKEN_FILE to the file 'admin-token' in the controller's "
    "data folder"
)


class Gate:
    """Turns bearer tokens into users."""

    def __init__(self, users: Iterable[User], tokens: Iterable[StoredToken]) -> None:
        self._users = {user.name: user for user in users}
        self._tokens = tuple(tokens)

    def user_of(self, token: str | None) -> User:
        """Raises Unauthenticated, with what to do about it."""
        if not token:
            raise Unauthenticated(f"no token was given; {_HINT}")
        stored = matching(token, self._tokens)
        user = self._users.get(stored.user) if stored is not None else None
        if user is None:
            raise Unauthenticated(f"the token is not known to this controller; {_HINT}")
        return user


def require_admin(user: User, action: str) -> None:
    """Raises Forbidden."""
    if user.role is not Role.ADMIN:
        raise Forbidden(f"only an admin may {action}; you are {user.name} (role {user.role})")


def require_control(user: User, run: Run) -> None:
    """Raises Forbidden unless the run is the user's own, or the user is an admin."""
    if user.role is not Role.ADMIN and run.user != user.name:
        raise Forbidden(
            f"run {run.name} belongs to {run.user}; only {run.user} or an admin may change it",
            field="run",
        )
