"""Outputs in the bucket of their installation: they count as collected when they are there."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from controller.outputs import own_bucket
from controller.outputs.bucket import Bucket, BucketError
from controller.outputs.own_bucket import OwnBucket
from controller.outputs.store import LargeOutputs, OutputStore
from controller.outputs.uploads import OutputUploads
from tests.support.object_storage import ObjectStorage
from tests.support.ssh_daemon import free_port
from tests.unit.outputs.test_uploads import LARGE, SMALL, keep

_Machine = Callable[..., OutputStore]


@pytest.fixture
def target(storage: ObjectStorage, tmp_path: Path) -> Bucket:
    return msgspec.structs.replace(storage.bucket, prefix=tmp_path.name)


@pytest.fixture
async def machine(target: Bucket, tmp_path: Path) -> AsyncIterator[_Machine]:
    """A controller's outputs, by the name of its disk."""
    own = OwnBucket(target, "installation")
    async with AsyncExitStack() as closing:
        closing.callback(own.close)

        def made(name: str, large: LargeOutputs | None = None) -> OutputStore:
            outputs = OutputStore(tmp_path / name, own=own, large=large)
            closing.push_async_callback(asyncio.to_thread, outputs.close)
            return outputs

        yield made


@pytest.mark.parametrize("at_once", [own_bucket.MAX_AT_ONCE, 10])
async def test_a_controller_with_an_empty_disk_has_them(
    machine: _Machine, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_bucket, "MAX_AT_ONCE", at_once)
    outputs = machine("a")
    stored = await keep(outputs, "attempt", SMALL)
    assert await machine("b").find("attempt") is None
    await outputs.secure("attempt", stored)
    other = machine("b")
    found = await other.find("attempt")
    assert found is not None
    assert found.place is not None
    assert found.files == stored.files
    read = b"".join([piece async for piece in other.read(found.place, 0, found.length)])
    assert read == SMALL


async def test_those_from_before_the_bucket_go_there(machine: _Machine, target: Bucket) -> None:
    outputs = machine("a")
    await keep(outputs, "attempt", SMALL)
    await OutputUploads(outputs, target, -1, lambda: 0.0).move_all()
    assert await machine("b").find("attempt") is not None


async def test_expired_ones_go_and_needed_ones_stay(
    machine: _Machine, target: Bucket, storage: ObjectStorage
) -> None:
    outputs = machine("a")
    for attempt_id in ("expired", "needed"):
        await outputs.secure(attempt_id, await keep(outputs, attempt_id, SMALL))
    await machine("b").sweep({"needed"}, time.time() + 60)
    left = [key for key in storage.objects() if key.startswith(f"{target.prefix}/outputs/")]
    assert [key.rpartition("/")[2] for key in left] == ["about.json", "outputs.tar"]
    assert all("/needed/" in key for key in left)


async def test_a_bucket_that_is_away_leaves_them_here(
    storage: ObjectStorage, tmp_path: Path
) -> None:
    own = OwnBucket(Bucket.parse("s3://away", f"http://127.0.0.1:{free_port()}"), "installation")
    outputs = OutputStore(tmp_path / "a", own=own)
    stored = await keep(outputs, "attempt", SMALL)
    with pytest.raises(BucketError):
        await outputs.secure("attempt", stored)
    found = await outputs.find("attempt")
    assert found is not None
    assert found.place is None
    own.close()
    await asyncio.to_thread(outputs.close)


async def test_those_that_are_older_here_than_in_the_bucket_leave_no_list_there(
    machine: _Machine, tmp_path: Path, target: Bucket, storage: ObjectStorage
) -> None:
    """They were stored before there was a bucket."""
    outputs = machine("a")
    await outputs.secure("attempt", await keep(outputs, "attempt", SMALL))
    os.utime(tmp_path / "a" / "at" / "attempt", (0, 0))
    await outputs.sweep((), time.time() - 3600)
    assert await machine("b").find("attempt") is None
    left = [key for key in storage.objects() if key.startswith(f"{target.prefix}/outputs/")]
    assert left == []


@pytest.fixture
def large(storage: ObjectStorage, tmp_path: Path) -> LargeOutputs:
    bucket = msgspec.structs.replace(storage.bucket, prefix=f"{tmp_path.name}-large")
    return LargeOutputs(bucket=bucket, above=len(SMALL))


async def test_the_lists_of_large_ones_elsewhere_outlive_the_disk_too(
    machine: _Machine, storage: ObjectStorage, large: LargeOutputs
) -> None:
    outputs = machine("a", large)
    for attempt_id, content in (("small", SMALL), ("large", LARGE)):
        await outputs.secure(attempt_id, await keep(outputs, attempt_id, content))
    other = machine("b", large)
    for attempt_id, content in (("small", SMALL), ("large", LARGE)):
        found = await other.find(attempt_id)
        assert found is not None
        assert found.place is not None
        read = [piece async for piece in other.read(found.place, 0, found.length)]
        assert b"".join(read) == content
    elsewhere = [key for key in storage.objects() if key.startswith(large.bucket.prefix)]
    assert elsewhere == [f"{large.bucket.prefix}/large/outputs.tar"]


@pytest.mark.parametrize("disk", ["a", "b"])
async def test_large_ones_elsewhere_expire_with_their_lists(
    machine: _Machine, target: Bucket, storage: ObjectStorage, large: LargeOutputs, disk: str
) -> None:
    """`b`: a disk that never had them."""
    outputs = machine("a", large)
    await outputs.secure("attempt", await keep(outputs, "attempt", LARGE))
    await machine(disk, large).sweep((), time.time() + 60)
    mine = (f"{target.prefix}/outputs/", large.bucket.prefix)
    assert [key for key in storage.objects() if key.startswith(mine)] == []


async def test_those_from_before_the_own_bucket_go_where_their_size_says(
    machine: _Machine, storage: ObjectStorage, large: LargeOutputs
) -> None:
    outputs = machine("a", large)
    await keep(outputs, "small", SMALL)
    await keep(outputs, "large", LARGE)
    await OutputUploads(outputs, large.bucket, -1, lambda: 0.0).move_all()
    places = [(await machine("b", large).find(one)) for one in ("small", "large")]
    assert [one is not None and one.place and one.place.key.split("/")[0] for one in places] == [
        large.bucket.prefix.removesuffix("-large"),
        large.bucket.prefix,
    ]
