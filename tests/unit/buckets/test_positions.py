"""How far copies of logs came, for a controller that has another disk."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from controller.outputs.bucket import Bucket, BucketError
from controller.outputs.own_bucket import OwnBucket
from controller.shipping.log_copies import Origin
from controller.shipping.positions import Position, Positions
from tests.support.object_storage import ObjectStorage
from tests.support.ssh_daemon import free_port


async def test_the_later_one_of_disk_and_bucket_counts(
    storage: ObjectStorage, tmp_path: Path
) -> None:
    own = OwnBucket(msgspec.structs.replace(storage.bucket, prefix=tmp_path.name), "here")
    first, second = Positions(tmp_path / "a", own), Positions(tmp_path / "b", own)
    origin = Origin("run", "ada", "main/0", "a")
    await first.save({"a": Position(origin, 1)}, 10.0)
    await second.save({"a": Position(origin, 2)}, 20.0)
    for machine in (first, second, Positions(tmp_path / "empty", own)):
        assert await machine.load() == {"a": Position(origin, 2)}
    own.close()


async def test_a_bucket_that_is_away_is_no_empty_one(
    storage: ObjectStorage, tmp_path: Path
) -> None:
    """All logs would be sent again."""
    away = Bucket.parse("s3://away", f"http://127.0.0.1:{free_port()}")
    own = OwnBucket(away, "here")
    with pytest.raises(BucketError):
        await Positions(tmp_path / "a", own).load()
    own.close()
