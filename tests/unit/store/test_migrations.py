"""The schema's history ends where `schema` says it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from controller.lifecycle.events import NO_RUN, Event, EventKind
from controller.lifecycle.orphan_events import OrphanBook
from controller.store import queries, schema
from controller.store.errors import StoreUnusable
from controller.store.rows import EVENT
from controller.store.sqlite import SqliteDatabase


@pytest.fixture
def database(tmp_path: Path) -> SqliteDatabase:
    database = SqliteDatabase(tmp_path)
    database.enter("a test")
    return database


def scripts() -> ScriptDirectory:
    config = Config()
    config.set_main_option("script_location", str(schema.MIGRATIONS))
    return ScriptDirectory.from_config(config)


def test_an_empty_database_is_brought_to_exactly_the_schema_of_the_tables(
    database: SqliteDatabase,
) -> None:
    engine = database.writer()
    with engine.begin() as connection:
        assert schema.upgrade(connection) == schema.SCHEMA_VERSION
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        differences = compare_metadata(context, schema.metadata)
    database.leave()

    assert differences == []


def test_the_schema_version_is_the_last_migration() -> None:
    assert scripts().get_heads() == [schema.SCHEMA_VERSION]


def test_the_migrations_are_one_line_of_steps() -> None:
    steps = list(scripts().walk_revisions())

    assert [step.down_revision for step in steps[:-1]] == [step.revision for step in steps[1:]]
    assert steps[-1].down_revision is None


def test_migrating_twice_changes_nothing(database: SqliteDatabase) -> None:
    engine = database.writer()
    with engine.begin() as connection:
        schema.upgrade(connection)
        connection.execute(schema.installation.insert().values(id="x", epoch=3, created_at=1.0))
    with engine.begin() as connection:
        schema.upgrade(connection)
        identity = schema.identify(connection, new_id="y", now=2.0)
    database.leave()

    assert (identity.epoch, identity.id) == (3, "x")


def test_a_database_of_a_newer_version_is_refused_and_left_as_it_is(
    database: SqliteDatabase,
) -> None:
    engine = database.writer()
    with engine.begin() as connection:
        schema.upgrade(connection)
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))

    with (
        pytest.raises(StoreUnusable, match=r"'9999'.*newer version"),
        engine.begin() as connection,
    ):
        schema.upgrade(connection)
    with engine.begin() as connection:
        version = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    database.leave()
    assert version == "9999"


def test_a_migration_that_is_cut_off_leaves_the_database_empty(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = database.writer()

    @sa.event.listens_for(engine, "before_cursor_execute")
    def cut(connection: object, cursor: object, statement: str, *rest: object) -> None:
        if "CREATE TABLE attempts" in statement:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), engine.begin() as connection:
        schema.upgrade(connection)
    with engine.begin() as connection:
        left = sa.inspect(connection).get_table_names()
    database.leave()
    assert left == []


def test_the_orphans_that_events_told_of_are_known_afterwards(database: SqliteDatabase) -> None:
    def event(at: float, name: str, status: str) -> dict[str, Any]:
        told = Event(
            run_id=NO_RUN,
            kind=EventKind.ORPHAN,
            at=at,
            reason=name,
            to_status=status,
            cause="a test",
        )
        return EVENT.row(told)

    engine = database.writer()
    with engine.begin() as connection:
        schema.upgrade(connection)
        rows = [
            event(1.0, "aws/eu/i-1", "kept"),
            event(2.0, "aws/eu/i-2", "found"),
            event(3.0, "aws/eu/i-1", "ending"),
            event(4.0, "aws/eu/i-2", "gone"),
            EVENT.row(Event(run_id="r1", kind=EventKind.RUN, at=5.0, cause="another")),
        ]
        connection.execute(schema.events.insert(), rows)
        connection.execute(sa.text("DROP TABLE orphans"))
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '0014'"))
    with engine.begin() as connection:
        schema.upgrade(connection)
        (found,) = queries.snapshot(connection, used_since=0.0).orphans
    database.leave()

    book = OrphanBook([found])
    assert (found.provider, found.instance_id, found.found_at) == ("aws", "eu/i-1", 1.0)
    assert book.is_to_end("aws", "eu/i-1")
