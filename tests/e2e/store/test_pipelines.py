"""The tests of the pipelines that use a store, on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controller.store.postgresql import PostgresqlDatabase
from tests.support.kept import Kept, KeptInSql
from tests.unit.pipelines.test_families import *  # noqa: F403
from tests.unit.pipelines.test_run_pipeline import *  # noqa: F403
from tests.unit.pipelines.test_scheduling_turns import *  # noqa: F403

pytestmark = pytest.mark.e2e


@pytest.fixture
def database(database_url: str) -> Iterator[Kept]:
    in_sql = KeptInSql(lambda: PostgresqlDatabase(database_url))
    yield in_sql
    in_sql.close()
