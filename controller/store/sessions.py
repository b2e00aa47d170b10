"""Ends the wait for a database that accepts what it is asked, and does not answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import sqlalchemy as sa

from controller.store.errors import StoreHangs

T = TypeVar("T")
READ_SECONDS = 6.0
"""A follower waits for its leader's answer for a little longer."""
MAX_READS = 256
"""Reads that wait at the same time."""
WRITE_SECONDS = 15.0
"""Longer than the server needs to end a statement or a wait for a lock by itself, so that only a
write without any answer is cut, at the latest after twice this time."""

LAST_WRITE_SECONDS = 3.0
"""A commit in progress, and the return of the lease, when a controller stops."""


class Session:
    """The way to end the wait of a thread for its database: the end of the connection below it.

    Closing the driver's connection from another thread would free what its thread uses. The
    descriptor is a second one, so that it is never one that the driver has closed and the kernel
    has given to something else.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def of(self, engine: sa.Engine) -> sa.Engine:
        """Follow the connections of this engine, which has one at a time. Return the engine."""
        # Before SQLAlchemy's own first queries on a connection, which may be hung as well.
        sa.event.listen(engine, "connect", self.opened, insert=True)
        sa.event.listen(engine, "close", self.closed)
        return engine

    def opened(self, connection: Any, _record: object) -> None:
        """`connection`: the driver's. One without a descriptor (SQLite) waits for nobody."""
        self.closed()
        if hasattr(connection, "fileno"):
            with self._lock:
                # A copy: the driver closes its own descriptor, whose number may then be another
                # file's.
                self._socket = socket.socket(fileno=os.dup(connection.fileno()))

    def closed(self, *_: object) -> None:
        with self._lock:
            session, self._socket = self._socket, None
            if session is not None:
                session.close()

    def cut(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            if self._socket is not None:
                # shutdown(2) wakes the thread that waits in recv(2); close(2) would leave it there.
                self._socket.shutdown(socket.SHUT_RDWR)


class Patience:
    """Bounds how long, and how many, reads wait for a database, and how long a write does. Reads
    share one thread, and the writes another one."""

    def __init__(
        self,
        seconds: float = READ_SECONDS,
        most: int = MAX_READS,
        write_seconds: float = WRITE_SECONDS,
    ) -> None:
        self._seconds = seconds
        self._write_seconds = write_seconds
        self._most = most
        self._waiting = 0
        self.session = Session()
        self.writes = Session()

    async def write(self, thread: ThreadPoolExecutor, change: Callable[[], T]) -> T:
        """Return what the change returns in the thread. Raises what it raises.

        The end of its session is no answer: `change` finds out whether it was done.
        """
        asking = thread.submit(change)
        asked = asyncio.wrap_future(asking)
        asked.add_done_callback(_take_error)
        try:
            while not asked.done():
                # One that waits for its turn in the thread has not asked the database yet.
                has_begun = asking.running()
                await asyncio.wait((asked,), timeout=self._write_seconds)
                if has_begun and not asked.done():
                    self.writes.cut()
            return asked.result()
        finally:
            # It has no effect on a call that has begun: concurrent.futures cannot end a thread.
            asking.cancel()

    async def last_write(self, leaving: asyncio.Task[None]) -> None:
        """Return when it is done; a database that doesn't answer holds it up for a moment only."""
        while not leaving.done():
            await asyncio.wait((leaving,), timeout=LAST_WRITE_SECONDS)
            if not leaving.done():
                # The commit in progress; then the connection that gives the lease back.
                self.writes.cut()

    async def read(self, thread: ThreadPoolExecutor, query: Callable[[], T]) -> T:
        """Return what the query returns in the thread. Raises what it raises, and StoreHangs."""
        if self._waiting >= self._most:
            raise StoreHangs("many reads wait for the database already")
        self._waiting += 1
        asking = thread.submit(query)
        asked = asyncio.wrap_future(asking)
        asked.add_done_callback(self._answered)
        try:
            await asyncio.wait((asked,), timeout=self._seconds)
        finally:
            # One that can't be cancelled has begun: the thread waits for its answer.
            if not asked.done() and not asking.cancel():
                self.session.cut()
        if not asked.done():
            raise StoreHangs(f"the database has not answered within {self._seconds:g} s")
        return asked.result()

    def _answered(self, asked: asyncio.Future[T]) -> None:
        self._waiting -= 1
        _take_error(asked)


def _take_error(asked: asyncio.Future[T]) -> None:
    # The caller may have given up. asyncio logs an error that nothing retrieves.
    if not asked.cancelled():
        asked.exception()
