"""Uploads in a bucket: a controller with another disk has them, and none that is needed goes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterator
from pathlib import Path

import msgspec
import pytest

from controller.blob_bucket import FRESH_SECONDS, KEPT_SECONDS, BlobBucket
from controller.blobs import BlobStore, TooManyBlobs
from controller.outputs import bucket as buckets
from controller.outputs import own_bucket
from controller.outputs.bucket import Bucket, BucketError, BucketObject
from controller.outputs.own_bucket import OwnBucket
from fairlead.wire.blobs import Part
from tests.support.object_storage import ObjectStorage
from tests.support.ssh_daemon import free_port

CONTENT = b"x" * 3000
DIGEST = hashlib.sha256(CONTENT).hexdigest()
_Machine = Callable[..., BlobStore]


class Wall:
    """The storage's clock and the controllers', which tests move on."""

    def __init__(self) -> None:
        self.passed = 0.0

    def __call__(self) -> float:
        return time.time() + self.passed


class AgedBucket(OwnBucket):
    """Its objects are as old as the wall clock says."""

    def __init__(self, bucket: Bucket, wall: Wall) -> None:
        super().__init__(bucket, "installation")
        self._wall = wall
        self._born: dict[str, float] = {}
        self.deleting: Callable[[], None] = lambda: None

    def put(self, key: str, data: bytes) -> None:
        super().put(key, data)
        self._born[key] = self._wall()

    def copy(self, key: str, target: str) -> bool:
        done = super().copy(key, target)
        self._born[target] = self._wall()
        return done

    def delete(self, key: str) -> None:
        self.deleting()
        super().delete(key)

    def written_at(self, key: str) -> float:
        return self._born[key]

    def list(self, below: str) -> list[own_bucket.Listed]:
        return [
            msgspec.structs.replace(one, at=self._born[below + one.name])
            for one in super().list(below)
        ]


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def bucket(storage: ObjectStorage, tmp_path: Path, wall: Wall) -> Iterator[AgedBucket]:
    own = AgedBucket(msgspec.structs.replace(storage.bucket, prefix=tmp_path.name), wall)
    yield own
    own.close()


@pytest.fixture
def machine(bucket: AgedBucket, wall: Wall, tmp_path: Path) -> _Machine:
    """A controller's uploads, by the name of its disk."""

    def made(name: str, *, max_of_user: int | None = None) -> BlobStore:
        there = BlobBucket(bucket, wall)
        return BlobStore(tmp_path / name, now=wall, max_of_user=max_of_user, bucket=there)

    return made


async def pieces(content: bytes = CONTENT) -> AsyncGenerator[bytes, None]:
    yield content


async def read(blobs: BlobStore, digest: str = DIGEST) -> bytes:
    return b"".join([piece async for piece in blobs.read(digest)])


async def swept(blobs: BlobStore, *needed: str) -> None:
    async def still_leads() -> None:
        return

    await blobs.sweep(lambda: needed, still_leads)


async def test_a_controller_with_an_empty_disk_has_what_another_one_acknowledged(
    machine: _Machine,
) -> None:
    await machine("a").put(DIGEST, pieces(), user="ada")
    second = machine("b")
    assert await second.size_for(DIGEST, "ada") == len(CONTENT)
    assert await second.size(DIGEST) == len(CONTENT)
    assert await read(second) == CONTENT
    assert await second.size_for(DIGEST, "bob") is None, "to know a name is no right"


async def test_the_limit_of_a_user_holds_on_an_empty_disk(machine: _Machine) -> None:
    await machine("a").put(DIGEST, pieces(), user="ada")
    other = b"y" * 3000
    async with contextlib.aclosing(pieces(other)) as coming:
        with pytest.raises(TooManyBlobs):
            await machine("b", max_of_user=6000).put(
                hashlib.sha256(other).hexdigest(), coming, user="ada"
            )


async def test_a_bucket_that_is_away_acknowledges_nothing_and_leaves_nothing(
    storage: ObjectStorage, tmp_path: Path
) -> None:
    away = Bucket.parse("s3://away", f"http://127.0.0.1:{free_port()}")
    own = OwnBucket(away, "installation")
    blobs = BlobStore(tmp_path, bucket=BlobBucket(own))
    with pytest.raises(BucketError):
        await blobs.put(DIGEST, pieces(), user="ada")
    assert [name for _, _, names in os.walk(tmp_path) for name in names] == []
    with pytest.raises(BucketError):
        await blobs.size_for(DIGEST, "ada")
    own.close()


async def test_an_upload_of_now_is_accepted_without_the_bucket(
    machine: _Machine, bucket: AgedBucket
) -> None:
    blobs = machine("a")
    await blobs.put(DIGEST, pieces(), user="ada")
    bucket.close()
    assert await blobs.size_for(DIGEST, "ada") == len(CONTENT)


async def test_uploads_from_before_the_bucket_go_there_when_a_run_wants_them(
    machine: _Machine, tmp_path: Path
) -> None:
    await BlobStore(tmp_path / "a").put(DIGEST, pieces(), user="ada")
    await BlobStore(tmp_path / "b").put(DIGEST, pieces(), user="ada")
    assert await machine("a").size_for(DIGEST, "ada") == len(CONTENT)
    assert await read(machine("c")) == CONTENT


async def test_those_of_live_runs_go_there_by_themselves(machine: _Machine, tmp_path: Path) -> None:
    await BlobStore(tmp_path / "a").put(DIGEST, pieces(), user="ada")
    await swept(machine("a"), DIGEST)
    assert await read(machine("c")) == CONTENT


async def test_what_nobody_needs_for_a_day_goes(
    machine: _Machine, bucket: AgedBucket, wall: Wall
) -> None:
    blobs = machine("a")
    await blobs.put(DIGEST, pieces(), user="ada")
    await swept(blobs)
    assert await machine("b").size_for(DIGEST, "ada") == len(CONTENT)
    wall.passed = KEPT_SECONDS + 1
    await swept(blobs, DIGEST)
    assert await read(machine("c")) == CONTENT
    os.utime(blobs._folder / DIGEST, (0, 0))
    await swept(blobs)
    assert await machine("d").size_for(DIGEST, "ada") is None
    assert bucket.list("uploads/blobs/") == bucket.list("uploads/marks/") == []


async def test_a_request_keeps_it_for_another_day(machine: _Machine, wall: Wall) -> None:
    await machine("a").put(DIGEST, pieces(), user="ada")
    wall.passed = FRESH_SECONDS + 1
    assert await machine("b").size_for(DIGEST, "ada") == len(CONTENT)
    wall.passed = KEPT_SECONDS + 1
    await swept(machine("c"))
    assert await machine("d").size_for(DIGEST, "ada") == len(CONTENT)
    assert await read(machine("d")) == CONTENT


async def test_a_sweep_that_was_paused_removes_nothing_of_a_run_accepted_meanwhile(
    machine: _Machine, bucket: AgedBucket, wall: Wall
) -> None:
    first, second = machine("a"), machine("b")
    await first.put(DIGEST, pieces(), user="ada")
    wall.passed = KEPT_SECONDS + 1
    stopped = bucket.deleting
    generations = []

    def accepted_meanwhile() -> None:
        # The second controller leads by now, and accepts a run with this upload.
        bucket.deleting = stopped
        found = bucket.list(f"uploads/blobs/{DIGEST}/")
        assert len(found) == 1
        assert bucket.copy(f"uploads/blobs/{DIGEST}/{found[0].name}", _fresh())
        generations.append(found[0].name)

    bucket.deleting = accepted_meanwhile
    await swept(first)
    assert generations
    assert await read(second) == CONTENT


def _fresh() -> str:
    return f"uploads/blobs/{DIGEST}/accepted"


async def test_a_sweep_needs_to_lead_after_it_asked_what_runs_need(
    machine: _Machine, wall: Wall
) -> None:
    class LeaseGone(Exception):
        pass

    asked: list[str] = []

    def needed() -> Collection[str]:
        asked.append("needed")
        return ()

    async def still_leads() -> None:
        assert asked
        raise LeaseGone

    blobs = machine("a")
    await blobs.put(DIGEST, pieces(), user="ada")
    wall.passed = KEPT_SECONDS + 1
    with pytest.raises(LeaseGone):
        await blobs.sweep(needed, still_leads)
    assert await read(machine("b")) == CONTENT


async def test_damaged_bytes_in_the_bucket_reach_no_node(
    machine: _Machine, bucket: AgedBucket
) -> None:
    await machine("a").put(DIGEST, pieces(), user="ada")
    (found,) = bucket.list(f"uploads/blobs/{DIGEST}/")
    bucket.put(f"uploads/blobs/{DIGEST}/{found.name}", b"other bytes")
    with pytest.raises(BucketError, match="other bytes"):
        await read(machine("b"))


async def test_parts_of_an_upload_that_this_disk_has_need_not_come(machine: _Machine) -> None:
    blobs = machine("a")
    parts = [Part(sha256=DIGEST, size=len(CONTENT))]
    await blobs.put(DIGEST, pieces(), user="ada", parts=parts)
    assert await machine("b").missing(parts, user="ada") == [DIGEST]


async def test_a_large_upload_goes_there_in_a_process_of_its_own(
    machine: _Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_bucket, "MAX_AT_ONCE", 1000)
    # It is written by a program that knows nothing of this clock.
    monkeypatch.setattr(AgedBucket, "list", lambda bucket, below: OwnBucket.list(bucket, below))
    await machine("a").put(DIGEST, pieces(), user="ada")
    assert await read(machine("b")) == CONTENT


async def test_objects_that_a_copy_left_for_folders_are_no_uploads(
    machine: _Machine, bucket: AgedBucket, wall: Wall
) -> None:
    blobs = machine("a")
    await blobs.put(DIGEST, pieces(), user="ada")
    wall.passed = KEPT_SECONDS + 60
    folders = ("blobs", f"blobs/{DIGEST}", "marks", "marks/ada", f"marks/ada/{DIGEST}")
    for folder in folders:
        bucket.put(f"uploads/{folder}", b"")
    await swept(blobs, DIGEST)
    second = machine("b")
    assert await second.size_for(DIGEST, "ada") == len(CONTENT)
    assert await read(second) == CONTENT
    other = b"y" * 3000
    await second.put(hashlib.sha256(other).hexdigest(), pieces(other), user="ada")


async def test_bytes_are_read_in_the_threads_of_the_bucket(
    machine: _Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket that stands still in the middle of an object holds up nothing else."""
    threads: set[str] = set()
    inner = buckets._next

    def noted(pieces: Iterator[bytes], place: BucketObject) -> bytes:
        threads.add(threading.current_thread().name.rpartition("_")[0])
        return inner(pieces, place)

    monkeypatch.setattr(buckets, "_next", noted)
    await machine("a").put(DIGEST, pieces(), user="ada")
    assert await read(machine("b")) == CONTENT
    assert threads == {"bucket"}
