"""Reads the database next to the controller that leads; it neither takes the lease nor writes."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

import sqlalchemy as sa

from controller.lifecycle.model import Attempt, RunState
from controller.store import queries, schema
from controller.store.accounts import StoredToken, User
from controller.store.base import StoredEvent
from controller.store.errors import StoreUnavailable
from controller.store.sql_errors import as_store_error
from fairlead.queries import AttemptQuery, EventQuery, RunQuery

T = TypeVar("T")
MAX_WAITING = 32
"""Requests that wait for the connection. More are refused at once: the leader has the state in
memory."""
AWAY_SECONDS = 1.0
"""For so long after a failure nobody waits for the database: each would else, one after another."""
_VERSION = sa.text("SELECT version_num FROM alembic_version")


class StoreReader:
    """Committed state, as the leader has it after its last turn."""

    def __init__(self, make_engine: Callable[[], sa.Engine]) -> None:
        self._make_engine = make_engine
        self._engine: sa.Engine | None = None
        # A connection serves one thread.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store-follower")
        self._one_at_a_time = asyncio.Lock()
        self._waiting = 0
        self._away_until = -math.inf

    @asynccontextmanager
    async def moment(self) -> AsyncIterator[Moment]:
        """Return the state at one moment, within this block. Raises StoreUnavailable, also if the
        database has the schema of another version, or many wait for it."""
        if self._waiting >= MAX_WAITING:
            raise StoreUnavailable("many reads wait for the database already")
        self._waiting += 1
        try:
            async with self._one_at_a_time:
                now = asyncio.get_running_loop().time
                if now() < self._away_until:
                    raise StoreUnavailable("the database could not be read just now")
                moment = Moment(self._thread)
                try:
                    try:
                        await moment.do(lambda: moment.begin(self._opened()))
                    except StoreUnavailable:
                        self._away_until = now() + AWAY_SECONDS
                        raise
                    yield moment
                finally:
                    # Also when its request was cancelled: the thread goes on with what it does.
                    await asyncio.shield(asyncio.wrap_future(self._thread.submit(moment.end)))
        finally:
            self._waiting -= 1

    def _opened(self) -> sa.Engine:
        if self._engine is None:
            self._engine = self._make_engine()
        return self._engine

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.shutdown)
        engine, self._engine = self._engine, None
        if engine is not None:
            await asyncio.to_thread(engine.dispose)


class Moment:
    """One transaction that only reads. Each method may raise StoreUnavailable."""

    def __init__(self, thread: ThreadPoolExecutor) -> None:
        self._thread = thread
        self._connection: sa.Connection | None = None

    def begin(self, engine: sa.Engine) -> None:
        """Blocking, as `end` is."""
        self._connection = connection = engine.connect()
        found = connection.execute(_VERSION).scalar_one_or_none()
        if found != schema.SCHEMA_VERSION:
            raise StoreUnavailable("the database has the schema of another version")

    def end(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sa.exc.SQLAlchemyError):
                connection.close()

    async def find_run(self, key: str, *, user: str | None = None) -> RunState | None:
        return await self._read(
            lambda connection: queries.find_run(connection, key, user, as_live=True)
        )

    async def list_runs(self, query: RunQuery) -> list[RunState]:
        return await self._read(
            lambda connection: queries.list_runs(connection, query, as_live=True)
        )

    async def events(self, query: EventQuery) -> list[StoredEvent]:
        return await self._read(lambda connection: queries.events(connection, query))

    async def attempts(self, run_id: str, query: AttemptQuery) -> list[Attempt]:
        return await self._read(lambda connection: queries.attempts(connection, run_id, query))

    async def account(self, digest: str) -> tuple[User, StoredToken] | None:
        """Return the token with this digest and its user."""
        return await self._read(lambda connection: queries.account(connection, digest))

    async def node_names(self) -> dict[str, str]:
        """Return the names of all nodes by id."""
        return await self._read(queries.node_names)

    async def installation_id(self) -> str | None:
        return await self._read(schema.installation_of)

    async def _read(self, query: Callable[[sa.Connection], T]) -> T:
        def read() -> T:
            if self._connection is None:
                raise StoreUnavailable("this moment is over")
            return query(self._connection)

        return await self.do(read)

    async def do(self, call: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        except sa.exc.DBAPIError as error:
            raise as_store_error(error) from error
        except sa.exc.SQLAlchemyError as error:
            raise StoreUnavailable(str(error)) from error
