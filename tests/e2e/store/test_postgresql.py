"""The store on a real PostgreSQL: the contract of all stores, and what only a server can do."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from controller import backups
from controller.store import examination, schema, sql_errors
from controller.store import postgresql as databases
from controller.store.base import Changes, Store
from controller.store.errors import (
    LeaseHeld,
    LeaseLost,
    StoreRefused,
    StoreUnavailable,
    StoreUnusable,
)
from controller.store.peers import Peers
from controller.store.postgresql import PostgresqlDatabase
from controller.store.reading import StoreReader
from controller.store.sessions import Patience
from controller.store.sql import SqlStore
from fairlead.model.statuses import RunStatus
from tests.doubles.watched_databases import WatchedPostgresql
from tests.support.postgresql_server import PostgresqlServer
from tests.support.store_contract import MakeStore, RefusalContract, StoreContract
from tests.support.store_history_contract import HistoryContract
from tests.support.waiting import eventually
from tests.unit.store.samples import a_run, an_event, submission

pytestmark = pytest.mark.e2e


@pytest.fixture
def make_store(database_url: str) -> MakeStore:
    return lambda: SqlStore(WatchedPostgresql(database_url))


class TestStore(StoreContract):
    pass


class TestHistory(HistoryContract):
    pass


class TestRefusals(RefusalContract):
    async def test_a_value_too_large_for_an_index_or_a_column_is_refused_not_waited_for(
        self, store: Store
    ) -> None:
        for_index = a_run("run1", client_key=secrets.token_hex(1 << 16))
        for_column = a_run("run2", name="n" * 65)

        with pytest.raises(StoreRefused) as caught:
            await store.commit(submission(for_index, for_column))
        assert caught.value.runs == {"run1", "run2"}


def name_of(url: str) -> str:
    return url.rpartition("/test")[2].partition("?")[0]


async def test_a_paused_controller_can_not_write_once_another_has_taken_over(
    database_url: str,
) -> None:
    paused = SqlStore(PostgresqlDatabase(database_url), lease_seconds=0.0)
    before = await paused.open()
    successor = SqlStore(PostgresqlDatabase(database_url))
    after = await successor.open()

    with pytest.raises(LeaseLost, match="taken over"):
        await paused.commit(submission(a_run()))
    with pytest.raises(LeaseLost, match="taken over"):
        await paused.renew_lease()
    assert await successor.find_run("run1") is None
    assert (after.epoch, after.token) == (before.epoch, before.token + 1)
    await paused.close()
    await successor.renew_lease()
    await successor.close()


async def test_a_refused_controller_is_told_the_leases_holder_and_end(
    make_store: MakeStore,
) -> None:
    first, second = make_store(), make_store()
    await first.open()

    with pytest.raises(LeaseHeld, match=r"process \d+ on .* its lease runs out in \d+ s"):
        await second.open()
    await first.close()
    await second.open()
    await second.close()


async def test_one_of_many_that_open_an_empty_database_at_once_gets_it(
    make_store: MakeStore,
) -> None:
    stores = [make_store() for _ in range(4)]
    opened = await asyncio.gather(*(store.open() for store in stores), return_exceptions=True)
    refused = [outcome for outcome in opened if isinstance(outcome, LeaseHeld)]
    for store in stores:
        await store.close()

    assert len(refused) == 3
    assert [outcome.token for outcome in opened if not isinstance(outcome, BaseException)] == [1]


async def test_a_cut_connection_is_made_anew(
    make_store: MakeStore, postgresql: PostgresqlServer, database_url: str
) -> None:
    store = make_store()
    await store.open()
    await store.commit(submission(a_run("run1", submitted_at=1.0)))
    await asyncio.to_thread(postgresql.cut_connections, f"test{name_of(database_url)}")

    await store.commit(submission(a_run("run2", submitted_at=2.0)))
    runs = (await store.load()).runs
    await store.close()
    assert [state.run.id for state in runs] == ["run1", "run2"]


async def test_a_database_that_only_reads_for_a_while_is_waited_for(
    make_store: MakeStore, postgresql: PostgresqlServer, database_url: str
) -> None:
    """As a server does that hands over to another one: its connections stay."""
    name = f"test{name_of(database_url)}"
    store = make_store()
    await store.open()
    await asyncio.to_thread(
        postgresql.sql, name, f"ALTER DATABASE {name} SET default_transaction_read_only = on"
    )
    await asyncio.to_thread(postgresql.cut_connections, name)
    with pytest.raises(StoreUnavailable, match="read-only transaction"):
        await store.commit(submission(a_run()))
    assert (await store.load()).runs == ()
    await asyncio.to_thread(
        postgresql.sql, "postgres", f"ALTER DATABASE {name} RESET default_transaction_read_only"
    )
    await store.commit(submission(a_run()))
    found = await store.find_run("run1")
    await store.close()

    assert found == a_run()


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_a_database_that_cannot_hold_every_text_is_refused_at_the_start(
    postgresql: PostgresqlServer, encoding: str
) -> None:
    await asyncio.to_thread(
        postgresql.sql,
        "postgres",
        f"CREATE DATABASE {encoding} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'",
    )
    url = postgresql.url(encoding.lower())
    peers = Peers(url="http://here", version="0.1.0")
    for database in (PostgresqlDatabase(url), PostgresqlDatabase(url, peers=peers)):
        assert await asyncio.to_thread(peers.installation) is None
        with pytest.raises(StoreUnusable, match=rf"{encoding}.*createdb --encoding UTF8"):
            await SqlStore(database).open()
    facts = await asyncio.to_thread(examination.postgresql_facts, PostgresqlDatabase(url))
    assert facts.encoding == encoding


def cut_at_commit(store: Store, first: str | None = None) -> None:
    """The connection of the next transaction that writes breaks at its end, after `first`."""
    assert isinstance(store, SqlStore)
    assert isinstance(store.database, WatchedPostgresql)
    engine = store.database.engine

    def cut(connection: sa.Connection) -> None:
        sa.event.remove(engine, "commit", cut)
        if first is not None:
            connection.exec_driver_sql(first)
        connection.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")

    sa.event.listen(engine, "commit", cut)


async def test_a_commit_whose_answer_was_lost_is_known_to_be_done(make_store: MakeStore) -> None:
    store = make_store()
    await store.open()
    cut_at_commit(store, first="COMMIT")
    await store.commit(submission(a_run()))
    found = await store.find_run("run1")
    await store.close()

    assert found == a_run()


async def test_a_commit_that_never_arrived_is_done_in_another_session(
    make_store: MakeStore,
) -> None:
    store = make_store()
    await store.open()
    cut_at_commit(store)
    await store.commit(submission(a_run()))
    found = await store.find_run("run1")
    await store.close()

    assert found == a_run()


async def test_a_commit_that_hung_and_never_arrived_is_known_to_be_undone(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_errors, "AT_ONCE_SECONDS", 0.0)  # any time is too long
    store = make_store()
    await store.open()
    cut_at_commit(store)
    with pytest.raises(StoreUnavailable, match="can't be used now"):
        await store.commit(submission(a_run()))
    assert await store.find_run("run1") is None
    await store.commit(submission(a_run()))
    found = await store.find_run("run1")
    await store.close()

    assert found == a_run()


async def test_a_server_that_restarts_is_unavailable_until_it_is_back(
    make_store: MakeStore, postgresql: PostgresqlServer
) -> None:
    store = make_store()
    await store.open()
    await asyncio.to_thread(postgresql.stop)
    with pytest.raises(StoreUnavailable, match="can't be used now"):
        await store.commit(submission(a_run()))
    with pytest.raises(StoreUnavailable, match="can't be used now"):
        await store.load()
    await asyncio.to_thread(postgresql.start)
    await store.commit(submission(a_run()))
    found = await store.find_run("run1")
    await store.close()

    assert found == a_run()


async def test_a_server_that_is_not_there_is_named(postgresql: PostgresqlServer) -> None:
    store = SqlStore(PostgresqlDatabase("postgresql://fairlead:hunter2@127.0.0.1:9/none"))

    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1.*refused") as caught:
        await store.open()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["mysql://a:hunter2@b/c", "nonsense", ""])
def test_another_kind_of_address_is_refused_with_the_right_form(url: str) -> None:
    with pytest.raises(StoreUnusable, match="postgresql://USER@HOST/DATABASE") as caught:
        PostgresqlDatabase(url)
    assert "hunter2" not in str(caught.value)


async def test_the_schema_is_exactly_that_of_the_tables(
    make_store: MakeStore, database_url: str
) -> None:
    store = make_store()
    await store.open()
    await store.close()

    def differences() -> list[object]:
        database = PostgresqlDatabase(database_url)
        with database.writer().begin() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            found = compare_metadata(context, schema.metadata)
        database.leave()
        return list(found)

    assert await asyncio.to_thread(differences) == []


async def test_a_database_that_was_put_back_begins_an_epoch(
    make_store: MakeStore, database_url: str
) -> None:
    store = make_store()
    before = await store.open()
    with pytest.raises(LeaseHeld, match="stop it first"):
        await asyncio.to_thread(backups.mark_restored, PostgresqlDatabase(database_url), 1e9)
    await store.close()
    epoch = await asyncio.to_thread(backups.mark_restored, PostgresqlDatabase(database_url), 1e9)
    after = await store.open()
    await store.close()

    assert (before.epoch, before.restored_at) == (1, None)
    assert (after.epoch, after.restored_at) == (epoch, 1e9)


async def test_an_old_run_is_forgotten_with_all_that_belongs_to_it(
    make_store: MakeStore, postgresql: PostgresqlServer, database_url: str
) -> None:
    store = make_store()
    await store.open()
    state = a_run("run1", status=RunStatus.DONE)
    released = msgspec.structs.replace(state, allocations=state.allocations[:1])
    await store.commit(Changes(runs=submission(released).runs, events=(an_event("run1"),)))
    removed = await store.forget(finished_before=1e9, limit=10)
    await store.close()
    counts = " + ".join(
        f"(SELECT count(*) FROM {table})"
        for table in ("runs", "jobs", "attempts", "allocations", "events")
    )
    name = f"test{name_of(database_url)}"
    assert removed == 1
    assert await asyncio.to_thread(postgresql.sql, name, f"SELECT {counts}") == "0"


async def test_a_lease_need_not_run_out_whose_holder_the_folder_proves_dead(
    database_url: str, tmp_path: Path
) -> None:
    first = PostgresqlDatabase(database_url, tmp_path)
    killed = SqlStore(first)
    before = await killed.open()
    elsewhere = SqlStore(PostgresqlDatabase(database_url, tmp_path / "elsewhere"))
    with pytest.raises(LeaseHeld):
        await elsewhere.open()
    beside = SqlStore(PostgresqlDatabase(database_url, tmp_path))
    with pytest.raises(LeaseHeld):
        await beside.open()
    first.leave()  # as a kill does: the lock is gone, the lease is not

    successor = SqlStore(PostgresqlDatabase(database_url, tmp_path))
    assert (await successor.open()).token == before.token + 1
    with pytest.raises(LeaseLost):
        await killed.renew_lease()
    await successor.close()
    await killed.close()


async def test_the_lock_of_a_folder_says_nothing_about_another_life_or_database(
    database_url: str, postgresql: PostgresqlServer, tmp_path: Path
) -> None:
    first = PostgresqlDatabase(database_url, tmp_path)
    killed = SqlStore(first, lease_seconds=0.0)
    await killed.open()
    living = SqlStore(PostgresqlDatabase(database_url))
    await living.open()
    first.leave()
    with pytest.raises(LeaseHeld):
        await SqlStore(PostgresqlDatabase(database_url, tmp_path)).open()

    other_url = postgresql.new_database()
    other = SqlStore(PostgresqlDatabase(other_url))
    await other.open()
    with pytest.raises(LeaseHeld):
        await SqlStore(PostgresqlDatabase(other_url, tmp_path)).open()
    for store in (other, living, killed):
        await store.close()


async def test_a_promoted_standby_counts_as_a_restore_once(
    database_url: str, postgresql: PostgresqlServer
) -> None:
    boots = []
    for _ in range(3):
        store = SqlStore(PostgresqlDatabase(database_url))
        boots.append(await store.open())
        await store.close()
        if len(boots) == 1:
            # As if this server's timeline were a later one than that of the first life.
            postgresql.sql(f"test{name_of(database_url)}", "UPDATE installation SET timeline = 0")
    first, promoted, again = boots
    assert (first.epoch, first.restored_at) == (1, None)
    assert promoted.epoch > first.epoch
    assert promoted.restored_at is not None
    assert (again.epoch, again.restored_at) == (promoted.epoch, promoted.restored_at)


async def test_a_controller_below_which_a_standby_is_promoted_stops(
    database_url: str, postgresql: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqlStore(PostgresqlDatabase(database_url))
    await store.open()
    timeline = store.database.timeline()
    assert timeline is not None
    monkeypatch.setattr(databases, "_timeline_of", lambda _: timeline + 1)
    postgresql.cut_connections(f"test{name_of(database_url)}")

    async def write() -> None:
        while True:
            # The first one finds its connection cut.
            with suppress(StoreUnavailable):
                await store.renew_lease()

    with pytest.raises(LeaseLost, match="another database server was promoted"):
        await write()
    await store.close()


async def test_a_session_that_hangs_is_left_for_another_one(
    make_store: MakeStore, database_url: str
) -> None:
    store = make_store()
    await store.open()
    reader = StoreReader(PostgresqlDatabase(database_url).reader, 3600.0)
    async with reader.moment() as moment:
        asked = sa.text("SELECT pg_backend_pid()")
        backend = await moment._read(lambda connection: connection.execute(asked).scalar_one())
    await eventually(lambda: not reader._one_at_a_time.locked())
    os.kill(backend, signal.SIGSTOP)
    try:
        reader.answer_seconds = 1.0
        with pytest.raises(StoreUnavailable):
            async with reader.moment() as moment:
                await moment.node_names()
        # The thread is free again although the server's process never answers.
        await eventually(lambda: not reader.hangs)
        reader.answer_seconds = 3600.0
        reader._away_until = 0.0
        async with reader.moment() as moment:
            assert await moment.node_names() == {}
    finally:
        os.kill(backend, signal.SIGCONT)
        await reader.close()
        await store.close()


async def test_an_examination_ends_where_the_database_takes_questions_and_does_not_answer(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "ANSWER_SECONDS", 0.1)
    stopped: list[int] = []

    class Hanging(PostgresqlDatabase):
        def reader(self) -> sa.Engine:
            engine = super().reader()
            sa.event.listen(engine, "connect", self._stop)
            return engine

        def _stop(self, connection: Any, _record: object) -> None:
            stopped.append(connection.info.backend_pid)
            os.kill(stopped[-1], signal.SIGSTOP)

    try:
        facts = await asyncio.to_thread(examination.postgresql_facts, Hanging(database_url))
    finally:
        for backend in stopped:
            os.kill(backend, signal.SIGCONT)
    assert stopped
    assert facts.why is not None


async def test_a_write_without_an_answer_is_cut_and_the_next_one_is_stored(
    database_url: str, postgresql: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_errors, "AT_ONCE_SECONDS", 0.0)  # any time is too long
    patience = Patience(write_seconds=3600.0)
    store = SqlStore(PostgresqlDatabase(database_url), patience=patience)
    await store.open()
    await store.renew_lease()
    database = f"test{name_of(database_url)}"
    (backend,) = map(
        int,
        postgresql.sql(
            database,
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'fairlead'"
            f" AND datname = '{database}' AND query ILIKE 'COMMIT%'",
        ).split(),
    )
    os.kill(backend, signal.SIGSTOP)
    try:
        patience._write_seconds = 0.1
        with pytest.raises(StoreUnavailable):
            await store.commit(Changes(runs=submission(a_run("run1")).runs))
        patience._write_seconds = 3600.0
        assert await store.find_run("run1") is None
        await store.commit(Changes(runs=submission(a_run("run1")).runs))
        assert await store.find_run("run1") is not None
    finally:
        os.kill(backend, signal.SIGCONT)
        await store.close()
