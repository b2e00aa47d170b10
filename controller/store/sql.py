"""SqlStore keeps the controller's state in a SQL database; `Database` is what differs by vendor."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from array import array
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import sqlalchemy as sa

from controller.lifecycle.machines.cost import DayCosts
from controller.lifecycle.model import Attempt, RunState
from controller.store import queries, schema, writes
from controller.store.base import USE_SECONDS, Boot, Changes, Commits, Sight, Snapshot, StoredEvent
from controller.store.errors import (
    LeaseLost,
    OtherInstallation,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from controller.store.lease import LEASE_SECONDS, Lease, Life
from controller.store.scrubbing import Scrubber
from controller.store.sessions import Patience
from controller.store.sql_errors import (
    as_store_error,
    has_just_ended,
    is_about_values,
    sentence,
)
from controller.store.turns.notes import note
from fairlead.queries import AttemptQuery, EventQuery, RunQuery


class Database(Protocol):
    """The differences between vendors. The store calls it in its own threads, so every method may
    block."""

    def enter(self, holder: str) -> None:
        """Prepare the database for this holder. Raises LeaseHeld, StoreUnusable."""

    def holder_is_dead(self, connection: sa.Connection, token: int) -> bool:
        """Return whether `enter` has proven that the holder of the lease with this token is dead,
        so that it need not run out."""

    def began(self, life: Life) -> None:
        """Record that the lease was taken and committed, so that a successor can prove this holder
        dead."""

    def writer(self) -> sa.Engine:
        """Return the engine for transactions that write; one thread uses it."""

    def reader(self) -> sa.Engine:
        """Return the engine for transactions that only read, next to a writing one; another thread
        uses it."""

    def timeline(self) -> int | None:
        """Return the number of the server's history that `writer` is connected to, which grows when
        a standby is promoted; None: there is none, or it isn't known.

        A writer that is connected to another one later gets LeaseLost.
        """

    def guard(self, connection: sa.Connection) -> None:
        """Keep others from opening this database until the transaction ends."""

    def now(self, connection: sa.Connection, own: Callable[[], float]) -> float:
        """Return the time by which leases run out, from a clock that all possible holders share.

        It is `own` if they are all on this machine.
        """

    def announce(self, connection: sa.Connection, token: int) -> None:
        """Show other controllers of this database that this one holds the lease with this token.

        It belongs to the transaction that takes or renews the lease.
        """

    @property
    def is_shared(self) -> bool:
        """Whether other controllers may follow what this one commits."""

    def sight(self, connection: sa.Connection) -> Sight | None:
        """Return the controllers that share the database; None: it is not shared."""

    def keep_lead(self) -> None:
        """Keep what tells others at once when this holder has died, if there is such a thing."""

    def ticket(self, connection: sa.Connection) -> str | None:
        """Return a name for the present transaction if its end may stay unknown to the client; else
        None."""

    def landed(self, connection: sa.Connection, ticket: str) -> bool:
        """Return whether that transaction was committed. Raises StoreUnavailable: ask again."""

    def scrub(self, writer: sa.Engine) -> bool:
        """Remove overwritten and deleted values from the database's own files, as far as possible.

        Return False if a reader prevents it now: call again. The writing thread calls it, outside
        of transactions.
        """

    def leave(self) -> None:
        """Close everything; may be called twice, and after a failed `enter`."""


log = logging.getLogger(__name__)
T = TypeVar("T")
RECONNECT_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 10.0, 10.0, 10.0, 10.0)


class SqlStore:
    """The store in a SQL database; see `base.Store`.

    `now` gives Unix seconds. `lease_seconds` matters only for a database that several machines
    reach: renew well before it has passed. `installation_id`: the only installation whose database
    is opened; None: any. `patience`: that of reads for a database that may not answer; None: it
    is a file.
    """

    def __init__(
        self,
        database: Database,
        *,
        now: Callable[[], float] = time.time,
        lease_seconds: float = LEASE_SECONDS,
        installation_id: str | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.database = database
        self._patience = patience
        self._installation_id = installation_id
        self._lease = Lease(
            holder=_holder(),
            seconds=lease_seconds,
            now=lambda connection: database.now(connection, now),
        )
        self._now = now
        self._writer_thread: ThreadPoolExecutor | None = None
        self._reader_thread: ThreadPoolExecutor | None = None
        self._writer: sa.Engine | None = None
        self._reader: sa.Engine | None = None
        self._scrubber: Scrubber | None = None
        self._is_closing = False
        self._leader = secrets.token_hex(4)
        """Of the turns of this life: a promoted standby may give out their numbers again."""

    async def open(self) -> Boot:
        # One thread each: SQLite has one writer at a time, and a connection serves one thread.
        self._writer_thread = ThreadPoolExecutor(1, thread_name_prefix="store-writer")
        self._reader_thread = ThreadPoolExecutor(1, thread_name_prefix="store-reader")
        try:
            boot = await self._in(self._writer_thread, self._open)
        # Also when cancelled: Python waits for the threads of a pool before it ends.
        except BaseException:
            await self.close()
            raise
        self._scrubber = Scrubber(self._scrub)
        self._scrub_soon()  # a controller that was killed had no time for it
        return boot

    def _scrub_soon(self) -> None:
        if self._scrubber is not None:
            self._scrubber.soon()

    async def _scrub(self) -> bool:
        thread = self._opened(self._writer_thread)
        return await self._in(thread, lambda: self.database.scrub(self._opened(self._writer)))

    def _open(self) -> Boot:
        self.database.enter(self._lease.holder)
        writer = self.database.writer()
        self._writer = writer if self._patience is None else self._patience.writes.of(writer)
        reader = self.database.reader()
        self._reader = reader if self._patience is None else self._patience.session.of(reader)
        try:
            with self._writer.begin() as connection:
                boot = self._begin_life(connection)
        except BaseException:
            self._lease.forget()
            raise
        # After the commit: a token that was rolled back is given out again, to another controller.
        self.database.began(Life(installation_id=boot.installation_id, token=boot.token))
        return boot

    def _begin_life(self, connection: sa.Connection) -> Boot:
        self.database.guard(connection)
        if self._installation_id is not None:
            found = schema.installation_of(connection)
            if found != self._installation_id:
                raise OtherInstallation(self._installation_id, found)
        token = None
        if schema.version(connection) is not None:
            # Before an upgrade: a living controller's tables must not change below it.
            token = self._take_lease(connection)
        schema_version = schema.upgrade(connection)
        if token is None:
            token = self._take_lease(connection)
        self.database.announce(connection, token)
        installation = schema.identify(connection, new_id=secrets.token_hex(8), now=self._now())
        timeline = self.database.timeline()
        if timeline is not None:
            installation = schema.follow(connection, installation, timeline, self._now())
        return Boot(
            epoch=installation.epoch,
            token=token,
            installation_id=installation.id,
            schema_version=schema_version,
            restored_at=installation.restored_at,
        )

    def _take_lease(self, connection: sa.Connection) -> int:
        return self._lease.take(connection, holder_is_dead=self.database.holder_is_dead)

    async def load(self) -> Snapshot:
        used_since = self._now() - USE_SECONDS
        return await self._in(
            self._opened(self._reader_thread),
            self._reading(lambda connection: queries.snapshot(connection, used_since=used_since)),
        )

    async def commit(self, changes: Changes) -> None:
        def write(connection: sa.Connection) -> None:
            writes.write(connection, changes)
            if self.database.is_shared:
                note(connection, changes, self._leader)

        try:
            await self._write(write)
        except StoreRefused as error:
            raise await self._blame(changes, str(error)) from error.__cause__
        Commits.note()
        if writes.drops_values(changes):
            self._scrub_soon()

    async def _blame(self, changes: Changes, message: str) -> StoreRefused:
        def blame() -> StoreRefused:
            with self._opened(self._writer).connect() as connection, connection.begin() as trial:
                refused = writes.culprits(connection, changes)
                trial.rollback()
            return StoreRefused(message, **refused)

        return await self._written(blame)

    async def forget(self, *, finished_before: float, limit: int) -> int:
        removed: list[str] = []

        def forget(connection: sa.Connection) -> None:
            removed[:] = writes.forget_runs(connection, finished_before, limit)

        await self._write(forget)
        if removed:
            self._scrub_soon()
        return len(removed)

    async def forget_attempts(self, *, finished_before: float, limit: int) -> int:
        removed: list[str] = []

        def forget(connection: sa.Connection) -> None:
            removed[:] = writes.forget_attempts(connection, finished_before, limit)

        await self._write(forget)
        if removed:
            self._scrub_soon()
        return len(removed)

    async def renew_lease(self) -> None:
        def renew(connection: sa.Connection) -> None:
            self._lease.renew(connection)
            if self._lease.token is not None:
                self.database.announce(connection, self._lease.token)

        try:
            await self._write(renew)
        except StoreUnavailable:
            # A server that restarts has ended the session that tells that this holder lives, too:
            # the next renewal must not show that it is there.
            await self._keep_lead()
            raise
        await self._keep_lead()

    async def _keep_lead(self) -> None:
        await self._in(self._opened(self._writer_thread), self.database.keep_lead)

    async def find_run(self, key: str, *, user: str | None = None) -> RunState | None:
        return await self._read(lambda connection: queries.find_run(connection, key, user))

    async def find_submissions(
        self, keys: Collection[tuple[str, str]]
    ) -> dict[tuple[str, str], RunState]:
        return await self._read(lambda connection: queries.find_submissions(connection, keys))

    async def submission_marks(self) -> array[int]:
        thread = self._opened(self._reader_thread)
        return await self._in(thread, self._reading(queries.submission_marks))

    async def list_runs(self, query: RunQuery) -> list[RunState]:
        return await self._read(lambda connection: queries.list_runs(connection, query))

    async def events(self, query: EventQuery) -> list[StoredEvent]:
        return await self._read(lambda connection: queries.events(connection, query))

    async def attempts_on(
        self, node_ids: Collection[str], *, since: float, limit: int = 1000
    ) -> list[tuple[str, Attempt]]:
        return await self._read(
            lambda connection: queries.attempts_on(connection, node_ids, since, limit)
        )

    async def costs_of_days(self, first: str) -> list[DayCosts]:
        return await self._read(lambda connection: queries.costs_of_days(connection, first))

    async def attempts(self, run_id: str, query: AttemptQuery) -> list[Attempt]:
        return await self._read(lambda connection: queries.attempts(connection, run_id, query))

    async def peers(self) -> Sight | None:
        return await self._read(self.database.sight)

    async def close(self) -> None:
        scrubber, self._scrubber = self._scrubber, None
        if scrubber is not None:
            await scrubber.close()
        writer_thread, self._writer_thread = self._writer_thread, None
        reader_thread, self._reader_thread = self._reader_thread, None
        if writer_thread is None or reader_thread is None:
            return
        if self._patience is not None:
            # A read that hangs would keep the lease from the next leader.
            self._patience.session.cut()
        self._is_closing = True
        try:
            await self._in(reader_thread, self._dispose_reader)
            leaving = asyncio.create_task(self._in(writer_thread, self._leave))
            if self._patience is not None:
                await self._patience.last_write(leaving)
            await leaving
        finally:
            # A shutdown waits for its thread, and would stop the event loop meanwhile.
            await asyncio.to_thread(reader_thread.shutdown)
            await asyncio.to_thread(writer_thread.shutdown)

    def _dispose_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.dispose()

    def _leave(self) -> None:
        writer, self._writer = self._writer, None
        try:
            if writer is not None and self._lease.token is not None:
                with writer.begin() as connection:
                    self._lease.give_back(connection)
        # Without it, the next controller waits until the lease runs out.
        except (sa.exc.SQLAlchemyError, StoreError) as error:
            log.warning("the lease could not be given back: %s", sentence(error))
        finally:
            if writer is not None:
                writer.dispose()
            self.database.leave()

    async def _read(self, query: Callable[[sa.Connection], T]) -> T:
        """What takes long by itself, as `load`, has no limit."""
        thread, read = self._opened(self._reader_thread), self._reading(query)
        if self._patience is None:
            return await self._in(thread, read)
        return await self._answer(self._patience.read(thread, read))

    def _reading(self, query: Callable[[sa.Connection], T]) -> Callable[[], T]:
        def read() -> T:
            with self._opened(self._reader).begin() as connection:
                return query(connection)

        return read

    async def _write(self, change: Callable[[sa.Connection], None]) -> None:
        def write() -> None:
            began = time.monotonic()
            try:
                write_once()
            except sa.exc.DBAPIError as error:
                # Nothing was stored.
                if not has_just_ended(error, began) or self._is_closing:
                    raise
                log.info("the session for writes has ended: %s", sentence(error))
                write_once()

        def write_once() -> None:
            ticket = None
            try:
                with self._opened(self._writer).begin() as connection:
                    self._lease.verify(connection)
                    ticket = self.database.ticket(connection)
                    _apply(change, connection)
            except sa.exc.DBAPIError as error:
                # The connection broke in the commit: only the server knows whether it was done.
                if ticket is None or not error.connection_invalidated:
                    raise
                if not self._landed(ticket):
                    raise

        await self._written(write)

    async def _written(self, change: Callable[[], T]) -> T:
        thread = self._opened(self._writer_thread)
        if self._patience is None:
            return await self._in(thread, change)
        return await self._answer(self._patience.write(thread, change))

    def _landed(self, ticket: str) -> bool:
        """Return whether the transaction in which the connection broke was committed.

        Raises LeaseLost when that stays unknown: with either guess, things could be done twice.
        """
        for pause in (0.0, *RECONNECT_PAUSES):
            if self._is_closing:
                break
            # It blocks the writing thread on purpose: nothing may be written until this is known.
            time.sleep(pause)
            try:
                with self._opened(self._writer).begin() as connection:
                    return self.database.landed(connection, ticket)
            except (sa.exc.DBAPIError, StoreUnavailable) as error:
                log.warning("asking for the end of a transaction: %s", sentence(error))
        raise LeaseLost(
            "the database does not say whether the last change was stored; this controller leads "
            "no more, so that the next one goes on from what is there"
        )

    @staticmethod
    def _opened(part: T | None) -> T:
        if part is None:
            raise StoreUnavailable("the store is not open")
        return part

    @staticmethod
    async def _in(thread: ThreadPoolExecutor, call: Callable[[], T]) -> T:
        return await SqlStore._answer(asyncio.get_running_loop().run_in_executor(thread, call))

    @staticmethod
    async def _answer(asked: Awaitable[T]) -> T:
        try:
            return await asked
        except StoreError:
            raise
        except OSError as error:
            raise StoreUnavailable(f"the store can't be reached: {error.strerror}") from error
        except sa.exc.DBAPIError as error:
            raise as_store_error(error) from error


def _apply(change: Callable[[sa.Connection], None], connection: sa.Connection) -> None:
    try:
        change(connection)
    # `_write` must see whether the connection is lost.
    except sa.exc.DBAPIError:
        raise
    except Exception as error:
        if not is_about_values(error):
            raise
        raise as_store_error(error) from None


def _holder() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"
