"""Reads next to the leader, from a database that accepts what it is asked and never answers."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from controller.store import queries
from controller.store.errors import StoreHangs, StoreUnavailable, StoreUnusable
from controller.store.reading import StoreReader
from controller.store.sql import SqlStore
from controller.store.sqlite import SqliteDatabase
from tests.support.waiting import eventually

NEVER = 3600.0


class HungServer:
    """A query waits for its answer on a socket, as a driver does. `queries`: those that began."""

    def __init__(self) -> None:
        self.driver, self.server = socket.socketpair()
        self.begun = threading.Event()
        self.queries = 0

    def fileno(self) -> int:
        return self.driver.fileno()

    def query(self, _: sa.Connection) -> dict[str, str]:
        self.queries += 1
        self.begun.set()
        if not self.driver.recv(1):
            raise sa.exc.OperationalError("SELECT", {}, Exception("the server has gone"))
        return {"n": "node"}


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[HungServer]:
    server = HungServer()
    monkeypatch.setattr(queries, "node_names", server.query)
    yield server
    server.driver.close()
    server.server.close()


@pytest.fixture
async def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StoreReader]:
    monkeypatch.setattr("controller.store.reading.AWAY_SECONDS", 0.0)
    database = SqliteDatabase(tmp_path)
    store = SqlStore(database)
    await store.open()
    opened = StoreReader(database.reader, NEVER)
    async with opened.moment() as moment:
        assert await moment.node_names() == {}
    yield opened
    await opened.close()
    await store.close()


async def names(reader: StoreReader) -> dict[str, str]:
    async with reader.moment() as moment:
        return await moment.node_names()


async def test_a_read_that_is_not_answered_in_time_ends_with_its_session(
    reader: StoreReader, hung: HungServer
) -> None:
    reader._session.opened(hung, None)
    async with reader.moment() as moment:
        moment.until = 0.0
        with pytest.raises(StoreUnavailable, match="does not answer"):
            await moment.node_names()
    await asyncio.to_thread(hung.begun.wait)
    assert hung.server.recv(1) == b""
    await eventually(lambda: not reader.hangs)
    # The thread is free, and asks again.
    hung.driver.close()
    hung.driver, answering = socket.socketpair()
    answering.send(b"1")
    assert await names(reader) == {"n": "node"}
    answering.close()


async def test_a_cancelled_read_ends_with_its_session(
    reader: StoreReader, hung: HungServer
) -> None:
    reader._session.opened(hung, None)
    read = asyncio.create_task(names(reader))
    await asyncio.to_thread(hung.begun.wait)
    read.cancel()
    await asyncio.wait((read,))
    assert read.cancelled()
    assert hung.server.recv(1) == b""
    await eventually(lambda: not reader.hangs)


async def test_the_end_of_a_read_that_hangs_ends_with_its_session(
    reader: StoreReader, hung: HungServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader._session.opened(hung, None)
    async with reader.moment() as moment:
        monkeypatch.setattr(moment, "end", lambda: hung.driver.recv(1))
        moment.until = 0.0
    assert await asyncio.to_thread(hung.server.recv, 1) == b""
    await eventually(lambda: not reader.hangs)
    assert not reader._one_at_a_time.locked()


async def test_nobody_waits_while_the_database_hangs(reader: StoreReader, hung: HungServer) -> None:
    async with reader.moment() as moment:
        moment.until = 0.0
        with pytest.raises(StoreUnavailable):
            await moment.node_names()
    # It has no session that could be cut, as one that is still connected to.
    await asyncio.to_thread(hung.begun.wait)
    assert reader.hangs
    for _ in range(100):
        with pytest.raises(StoreUnavailable, match="not answered for some seconds"):
            await names(reader)
    assert hung.queries == 1
    hung.server.send(b"12")
    await eventually(lambda: not reader.hangs)
    assert await names(reader) == {"n": "node"}


async def test_a_database_that_hung_just_now_counts_as_one_that_hangs(
    reader: StoreReader, hung: HungServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.store.reading.AWAY_SECONDS", NEVER)
    async with reader.moment() as moment:
        moment.until = 0.0
        with pytest.raises(StoreHangs):
            await moment.node_names()
    hung.server.send(b"1")
    await eventually(lambda: not reader.hangs)
    with pytest.raises(StoreHangs, match="just now"):
        await names(reader)


async def test_who_waits_for_a_read_that_hangs_does_not_wait_for_longer(
    reader: StoreReader, hung: HungServer
) -> None:
    first = asyncio.create_task(names(reader))
    await asyncio.to_thread(hung.begun.wait)
    reader.answer_seconds = 0.0
    with pytest.raises(StoreUnavailable, match="other reads"):
        await names(reader)
    # It was not this one's read that hung.
    assert not reader.hangs
    hung.server.send(b"1")
    assert await first == {"n": "node"}


async def test_a_database_that_hangs_while_it_is_connected_to_keeps_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.store.reading.AWAY_SECONDS", 0.0)
    database = SqliteDatabase(tmp_path)
    store = SqlStore(database)
    await store.open()
    connects = threading.Event()

    def hangs() -> sa.Engine:
        connects.wait()
        return database.reader()

    reader = StoreReader(hangs, 0.0)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await names(reader)
    connects.set()
    await eventually(lambda: not reader.hangs)
    reader.answer_seconds = NEVER
    assert await names(reader) == {}
    await reader.close()
    await store.close()


async def test_what_another_version_wrote_is_an_error_of_the_store(
    reader: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(_: sa.Connection) -> None:
        raise msgspec.ValidationError("Invalid enum value 'new'")

    monkeypatch.setattr(queries, "node_names", unknown)
    with pytest.raises(StoreUnusable, match="this version does not know"):
        await names(reader)
