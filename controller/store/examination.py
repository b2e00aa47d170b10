"""Looks at a database without changing it: for an operator, next to controllers that use it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal

import msgspec
import sqlalchemy as sa

from controller.lifecycle.machines.model import Machine, MachineStatus
from controller.store import schema
from controller.store.base import Sight
from controller.store.lease import LEASE_NAME
from controller.store.peers import LEADING_LOCK, is_pooled, sight_of
from controller.store.rows import MACHINE
from controller.store.schema import leases, machines
from controller.store.sessions import Session
from controller.store.sql import Database
from controller.store.sql_errors import sentence

ANSWER_SECONDS = 12.0
"""Longer than the connection may take."""


class DatabaseFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a database shows. `why`: why it cannot be asked; then nothing else is known."""

    kind: Literal["sqlite", "postgresql"]
    why: str | None = None
    seconds: float = 0.0
    """Of one question."""
    server: int = 0
    """PostgreSQL's number: 150004 is 15.4."""
    encoding: str = "UTF8"
    is_read_only: bool = False
    may_create: bool = True
    is_pooled: bool = False
    """Each transaction has another session: a pool in transaction mode is in between."""
    clock_offset: float = 0.0
    """Seconds by which this machine's clock is ahead of the server's."""
    schema: str | None = None
    """None: there are no tables yet."""
    installation: str | None = None
    """The id of the installation whose database it is; None: there are no tables yet."""
    holder: str | None = None
    lease_left: float | None = None
    """Seconds; None: nobody ever had the lease."""
    is_locked: bool = False
    """A session has the leader's lock."""
    machines: tuple[Machine, ...] = ()
    """Those that live at their providers."""
    users: frozenset[str] | None = None
    """The names of all users; None: there are no tables yet."""
    sight: Sight | None = None
    """The controllers that share it; None: the schema is older than that."""


def sqlite_facts(database: Database) -> DatabaseFacts:
    """Blocking. The file must be there."""
    engine = database.reader()
    try:
        with engine.connect() as connection:
            began = time.monotonic()
            version = schema.version(connection)
            taken = time.monotonic() - began
            installation = schema.installation_of(connection)
            machines = _live_machines(connection)
            users = _users(connection)
            # Without comparing indexes with their tables, which takes much longer (SQLite's pragma
            # page).
            problem = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
    except sa.exc.SQLAlchemyError as error:
        return DatabaseFacts(kind="sqlite", why=sentence(error))
    finally:
        database.leave()
    if problem != "ok":
        return DatabaseFacts(kind="sqlite", why=f"the file is damaged: {problem}")
    return DatabaseFacts(
        kind="sqlite",
        seconds=taken,
        schema=version,
        installation=installation,
        machines=machines,
        users=users,
    )


def postgresql_facts(
    database: Database, own_time: Callable[[], float] = time.time
) -> DatabaseFacts:
    """Blocking, for ANSWER_SECONDS at most where nothing answers."""
    hanging = Session()
    engine = hanging.of(database.reader())
    # A server that is stopped, or another one at its address, may take questions for ever.
    cut = threading.Timer(ANSWER_SECONDS, hanging.cut)
    cut.daemon = True
    cut.start()
    try:
        with engine.begin() as connection:
            return _postgresql(connection, own_time)
    except sa.exc.SQLAlchemyError as error:
        return DatabaseFacts(kind="postgresql", why=sentence(error))
    finally:
        cut.cancel()
        database.leave()


def _postgresql(connection: sa.Connection, own_time: Callable[[], float]) -> DatabaseFacts:
    began = own_time()
    row = connection.execute(
        sa.text(
            "SELECT CAST(current_setting('server_version_num') AS integer) AS server,"
            " current_setting('server_encoding') AS encoding, pg_is_in_recovery() AS is_read_only,"
            " has_schema_privilege(current_schema(), 'CREATE') AS may_create,"
            " CAST(extract(epoch FROM clock_timestamp()) AS double precision) AS now"
        )
    ).one()
    ended = own_time()
    version = schema.version(connection)
    lease = None
    if version is not None:
        query = sa.select(leases.c.holder, leases.c.expires_at).where(leases.c.name == LEASE_NAME)
        lease = connection.execute(query).one_or_none()
    facts = DatabaseFacts(
        kind="postgresql",
        seconds=ended - began,
        server=row.server,
        encoding=row.encoding,
        is_read_only=row.is_read_only,
        may_create=bool(row.may_create),
        is_pooled=is_pooled(connection),
        clock_offset=(began + ended) / 2 - row.now,
        schema=version,
        installation=schema.installation_of(connection),
        machines=_live_machines(connection),
        users=_users(connection),
        holder=None if lease is None else lease.holder,
        lease_left=None if lease is None else lease.expires_at - row.now,
        sight=_sight(connection, version or ""),
    )
    return msgspec.structs.replace(facts, is_locked=_is_locked(connection))


def _is_locked(connection: sa.Connection) -> bool:
    """Return whether a session has the leader's lock. It is the last question of its transaction:
    until that ends, a controller that asks for a free lock does not get it, and asks again."""
    # Not the view pg_locks, which a role may be forbidden to read. Shared: of two doctors, none
    # takes the other one for a leader.
    query = sa.select(sa.func.pg_try_advisory_xact_lock_shared(LEADING_LOCK))
    return not connection.execute(query).scalar_one()


def _sight(connection: sa.Connection, version: str) -> Sight | None:
    return sight_of(connection, version) if version >= schema.CONTROLLERS_SINCE else None


def _users(connection: sa.Connection) -> frozenset[str] | None:
    if not sa.inspect(connection).has_table(schema.users.name):
        return None
    return frozenset(connection.execute(sa.select(schema.users.c.name)).scalars())


def _live_machines(connection: sa.Connection) -> tuple[Machine, ...]:
    # A database of before machines were rented has no such table.
    if not sa.inspect(connection).has_table(machines.name):
        return ()
    live = machines.c.status != MachineStatus.TERMINATED
    rows = connection.execute(sa.select(machines).where(live)).mappings()
    return tuple(MACHINE.value(row) for row in rows)
