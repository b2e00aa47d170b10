"""How far copies of logs came, for a controller that has another disk."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from controller.outputs.bucket import Bucket, BucketError
from controller.outputs.own_bucket import OwnBucket
from controller.shipping.log_documents import Origin
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


ORIGIN = Origin("run", "ada", "main/0", "a")


async def test_a_paused_leader_overwrites_nothing_of_its_successor(
    storage: ObjectStorage, tmp_path: Path
) -> None:
    own = OwnBucket(msgspec.structs.replace(storage.bucket, prefix=tmp_path.name), "here")
    paused = Positions(tmp_path / "a", own, (1, 9))
    successor = Positions(tmp_path / "b", own, (1, 10))
    await paused.save({"a": Position(ORIGIN, 1)}, 10.0)
    await successor.save({"a": Position(ORIGIN, 3)}, 20.0)
    # Its clock is an hour ahead.
    await paused.save({"a": Position(ORIGIN, 2)}, 3620.0)
    for folder in ("a", "b", "empty"):
        third = Positions(tmp_path / folder, own, (1, 11))
        assert await third.load() == {"a": Position(ORIGIN, 3)}
    # A database that was put back begins an epoch, and has given out lower tokens.
    await Positions(tmp_path / "c", own, (2, 4)).save({"a": Position(ORIGIN, 0)}, 5.0)
    await successor.save({"a": Position(ORIGIN, 4)}, 4000.0)
    assert await Positions(tmp_path / "b", own, (2, 5)).load() == {"a": Position(ORIGIN, 0)}
    own.close()


async def test_the_objects_of_former_leaders_are_removed(
    storage: ObjectStorage, tmp_path: Path
) -> None:
    own = OwnBucket(msgspec.structs.replace(storage.bucket, prefix=tmp_path.name), "here")
    for token in (8, 9, 11, 10):
        await Positions(tmp_path / "a", own, (1, token)).save({"a": Position(ORIGIN, token)}, 1.0)
    listed = await own.ask(own.list, "shipping/positions/")
    assert sorted(one.name for one in listed) == ["1-10", "1-11"]
    own.close()


async def test_what_an_earlier_version_saved_counts_until_a_leader_saves(
    storage: ObjectStorage, tmp_path: Path
) -> None:
    own = OwnBucket(msgspec.structs.replace(storage.bucket, prefix=tmp_path.name), "here")
    former = {"saved_at": 7.0, "positions": {"a": Position(ORIGIN, 5)}}
    await own.ask(own.put, "shipping/positions", msgspec.json.encode(former))
    positions = Positions(tmp_path / "a", own, (1, 2))
    assert await positions.load() == {"a": Position(ORIGIN, 5)}
    await positions.save({"a": Position(ORIGIN, 6)}, 6.0)
    assert await Positions(tmp_path / "b", own, (1, 3)).load() == {"a": Position(ORIGIN, 6)}
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
