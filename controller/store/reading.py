"""Reads the database next to the controller that leads; it neither takes the lease nor writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import sqlalchemy as sa

from controller.lifecycle.model import Attempt, RunState
from controller.store import queries, schema
from controller.store.accounts import StoredToken, User
from controller.store.base import StoredEvent
from controller.store.errors import StoreError, StoreUnavailable
from controller.store.sql_errors import as_store_error
from fairlead.queries import AttemptQuery, EventQuery, RunQuery

T = TypeVar("T")
MAX_WAITING = 32
"""Reads that wait for the connection. More are refused at once: the leader has them in memory."""


class StoreReader:
    """Committed state, as the leader has it after its last turn. Each read is one transaction, and
    raises StoreUnavailable, also if the database has the schema of another version."""

    def __init__(self, make_engine: Callable[[], sa.Engine]) -> None:
        self._make_engine = make_engine
        self._engine: sa.Engine | None = None
        # A connection serves one thread.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store-follower")
        self._waiting = 0

    async def find_run(self, key: str, *, user: str | None = None) -> RunState | None:
        def find(connection: sa.Connection) -> list[RunState]:
            found = queries.find_run(connection, key, user)
            return queries.as_live(connection, [] if found is None else [found])

        return next(iter(await self._read(find)), None)

    async def list_runs(self, query: RunQuery) -> list[RunState]:
        return await self._read(
            lambda connection: queries.as_live(connection, queries.list_runs(connection, query))
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

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.shutdown)
        engine, self._engine = self._engine, None
        if engine is not None:
            await asyncio.to_thread(engine.dispose)

    async def _read(self, query: Callable[[sa.Connection], T]) -> T:
        def read() -> T:
            if self._engine is None:
                self._engine = self._make_engine()
            with self._engine.begin() as connection:
                if schema.version(connection) != schema.SCHEMA_VERSION:
                    raise StoreUnavailable("the database has the schema of another version")
                return query(connection)

        if self._waiting >= MAX_WAITING:
            raise StoreUnavailable("many reads wait for the database already")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, read)
        except StoreError:
            raise
        except sa.exc.SQLAlchemyError as error:
            if isinstance(error, sa.exc.DBAPIError):
                raise as_store_error(error) from error
            raise StoreUnavailable(str(error)) from error
        finally:
            self._waiting -= 1
