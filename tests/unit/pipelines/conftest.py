from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.store.sqlite import SqliteDatabase
from tests.support.kept import Kept, KeptInMemory, KeptInSql


@pytest.fixture(params=["memory", "sqlite"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    if request.param == "memory":
        yield KeptInMemory()
        return
    in_sql = KeptInSql(lambda: SqliteDatabase(tmp_path / "data"))
    yield in_sql
    in_sql.close()
