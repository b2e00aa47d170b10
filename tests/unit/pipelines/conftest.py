from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from controller.logs.store import LogStore
from controller.outputs.store import OutputStore
from controller.store.sqlite import SqliteDatabase
from tests.doubles.node import FakeConnection
from tests.support.kept import Kept, KeptInMemory, KeptInSql


@pytest.fixture(params=["memory", "sqlite"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    if request.param == "memory":
        yield KeptInMemory()
        return
    in_sql = KeptInSql(lambda: SqliteDatabase(tmp_path / "data"))
    yield in_sql
    in_sql.close()


@pytest.fixture
async def logs(tmp_path: Path) -> AsyncIterator[LogStore]:
    store = LogStore(tmp_path)
    yield store
    await asyncio.to_thread(store.close)


@pytest.fixture
async def outputs(tmp_path: Path) -> AsyncIterator[OutputStore]:
    store = OutputStore(tmp_path / "outputs", limit=1 << 20)
    yield store
    await asyncio.to_thread(store.close)


@pytest.fixture
def node() -> FakeConnection:
    return FakeConnection()
