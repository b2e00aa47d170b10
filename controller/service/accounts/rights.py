"""Rights: what a user may see and do.

A run's owner and admins see and change it. All users see nodes, without the names of others' runs
on them; only admins change nodes.
"""

from __future__ import annotations

from collections.abc import Callable

from common.refusals import (
    Forbidden,
    Unprocessable,
)
from controller.lifecycle.model import Band, Role, Run
from controller.store.accounts import User

READ_METRICS = "read the controller's metrics"


def require_admin(user: User, action: str) -> None:
    """Raise Forbidden unless the user is an admin."""
    if user.role is not Role.ADMIN:
        raise Forbidden(f"only an admin may {action}; you are {user.name} (role {user.role})")


def require_control(user: User, run: Run) -> None:
    """Raise Forbidden unless the run is the user's own, or the user is an admin."""
    if user.role is not Role.ADMIN and run.user != user.name:
        raise Forbidden(
            f"run {run.name} belongs to {run.user}; only its owner or an admin may change it",
            field="run",
        )


def require_band(user: User, band: Band) -> None:
    """Raise Unprocessable for a band that the user was not granted; admins may use every one."""
    if band is Band.PRODUCTION and band not in user.bands and user.role is not Role.ADMIN:
        raise Unprocessable(
            f"the band production was not granted to {user.name}: leave out `band`, or ask an "
            f"admin for `fairlead user grant {user.name} --band production`",
            code="band_not_granted",
            field="band",
        )


def sees_all(user: User) -> bool:
    return user.role is Role.ADMIN


def may_see(user: User, run: Run) -> bool:
    return sees_all(user) or run.user == user.name


def names_for(user: User) -> Callable[[Run], str]:
    """Return how this user sees a run's name: others' runs show only their owners."""

    def name_of(run: Run) -> str:
        return run.name if sees_all(user) or run.user == user.name else f"a run of {run.user}"

    return name_of
