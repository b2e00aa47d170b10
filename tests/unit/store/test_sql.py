"""Promises of the store in a database alone: durability, privacy, an unblocked event loop."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from controller.lifecycle.model import RunState
from controller.store import schema, scrubbing
from controller.store.base import Changes
from controller.store.errors import (
    LeaseHeld,
    LeaseLost,
    StoreRefused,
    StoreUnavailable,
    StoreUnusable,
)
from controller.store.lease import Lease
from controller.store.sql import SqlStore
from controller.store.sqlite import SqliteDatabase
from fairlead.model.statuses import RunStatus
from fairlead.queries import EventQuery
from tests.doubles.watched_databases import WatchedSqlite
from tests.support.waiting import LONG, eventually, wait_until
from tests.unit.store.samples import (
    SECRET,
    a_run,
    an_event,
    change,
    submission,
    with_secret,
    with_status,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def database(folder: Path) -> WatchedSqlite:
    return WatchedSqlite(folder)


@pytest.fixture
async def store(database: WatchedSqlite) -> AsyncIterator[SqlStore]:
    store = SqlStore(database)
    await store.open()
    yield store
    await store.close()


def a_connection(folder: Path) -> sqlite3.Connection:
    return sqlite3.connect(folder / "controller.db", isolation_level=None, timeout=0.1)


async def test_data_folder_and_files_are_their_owners_alone(store: SqlStore, folder: Path) -> None:
    await store.commit(submission(a_run()))

    files = ("controller.db", "controller.db-wal", "controller.db-shm", "controller.lock")
    assert modes_in(folder) == {".": 0o700, **dict.fromkeys(files, 0o600)}


def modes_in(folder: Path) -> dict[str, int]:
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    return {".": stat.S_IMODE(folder.stat().st_mode), **modes}


async def test_a_commit_is_on_the_disk_before_it_returns(
    store: SqlStore, database: WatchedSqlite
) -> None:
    names, full = ("journal_mode", "synchronous", "foreign_keys"), 2
    settings: list[tuple[object, ...]] = []

    def note(connection: sa.Connection) -> None:
        read = connection.exec_driver_sql
        settings.append(tuple(read(f"PRAGMA {name}").scalar() for name in names))

    sa.event.listen(database.engine, "commit", note)
    await store.commit(submission(a_run()))
    assert settings == [("wal", full, 1)]


WRITER = """
import asyncio, sys
from pathlib import Path
from controller.store.sql import SqlStore
from controller.store.sqlite import SqliteDatabase
from tests.unit.store.samples import a_run, submission

async def main():
    store = SqlStore(SqliteDatabase(Path(sys.argv[1])))
    boot = await store.open()
    for number in range(10_000):
        run_id = f"run-{boot.token}-{number}"
        await store.commit(submission(a_run(run_id, submitted_at=float(number))))
        print(run_id, flush=True)

asyncio.run(main())
"""


async def test_kill_9_loses_no_acknowledged_commit_and_the_next_controller_starts_at_once(
    folder: Path,
) -> None:
    acknowledged: list[str] = []
    for _ in range(3):
        writer = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WRITER, str(folder), stdout=subprocess.PIPE
        )
        assert writer.stdout is not None
        for _ in range(5):
            acknowledged.append((await writer.stdout.readline()).decode().strip())
        writer.kill()
        rest = await writer.stdout.read()
        acknowledged += [line for line in rest.decode().split("\n")[:-1] if line]
        await writer.wait()
    store = SqlStore(SqliteDatabase(folder))
    boot = await store.open()
    loaded = {state.run.id: state for state in (await store.load()).runs}
    await store.close()

    assert boot.token == 4
    assert set(acknowledged) <= set(loaded)
    assert all(state.jobs == a_run(run_id).jobs for run_id, state in loaded.items())


async def test_a_failed_commit_changes_nothing(store: SqlStore, folder: Path) -> None:
    old = a_run()
    await store.commit(submission(old))
    twice = Changes(
        runs={"run1": (old, with_status(old, RunStatus.DONE)), "run2": (None, old)},
        events=(an_event(),),
    )

    with pytest.raises(StoreRefused, match="UNIQUE"):
        await store.commit(twice)
    assert await store.find_run("run1") == old
    assert await store.events(EventQuery()) == []


async def test_a_locked_database_is_unavailable_and_the_same_commit_works_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.store.sqlite.BUSY_TIMEOUT_SECONDS", 0.01)
    store = SqlStore(SqliteDatabase(folder))
    await store.open()
    other = a_connection(folder)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked"):
        await store.commit(submission(a_run()))
    other.execute("ROLLBACK")
    other.close()
    await store.commit(submission(a_run()))
    found = await store.find_run("run1")
    await store.close()

    assert found == a_run()


@pytest.mark.parametrize("times", [1, 1000])
async def test_a_dropped_secret_is_nowhere_in_the_file(folder: Path, times: int) -> None:
    store = SqlStore(SqliteDatabase(folder))
    await store.open()
    before = a_run()
    job = before.jobs[0]
    spec = msgspec.structs.replace(job.spec, secrets={"S": SECRET * times})
    with_it = msgspec.structs.replace(before, jobs=(msgspec.structs.replace(job, spec=spec),))
    await store.commit(submission(with_it))
    in_between = await asyncio.to_thread(everything_in, folder)
    await store.commit(change(with_it, before))
    await store.close()

    assert SECRET.encode() in in_between
    assert SECRET.encode() not in await asyncio.to_thread(everything_in, folder)


def everything_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


@pytest.fixture
def quick_scrubs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubbing, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(scrubbing, "MAX_PAUSE_SECONDS", 0.02)


async def is_anywhere(folder: Path, secret: str = SECRET) -> bool:
    return secret.encode() in await asyncio.to_thread(everything_in, folder)


async def until_nowhere(folder: Path) -> None:
    secret = SECRET.encode()
    await asyncio.to_thread(wait_until, lambda: secret not in everything_in(folder))


@pytest.mark.usefixtures("quick_scrubs")
@pytest.mark.parametrize("times", [1, 1000])
async def test_dropped_secrets_leave_the_files_of_a_working_controller(
    folder: Path, times: int
) -> None:
    """Beside others that live and grow, so that pages are split and joined."""
    store = SqlStore(SqliteDatabase(folder))
    await store.open()
    ending = [a_run(f"ending{number}") for number in range(30)]
    for number, run in enumerate(ending):
        live = with_secret(a_run(f"live{number}"), f"live {number} " * times)
        await store.commit(submission(with_secret(run, SECRET * times), live))
    assert await is_anywhere(folder)
    for run in ending:
        await store.commit(change(with_secret(run, SECRET * times), run))
    await until_nowhere(folder)
    assert await is_anywhere(folder, "live 29 ")
    await store.close()


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from controller.store.sql import SqlStore
from controller.store.sqlite import SqliteDatabase
from tests.unit.store.samples import a_run, change, submission
from tests.unit.store.samples import with_secret

async def main():
    store = SqlStore(SqliteDatabase(Path(sys.argv[1])))
    await store.open()
    await store.commit(submission(with_secret(a_run())))
    await store.commit(change(with_secret(a_run()), a_run()))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.usefixtures("quick_scrubs")
async def test_secrets_dropped_by_a_killed_controller_leave_its_files_when_the_next_one_starts(
    folder: Path,
) -> None:
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, str(folder))
    assert await killed.wait() == -signal.SIGKILL
    assert await is_anywhere(folder)
    store = SqlStore(SqliteDatabase(folder))
    await store.open()
    await until_nowhere(folder)
    await store.close()


@pytest.mark.usefixtures("quick_scrubs")
async def test_a_reader_of_the_file_delays_its_scrubbing_and_nothing_else(folder: Path) -> None:
    store, run = SqlStore(SqliteDatabase(folder)), a_run()
    await store.open()
    await store.commit(submission(with_secret(run)))
    reader = a_connection(folder)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM runs").fetchone()
    await store.commit(change(with_secret(run), run))
    for number in range(20):
        await store.commit(submission(a_run(f"beside{number}")))
    assert await is_anywhere(folder)
    reader.execute("ROLLBACK")
    reader.close()
    await until_nowhere(folder)
    await store.close()


@pytest.mark.usefixtures("quick_scrubs")
async def test_a_scrub_that_fails_is_told_and_tried_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: SqliteDatabase, writer: sa.Engine) -> bool:
        raise StoreUnavailable("the write-ahead log cannot be cut off: disk I/O error")

    store, run = SqlStore(SqliteDatabase(folder)), a_run()
    with monkeypatch.context() as patched:
        patched.setattr(SqliteDatabase, "scrub", broken)
        await store.open()
        await store.commit(submission(with_secret(run)))
        await store.commit(change(with_secret(run), run))
        await eventually(lambda: "disk I/O error" in caplog.text)
    await until_nowhere(folder)
    await store.close()


async def test_a_full_disk_is_unavailable_and_loses_nothing(
    store: SqlStore, database: WatchedSqlite
) -> None:
    kept = a_run("kept")
    await store.commit(submission(kept))
    pages = 1

    def limit(connection: sa.Connection) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")

    sa.event.listen(database.engine, "begin", limit)
    many = [a_run(f"run{number}") for number in range(500)]
    with pytest.raises(StoreUnavailable, match="full"):
        await store.commit(submission(*many))
    assert (await store.load()).runs == (kept,)
    pages = 1 << 30
    await store.commit(submission(*many))
    assert len((await store.load()).runs) == 501


async def test_the_event_loop_goes_on_while_the_database_is_slow(
    store: SqlStore, database: WatchedSqlite
) -> None:
    release = threading.Event()
    started = threading.Event()

    def slow(connection: sa.Connection) -> None:
        started.set()
        assert release.wait(timeout=LONG)

    sa.event.listen(database.engine, "commit", slow)
    writing = asyncio.create_task(store.commit(submission(a_run())))
    await asyncio.to_thread(started.wait, 30)
    assert await store.find_run("nobody") is None
    assert not writing.done()
    release.set()
    await writing


async def test_only_rows_that_changed_are_written(store: SqlStore, database: WatchedSqlite) -> None:
    old = a_run()
    await store.commit(submission(old))
    statements: list[str] = []
    sa.event.listen(
        database.engine,
        "before_cursor_execute",
        lambda c, cursor, sql, *rest: statements.append(sql),
    )
    await store.commit(change(old, with_status(old, RunStatus.TERMINATING)))

    tables_written = [sql.split()[1] for sql in statements if sql.startswith(("UPDATE", "INSERT"))]
    assert tables_written == ["runs"]


async def test_a_controller_that_was_replaced_can_not_commit(store: SqlStore, folder: Path) -> None:
    other = a_connection(folder)
    other.execute("UPDATE leases SET token = token + 1, holder = 'somebody else'")
    other.close()

    with pytest.raises(LeaseLost, match="taken over"):
        await store.commit(submission(a_run()))
    with pytest.raises(LeaseLost, match="taken over"):
        await store.renew_lease()
    assert await store.find_run("run1") is None


async def test_a_refused_controller_is_told_who_works_there(store: SqlStore, folder: Path) -> None:
    second = SqlStore(SqliteDatabase(folder))

    with pytest.raises(LeaseHeld, match=r"another controller \(process \d+ on .*--data"):
        await second.open()


@pytest.fixture
def folder_with_garbage(folder: Path) -> Path:
    folder.mkdir()
    (folder / "controller.db").write_bytes(b"not a database, but long enough to be read" * 100)
    return folder


async def test_a_file_that_is_no_database_is_refused_with_a_sentence(
    folder_with_garbage: Path,
) -> None:
    store = SqlStore(SqliteDatabase(folder_with_garbage))

    with pytest.raises(StoreUnusable, match=r"/controller\.db is no database: move it away"):
        await store.open()


async def test_a_folder_that_can_not_be_made_is_refused_with_a_sentence() -> None:
    store = SqlStore(SqliteDatabase(Path("/dev/null/data")))

    with pytest.raises(StoreUnusable, match="can't be used: Not a directory"):
        await store.open()


async def test_no_error_repeats_stored_values(store: SqlStore) -> None:
    state = with_password(a_run())
    await store.commit(submission(state))

    with pytest.raises(StoreRefused) as caught:
        await store.commit(submission(state))
    chain = caught.value, caught.value.__cause__
    assert [error for error in chain if SECRET in f"{error}{error!r}"] == []


def with_password(state: RunState) -> RunState:
    spec = msgspec.structs.replace(state.jobs[0].spec, env={"TOKEN": SECRET})
    return msgspec.structs.replace(state, jobs=(msgspec.structs.replace(state.jobs[0], spec=spec),))


@pytest.fixture
def lease_table() -> sa.Engine:
    engine = sa.create_engine("sqlite://")
    schema.metadata.create_all(engine)
    return engine


def alive(connection: sa.Connection, token: int) -> bool:
    return False


def test_without_an_os_lock_a_lease_is_taken_only_after_it_ran_out(lease_table: sa.Engine) -> None:
    now = time.time()
    first = Lease(holder="first", seconds=30.0, now=lambda _: now)
    second = Lease(holder="second", seconds=30.0, now=lambda _: now + 29.0)
    third = Lease(holder="third", seconds=30.0, now=lambda _: now + 31.0)
    with lease_table.begin() as connection:
        assert first.take(connection, holder_is_dead=alive) == 1
        with pytest.raises(LeaseHeld, match="first"):
            second.take(connection, holder_is_dead=alive)
        assert third.take(connection, holder_is_dead=alive) == 2
        with pytest.raises(LeaseLost):
            first.verify(connection)
    lease_table.dispose()


def test_a_lease_that_was_given_back_can_be_taken_at_once(lease_table: sa.Engine) -> None:
    first = Lease(holder="first", seconds=30.0, now=lambda _: 100.0)
    second = Lease(holder="second", seconds=30.0, now=lambda _: 100.0)
    with lease_table.begin() as connection:
        first.take(connection, holder_is_dead=alive)
        first.give_back(connection)
        assert second.take(connection, holder_is_dead=alive) == 2
        first.give_back(connection)
        second.verify(connection)
    lease_table.dispose()


async def test_the_database_of_another_installation_is_refused_and_nothing_is_written(
    folder: Path,
) -> None:
    store = SqlStore(SqliteDatabase(folder))
    boot = await store.open()
    await store.close()
    refused = SqlStore(SqliteDatabase(folder), installation_id="another")
    with pytest.raises(
        StoreUnusable, match=f"another, and the database is that of {boot.installation_id}"
    ):
        await refused.open()
    own = SqlStore(SqliteDatabase(folder), installation_id=boot.installation_id)
    assert (await own.open()).token == boot.token + 1
    await own.close()


async def test_an_empty_database_is_not_that_of_the_folders_installation(folder: Path) -> None:
    with pytest.raises(StoreUnusable, match="another, and the database is empty: give"):
        await SqlStore(SqliteDatabase(folder), installation_id="another").open()
