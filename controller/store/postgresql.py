"""PostgreSQL, for controllers that must be able to move to another machine.

Several machines reach it, so time decides when a silent controller may be replaced: the time of the
server's clock, which they share. The server ends a transaction that its controller left open
(because it was paused, or its machine is gone), so that it cannot keep a successor from taking
over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa

from controller.store import schema
from controller.store.base import StoreUnavailable, StoreUnusable
from controller.store.lease import FolderLock, Life
from controller.store.schema import installation

log = logging.getLogger(__name__)

_OPENING = 0x6661_6972
"""The advisory lock of controllers that are opening the database."""
_READ_ONLY = "25006"
_SETTINGS = {
    "synchronous_commit": "on",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "15s",
}
_CONNECT = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "application_name": "fairlead",
    "options": " ".join(f"-c {name}={value}" for name, value in _SETTINGS.items()),
}


class PostgresqlDatabase:
    """A PostgreSQL database.

    `url` is `postgresql://[USER[:PASSWORD]@]HOST[:PORT]/DATABASE[?sslmode=…]`, as libpq reads it; a
    service file, ~/.pgpass and PG* variables work too. `folder` is the controller's data folder:
    its lock can prove that a former controller on this machine is dead, so that its lease need not
    run out. Raises StoreUnusable for any other URL.
    """

    def __init__(self, url: str, folder: Path | None = None) -> None:
        try:
            parsed = sa.make_url(url)
        except sa.exc.ArgumentError:
            raise StoreUnusable(_NO_URL) from None
        if parsed.drivername not in ("postgresql", "postgres"):
            raise StoreUnusable(_NO_URL)
        self._url = parsed.set(drivername="postgresql+psycopg")
        self._engines: list[sa.Engine] = []
        self._lock = None if folder is None else FolderLock(folder)

    def enter(self, holder: str) -> None:
        """Lock the data folder. If that fails, the lease alone protects the database: see
        `guard`."""
        if self._lock is not None:
            try:
                self._lock.take(holder)
            except OSError as error:
                log.warning("the data folder can't be locked: %s", error.strerror)

    def holder_is_dead(self, connection: sa.Connection, token: int) -> bool:
        dead = None if self._lock is None else self._lock.past_life
        if dead is None or dead.token != token:
            return False
        known = connection.execute(sa.select(installation.c.id)).scalar_one_or_none()
        return known == dead.installation_id

    def began(self, life: Life) -> None:
        if self._lock is not None:
            self._lock.note(life)

    def writer(self) -> sa.Engine:
        return self._engine(isolation_level="READ COMMITTED")

    def reader(self) -> sa.Engine:
        """Return an engine whose queries in one transaction all see the same moment."""
        return self._engine(isolation_level="REPEATABLE READ", pool_pre_ping=True)

    def _engine(self, *, isolation_level: str, pool_pre_ping: bool = False) -> sa.Engine:
        engine = sa.create_engine(
            self._url,
            isolation_level=isolation_level,
            pool_size=1,
            max_overflow=0,
            pool_pre_ping=pool_pre_ping,
            connect_args=dict(_CONNECT),
            hide_parameters=True,
        )
        sa.event.listen(engine, "handle_error", _lost_with_its_server)
        self._engines.append(engine)
        return engine

    def guard(self, connection: sa.Connection) -> None:
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_OPENING)))
        encoding = connection.execute(sa.text("SHOW server_encoding")).scalar_one()
        if encoding != "UTF8" and schema.version(connection) is None:
            raise StoreUnusable(
                f"the database has the encoding {encoding}, which can't hold what users write: "
                "make one with `createdb --encoding UTF8 --template template0`"
            )

    def now(self, connection: sa.Connection, _own: Callable[[], float]) -> float:
        query = sa.text("SELECT CAST(extract(epoch FROM clock_timestamp()) AS double precision)")
        return float(connection.execute(query).scalar_one())

    def ticket(self, connection: sa.Connection) -> str | None:
        query = sa.select(sa.cast(sa.func.pg_current_xact_id(), sa.Text()))
        return str(connection.execute(query).scalar_one())

    def landed(self, connection: sa.Connection, ticket: str) -> bool:
        query = sa.text("SELECT pg_xact_status(CAST(:ticket AS xid8))")
        status = connection.execute(query, {"ticket": ticket}).scalar_one()
        if status not in ("committed", "aborted"):
            raise StoreUnavailable("the database has not decided yet")
        return bool(status == "committed")

    def scrub(self, writer: sa.Engine) -> bool:
        """Do nothing: a client cannot remove old values here.

        The server's vacuum frees old versions of rows without overwriting them, and its write-ahead
        log keeps them as long as it is kept.
        """
        return True

    def leave(self) -> None:
        engines, self._engines = self._engines, []
        for engine in engines:
            engine.dispose()
        if self._lock is not None:
            self._lock.leave()


def _lost_with_its_server(context: sa.engine.ExceptionContext) -> None:
    """Drop a connection to a server that became read-only.

    That server has handed over to another one or will write again; only a new connection finds out.
    """
    if getattr(context.original_exception, "sqlstate", None) == _READ_ONLY:
        context.is_disconnect = True


_NO_URL = (
    "the database's address is not of the form postgresql://USER@HOST/DATABASE; without one, the "
    "state is kept in the data folder"
)
