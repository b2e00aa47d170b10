"""Reads the database next to the controller that leads; it neither takes the lease nor writes."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa

from controller.lifecycle.machines.cost import DayCosts
from controller.lifecycle.model import Attempt, RunState
from controller.store import queries, schema
from controller.store.accounts import ServiceKey, StoredToken, User
from controller.store.base import USE_SECONDS, Sight, StoredEvent
from controller.store.errors import OtherSchema, StoreHangs, StoreUnavailable, StoreUnusable
from controller.store.peers import sight_of
from controller.store.sessions import Session
from controller.store.sql_errors import as_store_error
from controller.store.turns import changed_state as stored
from controller.store.turns import notes
from fairlead.queries import AttemptQuery, EventQuery, RunQuery

T = TypeVar("T")
MAX_WAITING = 32
"""Requests that wait for the connection. More are refused at once: the leader has the state in
memory."""
ANSWER_SECONDS = 2.0
"""Of all that one request reads, and of its wait for the connection."""
AWAY_SECONDS = 1.0
"""For so long after a failure nobody waits for the database: each would else, one after another."""
_VERSION = sa.text("SELECT version_num FROM alembic_version")


class StoreReader:
    """Committed state, as the leader has it after its last turn."""

    def __init__(
        self, make_engine: Callable[[], sa.Engine], answer_seconds: float = ANSWER_SECONDS
    ) -> None:
        self._make_engine = make_engine
        self.answer_seconds = answer_seconds
        self._engine: sa.Engine | None = None
        # A connection serves one thread.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store-follower")
        self._session = Session()
        self._one_at_a_time = asyncio.Lock()
        self._waiting = 0
        self._away_until = -math.inf
        self._why_away: type[StoreUnavailable] = StoreUnavailable
        self.hangs = False
        """Whether the thread still waits for an answer that nobody waits for any more."""

    @asynccontextmanager
    async def moment(self, seconds: float | None = None) -> AsyncIterator[Moment]:
        """Return the state at one moment, within this block. Raises StoreUnavailable, also if the
        database has the schema of another version, does not answer within `seconds` (None:
        `answer_seconds`), or many wait for it."""
        if self._waiting >= MAX_WAITING:
            raise StoreHangs("many reads wait for the database already")
        limit = self.answer_seconds if seconds is None else seconds
        until = asyncio.get_running_loop().time() + limit
        self._waiting += 1
        try:
            await self._turn(until)
            moment = Moment(self._thread, until)
            try:
                try:
                    await moment.do(lambda: moment.begin(self._opened()))
                except StoreUnavailable as error:
                    self._stay_away(type(error))
                    raise
                yield moment
            finally:
                self._leave(moment)
        finally:
            self._waiting -= 1

    async def _turn(self, until: float) -> None:
        """Return when the thread is this caller's. Raises StoreUnavailable."""
        self._require_answers()
        try:
            async with asyncio.timeout_at(until):
                await self._one_at_a_time.acquire()
        except TimeoutError:
            raise StoreHangs("other reads wait for the database for too long") from None
        try:
            self._require_answers()
        except StoreUnavailable:
            self._one_at_a_time.release()
            raise

    def _require_answers(self) -> None:
        if self.hangs:
            raise StoreHangs("the database has not answered for some seconds")
        if asyncio.get_running_loop().time() < self._away_until:
            raise self._why_away("the database could not be read just now")

    def _stay_away(self, why: type[StoreUnavailable]) -> None:
        self._why_away = why
        self._away_until = asyncio.get_running_loop().time() + AWAY_SECONDS

    def _leave(self, moment: Moment) -> None:
        """Let the next one read as soon as the thread has ended the moment; wait for nothing."""
        loop = asyncio.get_running_loop()
        if moment.is_asking:
            # Its request has had its time, or was cancelled.
            self._cut()
        ended = asyncio.wrap_future(self._thread.submit(moment.end), loop=loop)
        # The end of a transaction asks the database too.
        late = loop.call_at(moment.until, self._cut)

        def left(_: object) -> None:
            late.cancel()
            self.hangs = False
            self._one_at_a_time.release()

        ended.add_done_callback(left)

    def _cut(self) -> None:
        """End the wait of the thread. A query that goes on in the server ends with its session."""
        self.hangs = True
        self._stay_away(StoreHangs)
        self._session.cut()

    def _opened(self) -> sa.Engine:
        if self._engine is None:
            self._engine = self._session.of(self._make_engine())
        return self._engine

    async def close(self) -> None:
        self._session.cut()
        await asyncio.to_thread(self._thread.shutdown)
        engine, self._engine = self._engine, None
        if engine is not None:
            await asyncio.to_thread(engine.dispose)


class Moment:
    """One transaction that only reads. Each method may raise StoreUnavailable, and StoreUnusable
    for what a leader of another version has written. `until`: nobody
    waits for an answer for longer, by the loop's clock."""

    def __init__(self, thread: ThreadPoolExecutor, until: float) -> None:
        self._thread = thread
        self.until = until
        self._connection: sa.Connection | None = None
        self._asked: asyncio.Future[Any] | None = None

    @property
    def is_asking(self) -> bool:
        return self._asked is not None and not self._asked.done()

    def begin(self, engine: sa.Engine) -> None:
        """Blocking, as `end` is."""
        self._connection = connection = engine.connect()
        found = connection.execute(_VERSION).scalar_one_or_none()
        if found != schema.SCHEMA_VERSION:
            raise OtherSchema("the database has the schema of another version")

    def end(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            # The rollback of a connection that was cut fails; it is thrown away with its engine.
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

    async def events_with_owners(
        self, after: int, limit: int
    ) -> list[tuple[StoredEvent, str | None]]:
        """See `queries.events_with_owners`."""
        return await self._read(
            lambda connection: queries.events_with_owners(connection, after, limit)
        )

    async def last_event(self) -> int:
        return await self._read(queries.last_event)

    async def attempts(self, run_id: str, query: AttemptQuery) -> list[Attempt]:
        return await self._read(lambda connection: queries.attempts(connection, run_id, query))

    async def has_submission(self, user: str, client_key: str) -> bool:
        """Return whether this user's client key has made a run."""
        key = (user, client_key)
        return await self._read(
            lambda connection: key in queries.find_submissions(connection, [key])
        )

    async def account(self, digest: str) -> tuple[User, StoredToken] | None:
        """Return the token with this digest and its user."""
        return await self._read(lambda connection: queries.account(connection, digest))

    async def account_of(self, token_id: str) -> tuple[User, StoredToken] | None:
        """Return the token with this id and its user."""
        return await self._read(lambda connection: queries.account_of(connection, token_id))

    async def attempts_on(
        self, node_ids: Collection[str], since: float, limit: int
    ) -> list[tuple[str, Attempt]]:
        return await self._read(
            lambda connection: queries.attempts_on(connection, node_ids, since, limit)
        )

    async def costs_of_days(self, first: str) -> list[DayCosts]:
        return await self._read(lambda connection: queries.costs_of_days(connection, first))

    async def beginning(self, now: float) -> stored.Beginning:
        """Return all that is live. `now`: Unix seconds."""
        used_since = now - USE_SECONDS
        return await self._read(lambda connection: stored.beginning(connection, used_since))

    async def changed_since(self, known: notes.Turn) -> tuple[notes.Turn, notes.Changed] | None:
        """See `notes.since`."""
        return await self._read(lambda connection: notes.since(connection, known))

    async def changed_state(
        self, changed: notes.Changed, known: Mapping[str, Sequence[str]]
    ) -> stored.ChangedState:
        """See `stored.changed_state`."""
        return await self._read(lambda connection: stored.changed_state(connection, changed, known))

    async def sight(self) -> Sight:
        """Return the controllers that share the database."""
        return await self._read(sight_of)

    async def service_keys(self, digest: str) -> tuple[ServiceKey, ...]:
        """Return the keys of services with this digest."""
        return await self._read(lambda connection: queries.service_keys(connection, digest))

    async def node_names(self) -> dict[str, str]:
        """Return the names of all nodes by id."""
        return await self._read(queries.node_names)

    async def installation_id(self) -> str | None:
        return await self._read(schema.installation_of)

    async def _read(self, query: Callable[[sa.Connection], T]) -> T:
        def read() -> T:
            if self._connection is None:
                raise StoreUnavailable("this moment is over")
            try:
                return query(self._connection)
            # During a rolling upgrade the leader of the newer version writes values that this one
            # cannot read.
            except (msgspec.MsgspecError, ValueError) as error:
                raise StoreUnusable("the database has what this version does not know") from error

        return await self.do(read)

    async def do(self, call: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        asked: asyncio.Future[T] = loop.run_in_executor(self._thread, call)
        self._asked = asked
        # What it raises when nobody waits any more is of no interest.
        asked.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait((asked,), timeout=self.until - loop.time())
        if not asked.done():
            raise StoreHangs("the database does not answer")
        try:
            return asked.result()
        except sa.exc.DBAPIError as error:
            raise as_store_error(error) from error
        except sa.exc.SQLAlchemyError as error:
            raise StoreUnavailable(str(error)) from error
