"""SQLite, for one controller on one machine.

It uses the write-ahead log with `synchronous=FULL`: a commit is on the disk when it returns, and
readers never wait for the writer. An OS lock next to the file refuses a second controller at once.
The lock ends with its holder, so a controller killed with -9 can be started again without waiting.
The lock is `flock`: the data folder must be on a local file system.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from controller.store.base import Sight
from controller.store.errors import LeaseHeld, StoreUnavailable, StoreUnusable
from controller.store.lease import FolderLock, Life

DATABASE_NAME = "controller.db"
_HEADER = b"SQLite format 3\0"
BUSY_TIMEOUT_SECONDS = 10.0
"""Only an operator with a shell (a backup, a query) holds the database for longer than a moment."""


class SqliteDatabase:
    """The file `controller.db` in `folder`, readable only by its owner.

    A new folder gets mode 0700; an existing one stays as it is.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / DATABASE_NAME
        self._lock = FolderLock(folder)
        self._engines: list[sa.Engine] = []

    def enter(self, holder: str) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # The lock comes first: nothing changes in a folder on which another controller works.
            self._take_lock(holder)
            # SQLite would make it with the umask's mode, and gives its mode to -wal and -shm.
            os.close(os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            # open(2) gives its mode to a new file alone.
            self._file.chmod(0o600)
            with self._file.open("rb") as file:
                begins = file.read(len(_HEADER))
        except OSError as error:
            self._lock.leave()
            raise StoreUnusable(
                f"the data folder {self._folder} can't be used: {error.strerror}; give a folder"
                " that you may write with --data"
            ) from error
        if begins not in (b"", _HEADER):
            self._lock.leave()
            raise StoreUnusable(
                f"{self._file} is no database: move it away, or put a backup in its place"
                " (`fairlead controller restore`)"
            )

    def _take_lock(self, holder: str) -> None:
        other = self._lock.take(holder)
        if other is not None:
            raise LeaseHeld(
                f"another controller ({other}) works on {self._folder}: stop it first, or give"
                " another folder with --data"
            )

    def holder_is_dead(self, connection: sa.Connection, token: int) -> bool:
        # The lock is ours, and the kernel releases a lock when its holder dies.
        return True

    def began(self, life: Life) -> None:
        """Do nothing: the lock proves it."""

    def writer(self) -> sa.Engine:
        # A deferred transaction that reads before it writes fails with SQLITE_BUSY, without the
        # busy timeout, if another has written since (sqlite.org/lang_transaction.html).
        return self._engine(begin="BEGIN IMMEDIATE", read_only=False)

    def reader(self) -> sa.Engine:
        return self._engine(begin="BEGIN", read_only=True)

    def _engine(self, *, begin: str, read_only: bool) -> sa.Engine:
        engine = sa.create_engine(
            sa.URL.create("sqlite", database=str(self._file)),
            poolclass=sa.pool.SingletonThreadPool,
            connect_args={"timeout": BUSY_TIMEOUT_SECONDS, "check_same_thread": False},
            hide_parameters=True,
        )

        @sa.event.listens_for(engine, "connect")
        def configure(connection: sqlite3.Connection, _record: Any) -> None:
            # sqlite3 begins transactions by itself, and only before statements that change rows: a
            # transaction would not cover its reads, nor a migration's changes of tables.
            connection.isolation_level = None
            for pragma in _pragmas(read_only):
                connection.execute(pragma)

        @sa.event.listens_for(engine, "begin")
        def start(connection: sa.Connection) -> None:
            connection.exec_driver_sql(begin)

        self._engines.append(engine)
        return engine

    def timeline(self) -> int | None:
        return None

    def guard(self, connection: sa.Connection) -> None:
        """Do nothing: this process already holds the lock next to the file."""

    def now(self, connection: sa.Connection, own: Callable[[], float]) -> float:
        return own()

    def announce(self, connection: sa.Connection, token: int) -> None:
        """Do nothing: no other controller can share the file."""

    @property
    def is_shared(self) -> bool:
        return False

    def sight(self, connection: sa.Connection) -> Sight | None:
        return None

    def keep_lead(self) -> None:
        """Do nothing: the lock on the folder tells."""

    def ticket(self, connection: sa.Connection) -> str | None:
        """Return None: a commit that fails here did not happen."""
        return None

    def landed(self, connection: sa.Connection, ticket: str) -> bool:
        raise NotImplementedError("no transaction was given a ticket")

    def scrub(self, writer: sa.Engine) -> bool:
        """Truncate the write-ahead log, which still has what is gone from the file. That needs a
        moment without readers."""
        pooled = writer.raw_connection()
        try:
            connection = pooled.driver_connection
            assert isinstance(connection, sqlite3.Connection)
            # The checkpoint would wait for readers that long, and the writer with it.
            connection.execute("PRAGMA busy_timeout=0")
            try:
                busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_SECONDS * 1000:.0f}")
        except sqlite3.OperationalError as error:
            raise StoreUnavailable(f"the write-ahead log cannot be cut off: {error}") from error
        finally:
            pooled.close()
        return not busy

    def leave(self) -> None:
        engines, self._engines = self._engines, []
        for engine in engines:
            engine.dispose()
        self._lock.leave()


def _pragmas(read_only: bool) -> tuple[str, ...]:
    # In WAL mode `synchronous=NORMAL` syncs at checkpoints alone, so a power cut takes the last
    # commits (sqlite.org/pragma.html#pragma_synchronous). Foreign keys are off by default, for each
    # connection.
    common = ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "PRAGMA foreign_keys=ON")
    if read_only:
        return (*common, "PRAGMA query_only=ON")
    # A run that has ended keeps no secrets: nor does the file, in places that are free again, and
    # nothing of them is put into other files meanwhile.
    return (*common, "PRAGMA secure_delete=ON", "PRAGMA temp_store=MEMORY")
