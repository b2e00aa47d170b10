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
from typing import Any

import sqlalchemy as sa

from controller.store import peers, schema
from controller.store.base import Sight
from controller.store.errors import OtherTimeline, StoreUnavailable, StoreUnusable
from controller.store.lease import FolderLock, Life
from controller.store.peers import Peers, sight_of
from controller.store.schema import installation
from controller.store.sql_errors import sentence

log = logging.getLogger(__name__)

_OPENING = 0x6661_6972
"""The advisory lock of controllers that are opening the database."""
_READ_ONLY = "25006"
_SETTINGS = {
    # The server's own setting may be off: its crash would take commits that nodes have obeyed.
    "synchronous_commit": "on",
    "lock_timeout": "10s",
    # Shorter than the lease: the row that a paused controller has locked must not block the next.
    "idle_in_transaction_session_timeout": "15s",
}
_SHARED_SETTINGS = {
    **_SETTINGS,
    "idle_in_transaction_session_timeout": "4s",
    # Without them, the session of a leader whose machine vanished keeps its transaction, and with
    # it the lease's row, for as long as the server's kernel repeats an answer (tcp(7)).
    **peers.SERVER_KEEPALIVES,
}
_STATEMENT_TIMEOUT = "10s"
"""Of a write. Migrations, and reads of all that is live, have none."""
_LEADING_LOCK_TIMEOUT = sa.text("SET LOCAL lock_timeout = '3s'")
"""A follower that tries to lead looks again rather than wait for the row of a dead leader."""
_CONNECT = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    # Keepalives are not sent while data waits for its acknowledgement: without this limit, a
    # commit to a machine that is gone waits for net.ipv4.tcp_retries2, some 15 min (tcp(7)).
    "tcp_user_timeout": 20_000,
    "client_encoding": peers.CLIENT_ENCODING,
    "application_name": "fairlead",
}
_SHARED_CONNECT = {**_CONNECT, **peers.CLIENT_KEEPALIVES}


class PostgresqlDatabase:
    """A PostgreSQL database.

    `url` is `postgresql://[USER[:PASSWORD]@]HOST[:PORT]/DATABASE[?sslmode=…]`, as libpq reads it; a
    service file, ~/.pgpass and PG* variables work too. `folder` is the controller's data folder:
    its lock can prove that a former controller on this machine is dead, so that its lease need not
    run out. `peers`: this controller among others that wait to lead. Raises StoreUnusable for any
    other URL.
    """

    def __init__(self, url: str, folder: Path | None = None, peers: Peers | None = None) -> None:
        try:
            parsed = sa.make_url(url)
        # SQLAlchemy's message would quote the URL, and with it the password.
        except sa.exc.ArgumentError:
            raise StoreUnusable(_NO_URL) from None
        if parsed.drivername not in ("postgresql", "postgres"):
            raise StoreUnusable(_NO_URL)
        self._url = parsed.set(drivername="postgresql+psycopg")
        self._engines: list[sa.Engine] = []
        self._timeline: int | None = None
        self._lock = None if folder is None else FolderLock(folder)
        self.peers = peers
        if peers is not None:
            peers.begin(self._url)

    def enter(self, holder: str) -> None:
        """Lock the data folder. If that fails, the lease alone protects the database: see
        `guard`."""
        self._timeline = None
        if self._lock is not None:
            try:
                self._lock.take(holder)
            except OSError as error:
                log.warning("the data folder can't be locked: %s", error.strerror)
        if self.peers is not None:
            # Before the lease: a leader that shows itself without the lock counts as dead.
            self.peers.keep_lock()

    def holder_is_dead(self, connection: sa.Connection, token: int) -> bool:
        if (
            self.peers is not None
            and self.peers.has_lock
            and self.peers.has_shown(connection, token)
        ):
            return True
        dead = None if self._lock is None else self._lock.past_life
        if dead is None or dead.token != token:
            return False
        known = connection.execute(sa.select(installation.c.id)).scalar_one_or_none()
        # The folder may have served another database, whose token of this number is another lease.
        return known == dead.installation_id

    def began(self, life: Life) -> None:
        if self._lock is not None:
            self._lock.note(life)

    def writer(self) -> sa.Engine:
        # With a stricter level, a writer that waited for the lease's row would get a serialization
        # failure (40001) instead of the row as its successor left it.
        engine = self._engine(isolation_level="READ COMMITTED")
        sa.event.listen(engine, "connect", self._require_timeline)
        if self.peers is not None:
            sa.event.listen(engine, "connect", peers.show_that_it_writes)
        return engine

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
            connect_args=self._connect_arguments(),
            # Else errors of SQLAlchemy, and logs with them, show values that may be secret.
            hide_parameters=True,
        )
        sa.event.listen(engine, "connect", peers.prepare_nothing_in_a_pool)
        sa.event.listen(engine, "handle_error", _lost_with_its_server)
        self._engines.append(engine)
        return engine

    def _connect_arguments(self) -> dict[str, Any]:
        if self.peers is None:
            return {**_CONNECT, "options": peers.options(_SETTINGS)}
        return {**_SHARED_CONNECT, "options": peers.options(_SHARED_SETTINGS)}

    def timeline(self) -> int | None:
        return self._timeline

    def _require_timeline(self, connection: Any, _record: object) -> None:
        """Raise OtherTimeline if a server was promoted since the first connection: what is in
        memory may be ahead of it."""
        found = _timeline_of(connection)
        if self._timeline is None:
            self._timeline = found
        elif found is not None and found != self._timeline:
            connection.close()
            raise OtherTimeline(self._timeline, found)

    def guard(self, connection: sa.Connection) -> None:
        if self.peers is not None:
            connection.execute(_LEADING_LOCK_TIMEOUT)
        # In an empty database there is no row yet that two controllers could lock.
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_OPENING)))
        encoding = connection.execute(sa.text("SHOW server_encoding")).scalar_one()
        if encoding != "UTF8" and schema.version(connection) is None:
            raise StoreUnusable(
                f"the database has the encoding {encoding}, which can't hold what users write: "
                "make one with `createdb --encoding UTF8 --template template0`"
            )

    def now(self, connection: sa.Connection, _own: Callable[[], float]) -> float:
        # now() is the time at which the transaction began, before it waited for the lease's row.
        query = sa.text("SELECT CAST(extract(epoch FROM clock_timestamp()) AS double precision)")
        return float(connection.execute(query).scalar_one())

    def announce(self, connection: sa.Connection, token: int) -> None:
        if self.peers is not None:
            self.peers.announce(connection, token)

    @property
    def is_shared(self) -> bool:
        return self.peers is not None

    def sight(self, connection: sa.Connection) -> Sight | None:
        return None if self.peers is None else sight_of(connection)

    def keep_lead(self) -> None:
        if self.peers is not None:
            self.peers.keep_lock()

    def ticket(self, connection: sa.Connection) -> str | None:
        # The function gives the transaction its id, which it would else get with its first change.
        # The limit is set in the same round trip; it does not count the wait of a commit for a
        # standby, which would be answered as if the standby had it.
        query = sa.select(
            sa.cast(sa.func.pg_current_xact_id(), sa.Text()),
            sa.func.set_config("statement_timeout", _STATEMENT_TIMEOUT, True),
        )
        return str(connection.execute(query).one()[0])

    def landed(self, connection: sa.Connection, ticket: str) -> bool:
        query = sa.text("SELECT pg_xact_status(CAST(:ticket AS xid8))")
        status = connection.execute(query, {"ticket": ticket}).scalar_one()
        # NULL: so many transactions came since that the server has forgotten this one.
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
        if self.peers is not None:
            self.peers.leave()


def _timeline_of(connection: Any) -> int | None:
    """Return the timeline on which the server writes; None: it doesn't tell.

    A file of the write-ahead log begins its name with it. The control file's is that of the last
    checkpoint, which a promotion does not wait for.
    """
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_walfile_name(pg_current_wal_lsn())")
            return int(cursor.fetchone()[0][:8], 16)
    # A standby, a vendor's server without such files, or a connection that has just broken.
    except Exception as error:
        log.debug("the server's timeline is not known: %s", sentence(error))
        return None
    finally:
        connection.rollback()


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
