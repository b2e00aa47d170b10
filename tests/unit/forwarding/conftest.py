from __future__ import annotations

from collections.abc import Iterator

import pytest

from controller.outputs import bucket
from tests.support.object_storage import ObjectStorage, object_storage


@pytest.fixture(scope="package")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStorage]:
    with object_storage(tmp_path_factory.mktemp("storage")) as started:
        bucket.check(started.bucket)  # obstore's own threads stay for the process
        yield started
