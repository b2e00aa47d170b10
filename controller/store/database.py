"""Which database, as far as `SqlStore` must know: two ways in, and whether the machine itself
guarantees that nobody else is in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import sqlalchemy as sa


class Database(Protocol):
    """All of it is called in the store's own threads and may block."""

    exclusive: bool
    """True: `enter` has proven that no other controller lives, so its lease need not run out."""

    def enter(self, holder: str) -> None:
        """Raises LeaseHeld (if exclusive), StoreUnusable."""

    def writer(self) -> sa.Engine:
        """For transactions that write; used by one thread."""

    def reader(self) -> sa.Engine:
        """For transactions that only read, beside a writing one; used by another thread."""

    def guard(self, connection: sa.Connection) -> None:
        """Until the transaction ends, nobody else is opening this database."""

    def now(self, connection: sa.Connection, own: Callable[[], float]) -> float:
        """The time by which leases run out: that of a clock which all who may take it share; `own`
        if they are all on this machine."""

    def ticket(self, connection: sa.Connection) -> str | None:
        """Names the present transaction, if its end may ever be unknown to who commits it."""

    def landed(self, connection: sa.Connection, ticket: str) -> bool:
        """Whether that transaction was committed. Raises StoreUnavailable: ask again."""

    def leave(self) -> None:
        """May be called twice, and after a failed `enter`."""
