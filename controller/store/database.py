"""Which database, as far as `SqlStore` must know: two ways in, and whether the machine itself
guarantees that nobody else is in it."""

from __future__ import annotations

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

    def leave(self) -> None:
        """May be called twice, and after a failed `enter`."""
