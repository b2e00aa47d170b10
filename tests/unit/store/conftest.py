from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from controller.store.sql import Database
from controller.store.sqlite import SqliteDatabase


@pytest.fixture
def make_database(tmp_path: Path) -> Callable[[], Database]:
    return lambda: SqliteDatabase(tmp_path)
