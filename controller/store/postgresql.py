"""PostgreSQL: for controllers that must be able to move to another machine.

Several machines reach it, so time decides when a silent controller may be replaced: the server's
clock, which all of them share. A transaction that its controller left open (it was paused, its
machine is gone) is ended by the server, so that it can't keep a successor from taking over.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from controller.store.base import StoreUnavailable, StoreUnusable

_OPENING = 0x6661_6972
"""The advisory lock of those who are opening the database."""
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
    """`url` is `postgresql://[USER[:PASSWORD]@]HOST[:PORT]/DATABASE[?sslmode=…]`, as libpq has it;
    its other means (a service file, ~/.pgpass, PG* variables) work too.

    Raises StoreUnusable for anything else."""

    exclusive = False

    def __init__(self, url: str) -> None:
        try:
            parsed = sa.make_url(url)
        except sa.exc.ArgumentError:
            raise StoreUnusable(_NO_URL) from None
        if parsed.drivername not in ("postgresql", "postgres"):
            raise StoreUnusable(_NO_URL)
        self._url = parsed.set(drivername="postgresql+psycopg")
        self._engines: list[sa.Engine] = []

    def enter(self, holder: str) -> None:
        """Nothing to prove: see `guard`."""

    def writer(self) -> sa.Engine:
        return self._engine(isolation_level="READ COMMITTED")

    def reader(self) -> sa.Engine:
        """Several queries of one transaction see the same moment."""
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
        self._engines.append(engine)
        return engine

    def guard(self, connection: sa.Connection) -> None:
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_OPENING)))

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

    def leave(self) -> None:
        engines, self._engines = self._engines, []
        for engine in engines:
            engine.dispose()


_NO_URL = (
    "the database's address is not of the form postgresql://USER@HOST/DATABASE; without one, the "
    "state is kept in the data folder"
)
