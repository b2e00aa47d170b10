"""What tests of several folders share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.object_storage import ObjectStorage, keys_in_environment


@pytest.fixture(scope="session")
def storage_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStorage]:
    server = ObjectStorage(tmp_path_factory.mktemp("storage"), "127.0.0.1")
    yield server
    server.away()


@pytest.fixture(scope="module")
def storage(storage_server: ObjectStorage) -> Iterator[ObjectStorage]:
    """An object storage that is empty when the file's tests begin; the environment has its keys.

    To start one takes some 3 s of the processor's time, so all files of a process share it.
    """
    from controller.outputs import bucket  # few tests need it

    storage_server.empty()
    with keys_in_environment():
        bucket.check(storage_server.bucket)  # obstore's own threads stay for the process
        yield storage_server
