"""Controllers that share one PostgreSQL: which of them leads, and when another one may try.

Each shows itself in the table `controllers`; the row with the lease's token is the leader's. Beside
the lease, the leader holds an advisory lock in a session of its own. The server frees that lock as
soon as the session ends, 5 ms after a `kill -9` and 4 s after its machine is gone, so a free lock
tells when to try, long before the lease runs out. It decides nothing: if a leader that lives is
replaced, each of its writes fails at the lease's token.

The session in which a leader writes holds another advisory lock. While the server has that one, the
leader has merely lost the session of the first lock, and takes it again at its next renewal.

A leader begins without the lock where the one before still had it, as one does that is paused or
gives its lease back. It says so; the others leave the lock to it, and only its lease counts.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import sqlalchemy as sa

from controller.store import schema
from controller.store.base import Peer, Sight
from controller.store.errors import StoreUnavailable
from controller.store.lease import LEASE_NAME
from controller.store.schema import controllers, leases
from controller.store.sessions import Session
from controller.store.sql_errors import has_just_ended, sentence

log = logging.getLogger(__name__)

LEASE_SECONDS = 5.0
"""Of controllers that share a database; each renews it every second."""
ANSWER_SECONDS = 8.0
"""Longer than the server's own limits for a statement and for a wait of this session."""
_FORGOTTEN_SECONDS = 86400.0
_SHOW_EVERY = 1.0
LEADING_LOCK = 0x6661_6973
"""The advisory lock of the leader. The one of controllers that open the database is another."""
WRITING_LOCK = 0x6661_6974
"""Sessions for writes share it: the leader's, and for a moment one's that is about to lead."""
SERVER_KEEPALIVES = {
    "tcp_keepalives_idle": "1",
    "tcp_keepalives_interval": "1",
    "tcp_keepalives_count": "3",
    # It also ends the keepalives, at the first one after this time: 3 s after the last word. With
    # 3000 it could be the next one.
    "tcp_user_timeout": "2500",
}
"""Settings of the server for a session: it notices that the machine of a controller is gone."""
CLIENT_KEEPALIVES = {
    "connect_timeout": 3,
    "keepalives_idle": 1,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": 3_000,
}
"""Parameters of libpq: a controller notices that the machine of the server is gone."""


def options(settings: Mapping[str, str]) -> str:
    """Return settings of the server as libpq's parameter `options`."""
    return " ".join(f"-c {name}={value}" for name, value in settings.items())


CLIENT_ENCODING = "utf8"
"""libpq takes a database's own encoding. psycopg gives strings of one without any (SQL_ASCII) as
bytes, so that not even its version could be read, and it could not be refused by name."""
_CONNECT = {
    **CLIENT_KEEPALIVES,
    "client_encoding": CLIENT_ENCODING,
    "application_name": "fairlead leader",
    "options": options({**SERVER_KEEPALIVES, "lock_timeout": "3s", "statement_timeout": "5s"}),
}


class Peers:
    """This controller among those of its database. Everything blocks; one thread at a time.

    `url`: where the other controllers and clients reach this one; `keys` may be set later, and so
    may `installation_id`, to which the data folder belongs (None: it is new). `free`: the
    free bytes of its disk (None: they are not known).
    """

    def __init__(
        self,
        *,
        url: str,
        version: str,
        keys: str | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.id = secrets.token_hex(8)
        self.url = url
        self.keys = keys
        self.installation_id: str | None = None
        self.version = version
        self.free: int | None = None
        self._monotonic = monotonic
        self._engine: sa.Engine | None = None
        self._session: sa.Connection | None = None
        self._hanging = Session()
        self._shown_at = -math.inf
        self._is_pooled = False
        self._was_lost = False
        self._begun_again = -math.inf
        """When a session was there after one that was lost, by the server's clock."""
        self.has_lock = False

    def begin(self, database: sa.URL) -> None:
        """Use this database from now on."""
        engine = sa.create_engine(
            database,
            isolation_level="AUTOCOMMIT",
            poolclass=sa.NullPool,
            connect_args=dict(_CONNECT),
            hide_parameters=True,
        )
        sa.event.listen(engine, "connect", prepare_nothing_in_a_pool)
        self._engine = self._hanging.of(engine)

    def look(self) -> Sight | None:
        """Show this controller, and see the others; None: no controller of this version, or of a
        newer one, has opened the database yet. Raises StoreUnavailable."""
        with self._reached() as session:
            version = schema.version(session) or ""
            if version < schema.CONTROLLERS_SINCE:
                return None
            self._show(session, version)
            sight = sight_of(session, version)
            if self._was_lost:
                self._was_lost, self._begun_again = False, sight.now
            return self._claimed(session, sight)

    def look_on(self) -> Sight | None:
        """See the others as `look` does, and neither show this controller nor try to lead."""
        with self._reached() as session:
            version = schema.version(session) or ""
            return sight_of(session, version) if version >= schema.CONTROLLERS_SINCE else None

    def installation(self) -> str | None:
        """Return the id of the installation whose database this is; None: it is empty.

        Raises StoreUnavailable.
        """
        with self._reached() as session:
            return schema.installation_of(session)

    @contextmanager
    def _reached(self) -> Iterator[sa.Connection]:
        try:
            with self._answering():
                yield self._opened()
        # PostgreSQL frees an advisory lock when its session ends, however it ends (documentation,
        # 13.3.5).
        except sa.exc.SQLAlchemyError as error:
            self._was_lost = True
            self.leave()
            raise StoreUnavailable(f"the database can't be reached: {sentence(error)}") from error

    def keep_lock(self) -> None:
        """Hold the lock, or take it again after its session was lost."""
        for is_last in (False, True):
            began = time.monotonic()
            try:
                self._try_to_keep_lock()
                return
            except sa.exc.SQLAlchemyError as error:
                # The lease, and the session for writes, protect this controller until the next try.
                self.leave()
                if is_last or not has_just_ended(error, began):
                    log.warning("the session of the leader's lock was lost: %s", sentence(error))
                    return

    def _try_to_keep_lock(self) -> None:
        with self._answering():
            session = self._opened()
            if self.has_lock:
                session.execute(sa.select(1))
            else:
                self._try_lock(session)

    def announce(self, connection: sa.Connection, token: int) -> None:
        """Show this controller as the leader, in the transaction that takes or renews its lease."""
        now = _now(connection)
        self._upsert(connection, now, token, schema.SCHEMA_VERSION)
        old = sa.and_(
            controllers.c.seen_at < now - _FORGOTTEN_SECONDS, controllers.c.token.is_(None)
        )
        connection.execute(controllers.delete().where(old))
        connection.execute(
            controllers.update().where(controllers.c.token < token).values(token=None)
        )

    def has_shown(self, connection: sa.Connection, token: int) -> bool:
        """Return whether the holder of the lease with this token shows that it has the lock, and so
        has it while it lives: one of an earlier version, or one that waits for it, does not."""
        shown = sa.and_(controllers.c.token == token, controllers.c.has_lock)
        query = sa.select(controllers.c.id).where(shown)
        return connection.execute(query).one_or_none() is not None

    def leave(self) -> None:
        """End the session, and with it the lock; may be called twice."""
        session, self._session = self._session, None
        self.has_lock = False
        if session is not None:
            # Not given back to the pool: its next user would find this session's lock.
            session.invalidate()
            session.close()

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """End the wait for a server that hangs: another one may have taken its address."""
        cut = threading.Timer(ANSWER_SECONDS, self._hanging.cut)
        cut.daemon = True
        cut.start()
        try:
            yield
        finally:
            cut.cancel()

    def _opened(self) -> sa.Connection:
        if self._session is None:
            assert self._engine is not None, "begin() comes first"
            self._session = self._engine.connect()
            self._look_for_a_pool(self._session)
        return self._session

    def _look_for_a_pool(self, session: sa.Connection) -> None:
        """A pool that gives each transaction another session (PgBouncer's mode `transaction`) would
        free the lock by chance: behind one, nobody takes it."""
        if is_pooled(session) and not self._is_pooled:
            self._is_pooled = True
            log.warning(
                "the database is behind a pool of sessions: give its own address. Until then, "
                "another controller takes over only when the lease has run out (%g s)",
                LEASE_SECONDS,
            )

    def _try_lock(self, session: sa.Connection) -> None:
        if not self.has_lock and not self._is_pooled:
            query = sa.select(sa.func.pg_try_advisory_lock(LEADING_LOCK))
            self.has_lock = bool(session.execute(query).scalar_one())

    def _free_lock(self, session: sa.Connection) -> None:
        if self.has_lock:
            session.execute(sa.select(sa.func.pg_advisory_unlock(LEADING_LOCK)))
            self.has_lock = False

    def _is_written(self, session: sa.Connection) -> bool:
        """Return whether a controller has a session for writes."""
        # Not the view pg_locks, which a role may be forbidden to read. Where nobody has the lock,
        # this session has it until the statement ends: the transaction is no longer than that.
        query = sa.select(sa.func.pg_try_advisory_xact_lock(WRITING_LOCK))
        return not session.execute(query).scalar_one()

    def _show(self, session: sa.Connection, version: str) -> None:
        now = self._monotonic()
        if now - self._shown_at >= _SHOW_EVERY:
            self._upsert(session, _now(session), None, version)
            self._shown_at = now

    def _upsert(
        self, connection: sa.Connection, now: float, token: int | None, version: str
    ) -> None:
        from sqlalchemy.dialects.postgresql import insert

        changing = {
            "url": self.url,
            "version": self.version,
            "keys": self.keys,
            "seen_at": now,
            "token": token,
            "has_lock": token is not None and self.has_lock,
        }
        if version >= schema.DISKS_SINCE:
            changing["free_bytes"] = self.free
        query = insert(controllers).values(id=self.id, started_at=now, **changing)
        connection.execute(query.on_conflict_do_update(index_elements=["id"], set_=changing))

    def _claimed(self, session: sa.Connection, found: Sight) -> Sight:
        """Try to get the lock, or leave it to a leader that waits for it; return whether this
        controller may lead then. One without room on its disk leaves both to one that has some."""
        leader = found.leader
        if found.leaves_lead(self.id, self.free):
            self._free_lock(session)
            return msgspec.structs.replace(found, may_lead=False)
        if leader is not None and not leader.has_lock and not found.may_lead:
            self._free_lock(session)
            return found
        if leader is not None and leader.seen_at <= self._begun_again and not found.may_lead:
            # A server that restarts ends the session of a leader that lives, too.
            return found
        self._try_lock(session)
        if (
            self.has_lock
            and leader is not None
            and not found.may_lead
            and self._is_written(session)
        ):
            # Its own session for the lock has ended, and it lives.
            self._free_lock(session)
        has_ended = self.has_lock and leader is not None
        return msgspec.structs.replace(found, may_lead=found.may_lead or has_ended)


def is_pooled(session: sa.Connection) -> bool:
    """Return whether a pool stands between this controller and the server."""
    return _announces_another(session.connection.driver_connection)


def show_that_it_writes(connection: Any, _record: object) -> None:
    """Let the others see that this new connection, in which this controller writes, is there."""
    if not _announces_another(connection):
        with connection.cursor() as cursor:
            # It waits: a follower that looks whether somebody writes has the lock for a moment.
            cursor.execute("SELECT pg_advisory_lock_shared(%s)", (WRITING_LOCK,))
    connection.rollback()


def prepare_nothing_in_a_pool(connection: Any, _record: object) -> None:
    """Let a new connection prepare no statements if a pool stands in between: those of another
    controller have the same names in the session that both get by turns (mode `transaction`)."""
    if _announces_another(connection):
        connection.prepare_threshold = None
    connection.rollback()


def _announces_another(connection: Any) -> bool:
    """A pool announces a process of its own, because it must find the session that a request to
    cancel means. An idle pool gives one client the same session each time, so that asking twice
    tells nothing."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return bool(cursor.fetchone()[0] != connection.info.backend_pid)


def sight_of(connection: sa.Connection, version: str = schema.SCHEMA_VERSION) -> Sight:
    """Return what the database, whose schema has this version, shows to all."""
    lease = connection.execute(
        sa.select(leases.c.token, leases.c.expires_at).where(leases.c.name == LEASE_NAME)
    ).one_or_none()
    token = None if lease is None else lease.token
    now = _now(connection)
    shown = [column for column in controllers.c if column is not controllers.c.free_bytes]
    knows_disks = version >= schema.DISKS_SINCE
    free = controllers.c.free_bytes if knows_disks else sa.null().label("free_bytes")
    rows = connection.execute(sa.select(*shown, free).order_by(controllers.c.started_at)).all()
    peers = tuple(
        Peer(
            id=row.id,
            url=row.url,
            version=row.version,
            keys=row.keys,
            started_at=row.started_at,
            seen_at=row.seen_at,
            leads=token is not None and row.token == token,
            has_lock=row.has_lock,
            free=row.free_bytes,
        )
        for row in rows
    )
    is_out = lease is None or lease.expires_at <= now
    return Sight(now=now, peers=peers, may_lead=is_out)


def _now(connection: sa.Connection) -> float:
    query = sa.text("SELECT CAST(extract(epoch FROM clock_timestamp()) AS double precision)")
    return float(connection.execute(query).scalar_one())
