"""The leader's reads from a database that accepts what it is asked and never answers."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from controller.lifecycle.model import RunState
from controller.store import queries
from controller.store.errors import LeaseLost, StoreHangs, StoreUnavailable
from controller.store.sessions import Patience
from controller.store.sql import SqlStore
from controller.store.sqlite import SqliteDatabase
from fairlead.queries import RunQuery
from tests.support.waiting import eventually

NEVER = 3600.0


class Hung:
    """A store whose lists of runs wait for their answer on a socket, as a driver does."""

    def __init__(self, folder: Path) -> None:
        self.driver, self.server = socket.socketpair()
        self.begun = threading.Event()
        self.patience = Patience(NEVER, most=2)
        self.store = SqlStore(SqliteDatabase(folder), patience=self.patience)

    def fileno(self) -> int:
        return self.driver.fileno()

    def query(self, *_: object) -> list[RunState]:
        self.begun.set()
        if not self.driver.recv(1):
            raise sa.exc.OperationalError("SELECT", {}, Exception("the server has gone"))
        return []

    def list(self) -> asyncio.Task[list[RunState]]:
        return asyncio.create_task(self.store.list_runs(RunQuery()))


@pytest.fixture
async def hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hung]:
    made = Hung(tmp_path)
    monkeypatch.setattr(queries, "list_runs", made.query)
    await made.store.open()
    # It connects to SQLite, which has no session to be cut.
    await made.store.find_run("r")
    made.patience.session.opened(made, None)
    yield made
    made.server.close()
    await made.store.close()
    made.driver.close()


async def has_begun(hung: Hung) -> None:
    await asyncio.to_thread(hung.begun.wait)


async def test_a_read_without_an_answer_is_refused_in_time(hung: Hung) -> None:
    hung.patience._seconds = 0.0
    with pytest.raises(StoreHangs, match="has not answered within 0 s"):
        await hung.list()


async def test_a_read_that_began_and_is_late_ends_with_its_session(
    hung: Hung, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(*_: object, **__: object) -> None:
        await has_begun(hung)

    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "wait", late)
        with pytest.raises(StoreHangs):
            await hung.list()
    assert await asyncio.to_thread(hung.server.recv, 1) == b""
    # The thread is free again.
    assert await hung.store.find_run("r") is None


async def test_a_read_that_nobody_waits_for_any_more_ends_with_its_session(hung: Hung) -> None:
    reading = hung.list()
    await has_begun(hung)
    reading.cancel()
    await asyncio.wait((reading,))
    assert reading.cancelled()
    assert await asyncio.to_thread(hung.server.recv, 1) == b""


async def test_one_that_has_not_begun_cuts_nobody(hung: Hung) -> None:
    first = hung.list()
    await has_begun(hung)
    second = asyncio.create_task(hung.store.find_run("r"))
    await eventually(lambda: hung.patience._waiting == 2)
    second.cancel()
    await asyncio.wait((second,))
    hung.server.send(b"1")
    assert await first == []


async def test_so_many_reads_wait_at_the_same_time(hung: Hung) -> None:
    first = hung.list()
    await has_begun(hung)
    second = asyncio.create_task(hung.store.find_run("r"))
    await eventually(lambda: hung.patience._waiting == 2)
    with pytest.raises(StoreHangs, match="many reads"):
        await hung.store.find_run("r")
    hung.server.send(b"1")
    assert await first == []
    assert await second is None
    assert await hung.store.find_run("r") is None


async def test_the_end_of_the_store_ends_a_read_that_hangs(hung: Hung) -> None:
    reading = hung.list()
    await has_begun(hung)
    await hung.store.close()
    with pytest.raises(StoreUnavailable):
        await reading


async def test_what_takes_long_by_itself_has_no_limit(hung: Hung) -> None:
    hung.patience._seconds = 0.0
    assert (await hung.store.load()).runs == ()
    assert list(await hung.store.submission_marks()) == []


async def test_a_write_that_fails_when_nobody_waits_any_more_leaves_no_traceback() -> None:
    """As when a leader that finds itself replaced ends the work that renews its lease."""
    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what["message"]))
    thread, begun, ends = ThreadPoolExecutor(1), threading.Event(), threading.Event()

    def lost() -> None:
        begun.set()
        ends.wait()
        raise LeaseLost("another controller has taken over")

    writing = asyncio.create_task(Patience().write(thread, lost))
    await asyncio.to_thread(begun.wait)
    writing.cancel()
    await asyncio.wait((writing,))
    # Its frames reach the future whose error nobody has asked for.
    del writing
    ends.set()
    await asyncio.to_thread(thread.shutdown)
    # The loop hears of the thread's error, then those who asked for it.
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    assert told == []
