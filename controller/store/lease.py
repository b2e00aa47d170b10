"""The lease: which controller may write. Its token grows with each take-over and fences the shims.

The check is part of every writing transaction, so a controller that was replaced can't commit
however late it is; time decides only when a silent holder may be replaced.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import sqlalchemy as sa

from controller.store.base import LeaseHeld, LeaseLost
from controller.store.tables import leases

LEASE_NAME = "controller"
LEASE_SECONDS = 30.0


class Lease:
    def __init__(
        self, *, holder: str, seconds: float, now: Callable[[sa.Connection], float]
    ) -> None:
        self.holder = holder
        self.token: int | None = None
        self._seconds = seconds
        self._now = now

    def take(
        self, connection: sa.Connection, *, holder_is_dead: Callable[[sa.Connection, int], bool]
    ) -> int:
        """The new token. Raises LeaseHeld unless the lease is free, has run out, or
        `holder_is_dead` says so of who took it with the token it is given."""
        now = self._now(connection)
        row = connection.execute(
            sa.select(leases).where(leases.c.name == LEASE_NAME).with_for_update()
        ).one_or_none()
        token = 1 if row is None else row.token + 1
        content = {
            "holder": self.holder,
            "token": token,
            "expires_at": now + self._seconds,
        }
        if row is None:
            connection.execute(leases.insert().values(name=LEASE_NAME, **content))
        else:
            if row.expires_at > now and not holder_is_dead(connection, row.token):
                raise LeaseHeld(
                    f"another controller ({row.holder}) works on this database: stop it first; if "
                    f"it is dead, its lease runs out in {math.ceil(row.expires_at - now)} s"
                )
            connection.execute(leases.update().where(leases.c.name == LEASE_NAME).values(**content))
        self.token = token
        return token

    def forget(self) -> None:
        """The transaction in which it was taken was not committed."""
        self.token = None

    def verify(self, connection: sa.Connection) -> None:
        """Raises LeaseLost. Holds the row until the transaction ends."""
        current = connection.execute(
            sa.select(leases.c.token).where(leases.c.name == LEASE_NAME).with_for_update()
        ).scalar_one_or_none()
        if current != self.token:
            raise LeaseLost("another controller has taken over; this one stops")

    def renew(self, connection: sa.Connection) -> None:
        connection.execute(self._mine().values(expires_at=self._now(connection) + self._seconds))

    def give_back(self, connection: sa.Connection) -> None:
        """Does nothing when it is somebody else's already."""
        connection.execute(self._mine().values(expires_at=self._now(connection)))

    def _mine(self) -> sa.Update:
        return leases.update().where(leases.c.name == LEASE_NAME, leases.c.token == self.token)
