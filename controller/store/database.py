"""Which database, as far as `SqlStore` must know: two ways in, and what the machine itself can say
about who else is in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import sqlalchemy as sa

from controller.store.folderlock import Life


class Database(Protocol):
    """All of it is called in the store's own threads and may block."""

    def enter(self, holder: str) -> None:
        """Raises LeaseHeld, StoreUnusable."""

    def holder_is_dead(self, connection: sa.Connection, token: int) -> bool:
        """Whether `enter` has proven that who took the lease with this token is dead: then it need
        not run out."""

    def began(self, life: Life) -> None:
        """The lease was taken and committed: a successor may want to prove its holder dead."""

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

    def scrub(self, writer: sa.Engine) -> bool:
        """Take out of the database's own files what is overwritten or removed, as far as that is in
        its power. False: somebody reads at this moment, ask again. Called by the writing thread,
        outside of transactions."""

    def leave(self) -> None:
        """May be called twice, and after a failed `enter`."""
