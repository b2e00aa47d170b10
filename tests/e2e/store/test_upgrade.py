"""A database of the first version opens on a real PostgreSQL, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controller.store.postgresql import PostgresqlDatabase
from controller.store.sql import Database
from tests.unit.store.test_upgrade import *  # noqa: F403

pytestmark = pytest.mark.e2e


@pytest.fixture
def make_database(database_url: str) -> Callable[[], Database]:
    return lambda: PostgresqlDatabase(database_url)
