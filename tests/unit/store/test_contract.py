"""The contract of all stores, in memory and in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.store.base import Store
from controller.store.sql import SqlStore
from controller.store.sqlite import SqliteDatabase
from tests.doubles.failing_stores import DiskFull
from tests.doubles.memory_store import MemoryDatabase, MemoryStore
from tests.support.store_contract import MakeStore, RefusalContract, StoreContract
from tests.support.store_history_contract import HistoryContract


@pytest.fixture(params=["sqlite", "memory", "disk_full_but_free_again"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    database = MemoryDatabase()

    def make() -> Store:
        if request.param == "sqlite":
            return SqlStore(SqliteDatabase(tmp_path / "data"))
        if request.param == "memory":
            return MemoryStore(database)
        store = DiskFull(MemoryStore(database))
        store.full = False
        return store

    return make


class TestStore(StoreContract):
    pass


class TestHistory(HistoryContract):
    pass


class TestRefusals(RefusalContract):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> MakeStore:
        return lambda: SqlStore(SqliteDatabase(tmp_path / "data"))
