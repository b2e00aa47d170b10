"""One server for all tests of a session, a database for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.outputs import bucket
from tests.support.object_storage import ObjectStorage, object_storage
from tests.support.postgresql_server import PostgresqlServer


@pytest.fixture(scope="session")
def postgresql(testbed_folder: Path) -> Iterator[PostgresqlServer]:
    server = PostgresqlServer(testbed_folder / "pg")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def database_url(postgresql: PostgresqlServer) -> str:
    return postgresql.new_database()


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStorage]:
    with object_storage(tmp_path_factory.mktemp("storage")) as started:
        bucket.check(started.bucket)  # obstore's own threads stay for the process
        yield started
