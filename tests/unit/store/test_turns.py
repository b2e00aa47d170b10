"""What the turns of a shared database changed, as a follower reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from controller.lifecycle.events import Event, EventKind
from controller.lifecycle.model import Fleet, Role
from controller.store import schema
from controller.store.accounts import StoredSecret, StoredToken, User
from controller.store.base import Changes
from controller.store.reading import StoreReader
from controller.store.sql import SqlStore
from controller.store.sqlite import SqliteDatabase
from controller.store.turns import notes
from controller.store.turns.notes import Changed, Turn, changed_by
from tests.doubles.watched_databases import FollowedSqlite
from tests.unit.store.samples import a_run

ADA = User(name="ada", role=Role.USER, created_at=0.0)
TOKEN = StoredToken(id="t", user="ada", digest="d", created_at=0.0)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    opened = SqlStore(FollowedSqlite(tmp_path))
    await opened.open()
    await opened.commit(Changes(users=(ADA,), tokens=(TOKEN,)))
    yield opened
    await opened.close()


@pytest.fixture
async def reader(store: SqlStore) -> AsyncIterator[StoreReader]:
    opened = StoreReader(store.database.reader)
    yield opened
    await opened.close()


async def since(reader: StoreReader, known: Turn) -> tuple[Turn, Changed] | None:
    async with reader.moment() as moment:
        return await moment.changed_since(known)


async def latest(reader: StoreReader) -> Turn:
    async with reader.moment() as moment:
        return (await moment.beginning(0.0)).turn


async def test_each_commit_tells_what_it_changed(store: SqlStore, reader: StoreReader) -> None:
    known = await latest(reader)
    assert await since(reader, known) == (known, Changed())
    state = a_run()
    await store.commit(Changes(runs={state.run.id: (None, state)}))
    await store.commit(Changes(fleets={"lab": Fleet(name="lab", created_at=1.0)}))
    await store.commit(Changes(removed_fleets=("lab",), removed_nodes=("n",)))
    found = await since(reader, known)
    assert found is not None
    turn, changed = found
    assert changed == Changed(runs=(state.run.id,), fleets=("lab",), nodes=("n",))
    assert await since(reader, turn) == (turn, Changed())
    async with reader.moment() as moment:
        state_now = await moment.changed_state(changed, {})
    assert state_now.runs == {state.run.id: state}
    assert (state_now.fleets, state_now.nodes) == ({"lab": None}, {"n": None})


async def test_a_user_who_is_removed_takes_tokens_and_secrets_along(
    store: SqlStore, reader: StoreReader
) -> None:
    secret = StoredSecret(id="s", user="ada", name="A", sealed="x", created_at=0.0, updated_at=0.0)
    await store.commit(Changes(secrets=(secret,)))
    known = await latest(reader)
    await store.commit(Changes(removed_users=("ada",)))
    found = await since(reader, known)
    assert found is not None
    assert found[1] == Changed(accounts=True, secrets=True)
    async with reader.moment() as moment:
        state_now = await moment.changed_state(found[1], {})
    assert state_now.accounts is not None
    assert (state_now.accounts.users, state_now.accounts.tokens, state_now.secrets) == ((), (), ())


async def test_a_commit_of_nothing_that_is_followed_makes_no_turn(
    store: SqlStore, reader: StoreReader
) -> None:
    known = await latest(reader)
    event = Event(run_id="r", kind=EventKind.RUN, at=1.0, cause="a test")
    await store.commit(Changes(events=(event,)))
    assert await since(reader, known) == (known, Changed())


async def test_a_turn_that_is_not_kept_any_more_is_told(
    store: SqlStore, reader: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notes, "MAX_KEPT", 5)
    monkeypatch.setattr(notes, "_REMOVED_AT_ONCE", 3)
    first = await latest(reader)
    for number in range(12):
        user = replace(ADA, ended_logins=(), created_at=float(number + 1))
        await store.commit(Changes(users=(user,)))
    assert await since(reader, first) is None
    engine = store.database.reader()
    with engine.begin() as connection:
        kept = connection.execute(sa.select(sa.func.count()).select_from(schema.turns)).scalar_one()
    engine.dispose()
    assert 5 <= kept <= 5 + 3


async def test_a_number_that_another_leader_gave_again_is_no_known_turn(
    store: SqlStore, reader: StoreReader
) -> None:
    """A promoted standby may lack the last turns, and gives their numbers out again."""
    known = await latest(reader)
    assert await since(reader, Turn(known.number, "another")) is None
    assert await since(reader, Turn(known.number + 1, known.leader)) is None


async def test_a_controller_that_is_alone_writes_no_turn(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path)
    store = SqlStore(database)
    await store.open()
    await store.commit(Changes(users=(ADA,)))
    engine = database.reader()
    with engine.begin() as connection:
        assert connection.execute(sa.select(schema.turns)).all() == []
    engine.dispose()
    await store.close()


def test_what_is_too_much_to_name_changed_all() -> None:
    many = tuple(str(number) for number in range(notes.MAX_NAMED + 1))
    assert changed_by(Changes(removed_nodes=many)) == Changed(all=True)
    assert changed_by(Changes()) == Changed()
