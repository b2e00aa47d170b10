"""The errors of a store. A message is for the operator; it never holds stored values."""

from __future__ import annotations

from collections.abc import Iterable


class StoreError(Exception):
    """The store failed. The message is for the operator; it never holds stored values."""


class StoreUnavailable(StoreError):
    """Nothing was changed (disk full, database busy); the same commit may be tried again."""


class StoreHangs(StoreUnavailable):
    """The database accepts what it is asked, and does not answer."""


class OtherSchema(StoreUnavailable):
    """The database has the schema of another version, for as long as this one works."""


class StoreRefused(StoreError):
    """Nothing was changed, and the same commit would never work.

    The store does not accept the values of some parts. The other parts can be stored without them.
    """

    def __init__(
        self,
        message: str,
        *,
        runs: Iterable[str] = (),
        nodes: Iterable[str] = (),
        fleets: Iterable[str] = (),
    ) -> None:
        super().__init__(message)
        self.runs = frozenset(runs)
        """The ids of the runs whose changes or events are refused."""
        self.nodes = frozenset(nodes)
        self.fleets = frozenset(fleets)

    @property
    def is_in_parts(self) -> bool:
        """Whether the refused parts are known, so that the rest could be stored."""
        return bool(self.runs or self.nodes or self.fleets)


class StoreUnusable(StoreError):
    """The store cannot be opened: a newer version made it, it is damaged, or it is not writable."""


class LeaseHeld(StoreError):
    """Another live controller uses this store."""


class LeaseLost(StoreError):
    """Another controller has taken over: this one must stop at once and change nothing."""


class LeaseTaken(LeaseLost):
    """Another controller has taken over, and nothing of this change was stored."""


class OtherTimeline(LeaseLost):
    """The database's address leads to another server than before: one that was promoted, or the
    one that this one has replaced. `before` and `found` are their timelines."""

    def __init__(self, before: int, found: int) -> None:
        super().__init__(
            "another database server was promoted, which may lack the last commits; this "
            "controller leads no more, so that the next one goes on from what is there"
        )
        self.before = before
        self.found = found


class Stops(StoreUnavailable):
    """Nothing of this change was stored: this controller is being stopped."""


class NotKnown(StoreUnavailable):
    """Whether this change was stored, nobody waits to learn: the controller stops."""


class NotYetStored(StoreUnavailable):
    """This change was not stored, and is still wanted: the next commit may store it."""


class OtherInstallation(StoreUnusable):
    """The controller's data folder belongs to another installation than the database."""

    def __init__(self, of_folder: str, of_database: str | None) -> None:
        found = "is empty" if of_database is None else f"is that of {of_database}"
        super().__init__(
            f"the data folder belongs to the installation {of_folder}, and the database {found}: "
            "give the database and the folder (--data) of one installation. If the database was "
            "replaced on purpose, remove the file `installation` from the folder"
        )
