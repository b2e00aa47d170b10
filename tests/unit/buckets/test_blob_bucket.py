"""Uploads in a bucket: a controller with another disk has them, and none that is needed goes."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import threading
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterator
from pathlib import Path

import msgspec
import pytest

from controller.blob_bucket import FRESH_SECONDS, KEPT_SECONDS, REMOVED_SECONDS, BlobBucket
from controller.blobs import BlobStore, PartsMissing, TooManyBlobs
from controller.outputs import bucket as buckets
from controller.outputs import own_bucket
from controller.outputs.bucket import Bucket, BucketError, BucketObject
from controller.outputs.own_bucket import OwnBucket
from fairlead.wire.blobs import Part
from tests.support.object_storage import ObjectStorage
from tests.support.ssh_daemon import free_port
from tests.support.waiting import LONG

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
        self.stored: Callable[[str], object] = lambda key: None

    def put(self, key: str, data: bytes) -> None:
        # First: another thread may list it as soon as it is there.
        self._born[key] = self._wall()
        super().put(key, data)
        self.stored(key)

    def copy(self, key: str, target: str) -> bool:
        self._born[target] = self._wall()
        return super().copy(key, target)

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
    wall.passed = REMOVED_SECONDS + 1
    await swept(blobs, DIGEST)
    assert await read(machine("c")) == CONTENT
    os.utime(blobs._folder / DIGEST, (0, 0))
    wall.passed += REMOVED_SECONDS + 1
    await swept(blobs)
    assert await machine("d").size_for(DIGEST, "ada") is None
    assert bucket.list("uploads/blobs/") == bucket.list("uploads/marks/") == []


async def test_a_request_keeps_it_for_another_day(machine: _Machine, wall: Wall) -> None:
    await machine("a").put(DIGEST, pieces(), user="ada")
    wall.passed = FRESH_SECONDS + 1
    assert await machine("b").size_for(DIGEST, "ada") == len(CONTENT)
    wall.passed = REMOVED_SECONDS + 1
    await swept(machine("c"))
    assert await machine("d").size_for(DIGEST, "ada") == len(CONTENT)
    assert await read(machine("d")) == CONTENT


async def test_it_stays_for_a_day_after_a_request_that_found_it_fresh(
    machine: _Machine, wall: Wall
) -> None:
    """Nothing is written for such a request, nor for the upload of another user."""
    await machine("a").put(DIGEST, pieces(), user="ada")
    wall.passed = FRESH_SECONDS - 60
    await machine("b").put(DIGEST, pieces(), user="bob")
    assert await machine("b").size_for(DIGEST, "ada") == len(CONTENT)
    wall.passed += KEPT_SECONDS - 60
    await swept(machine("c"))
    for user in ("ada", "bob"):
        assert await machine("d").size_for(DIGEST, user) == len(CONTENT)
    assert await read(machine("d")) == CONTENT


@pytest.mark.parametrize(("hours", "since"), [(1.0, 3599.0), (30.0, 0.0)])
async def test_what_a_run_needed_stays_a_day_after_its_end(
    machine: _Machine, bucket: AgedBucket, wall: Wall, hours: float, since: float
) -> None:
    """Also where the leader has no copy that its user sent there. `since`: seconds between the last
    sweep and the end."""
    await machine("follower").put(named(OLD), pieces(OLD), user="ada", parts=cut(OLD))
    leader = machine("leader")
    while wall.passed < 3 * KEPT_SECONDS:
        wall.passed += hours * 3600
        await swept(leader, named(OLD))
        assert len(bucket.list("uploads/blobs/")) <= 2
    wall.passed += since + KEPT_SECONDS - 60
    await swept(leader)
    assert await machine("next").size_for(named(OLD), "ada") == len(OLD)
    assert await read(machine("next"), named(OLD)) == OLD
    assert await machine("next").missing(cut(OLD), user="ada") == []


async def test_a_sweep_that_was_paused_removes_nothing_of_a_run_accepted_meanwhile(
    machine: _Machine, bucket: AgedBucket, wall: Wall
) -> None:
    first, second = machine("a"), machine("b")
    await first.put(DIGEST, pieces(), user="ada")
    wall.passed = REMOVED_SECONDS + 1
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


@pytest.mark.parametrize("deletes", [1, 2])
async def test_a_sweep_that_was_paused_removes_no_upload_acknowledged_meanwhile(
    machine: _Machine, bucket: AgedBucket, wall: Wall, deletes: int
) -> None:
    """By a follower, before the old bytes go, and before the old mark goes."""
    leader, follower = machine("a"), machine("b")
    await leader.put(DIGEST, pieces(), user="ada")
    wall.passed = REMOVED_SECONDS + 1
    loop, left = asyncio.get_running_loop(), deletes

    def acknowledged_meanwhile() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            bucket.deleting = lambda: None
            put = follower.put(DIGEST, pieces(), user="ada")
            asyncio.run_coroutine_threadsafe(put, loop).result()

    bucket.deleting = acknowledged_meanwhile
    await swept(leader)
    assert left == 0
    assert await machine("c").size_for(DIGEST, "ada") == len(CONTENT)
    assert await read(machine("c")) == CONTENT


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
    wall.passed = REMOVED_SECONDS + 1
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


OLD = os.urandom(40_000)
NEW = OLD[:10_000] + b"n" * 10_000 + OLD[20_000:]


def cut(content: bytes) -> list[Part]:
    cuts = (content[at : at + 10_000] for at in range(0, len(content), 10_000))
    return [Part(sha256=named(one), size=len(one)) for one in cuts]


def named(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def test_parts_of_an_upload_need_not_come_to_any_controller(machine: _Machine) -> None:
    await machine("a").put(named(OLD), pieces(OLD), user="ada", parts=cut(OLD))
    second, changed = machine("b"), [named(b"n" * 10_000)]
    assert await second.missing(cut(NEW), user="ada") == changed
    assert len(await second.missing(cut(NEW), user="bob")) == 4
    coming = pieces(b"n" * 10_000)
    await machine("c").put_parts(named(NEW), cut(NEW), changed, coming, user="ada")
    assert await read(machine("d"), named(NEW)) == NEW
    assert await machine("d").missing(cut(NEW), user="ada") == []


async def test_parts_are_known_after_an_upload_was_sent_whole_and_after_it_was_asked_for(
    machine: _Machine, wall: Wall
) -> None:
    await machine("a").put(named(OLD), pieces(OLD), user="ada", parts=cut(OLD))
    wall.passed = 60
    await machine("b").put(named(OLD), pieces(OLD), user="ada")
    wall.passed = FRESH_SECONDS + 120
    assert await machine("c").size_for(named(OLD), "ada") == len(OLD)
    wall.passed = REMOVED_SECONDS + 120
    await swept(machine("c"))
    assert await machine("d").missing(cut(OLD), user="ada") == []


async def test_parts_that_expired_in_the_meantime_are_missing(
    machine: _Machine, bucket: AgedBucket
) -> None:
    await machine("a").put(named(OLD), pieces(OLD), user="ada", parts=cut(OLD))
    second = machine("b")
    changed = await second.missing(cut(NEW), user="ada")
    (found,) = bucket.list("uploads/blobs/")
    bucket.delete(f"uploads/blobs/{found.name}")
    async with contextlib.aclosing(pieces(b"n" * 10_000)) as coming:
        with pytest.raises(PartsMissing, match="send all of it"):
            await second.put_parts(named(NEW), cut(NEW), changed, coming, user="ada")


async def test_without_the_bucket_all_parts_come(machine: _Machine, bucket: AgedBucket) -> None:
    await machine("a").put(named(OLD), pieces(OLD), user="ada", parts=cut(OLD))
    bucket.close()
    assert await machine("a").missing(cut(NEW), user="ada") == [named(b"n" * 10_000)]
    assert len(await machine("b").missing(cut(NEW), user="ada")) == 4


async def test_the_bucket_is_not_asked_for_parts_that_are_named_here(
    machine: _Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = machine("a")
    await blobs.put(named(OLD), pieces(OLD), user="ada", parts=cut(OLD))
    asked: list[str] = []
    get = AgedBucket.get

    def noted(bucket: AgedBucket, key: str) -> bytes | None:
        asked.append(key)
        return get(bucket, key)

    monkeypatch.setattr(AgedBucket, "get", noted)
    assert len(await blobs.missing(cut(NEW), user="ada")) == 1
    assert asked == []
    assert len(await machine("b").missing(cut(NEW), user="ada")) == 1
    assert len(asked) == 1


async def test_few_uploads_are_fetched_for_the_parts_of_a_new_one(
    machine: _Machine, wall: Wall
) -> None:
    """The latest ones that have any."""
    versions = [os.urandom(10_000) for _ in range(4)]
    for number, content in enumerate([*versions[:3], b"x" * 10_000, versions[3]]):
        wall.passed = number
        await machine("a").put(named(content), pieces(content), user="ada", parts=cut(content))
    joined = b"".join(versions)
    assert await machine("b").missing(cut(joined), user="ada") == [
        named(version) for version in versions[:2]
    ]


async def test_the_same_upload_again_leaves_one_mark(machine: _Machine, bucket: AgedBucket) -> None:
    for name in ("a", "a", "b"):
        await machine(name).put(DIGEST, pieces(), user="ada")
    assert len(bucket.list("uploads/marks/")) == len(bucket.list("uploads/blobs/")) == 1


async def test_one_user_may_send_the_same_to_two_controllers_at_once(machine: _Machine) -> None:
    both = (machine(name).put(DIGEST, pieces(), user="ada") for name in "ab")
    assert await asyncio.gather(*both) == [len(CONTENT)] * 2
    assert await machine("c").size_for(DIGEST, "ada") == len(CONTENT)


async def test_two_controllers_at_once_do_not_exceed_the_limit_of_a_user(
    machine: _Machine, bucket: AgedBucket
) -> None:
    first, second = b"1" * 6000, b"2" * 6000
    both_are_there = threading.Barrier(2)

    # Both have found room, and stored their bytes, before the first mark is there; and both marks
    # are there before the first one is judged.
    bucket.stored = lambda key: both_are_there.wait(LONG)
    stores = (machine(name, max_of_user=10_000) for name in "ab")
    refused = await asyncio.gather(
        *(
            store.put(named(content), pieces(content), user="ada")
            for store, content in zip(stores, (first, second), strict=True)
        ),
        return_exceptions=True,
    )
    assert [type(one) for one in refused] == [TooManyBlobs] * 2
    assert bucket.list("uploads/marks/") == []
    bucket.stored = lambda key: None
    await machine("c", max_of_user=10_000).put(named(first), pieces(first), user="ada")


async def test_marks_of_an_earlier_layout_count(machine: _Machine, bucket: AgedBucket) -> None:
    await machine("a").put(DIGEST, pieces(), user="ada")
    (mark,) = bucket.list("uploads/marks/")
    bucket.put(f"uploads/marks/ada/{DIGEST}/{len(CONTENT)}", b"")
    bucket.delete(f"uploads/marks/{mark.name}")
    assert await machine("b").size_for(DIGEST, "ada") == len(CONTENT)


async def test_copies_go_by_their_age_and_beyond_a_size(
    machine: _Machine, tmp_path: Path, bucket: AgedBucket
) -> None:
    blobs, contents = machine("a"), [bytes([n]) * 1000 for n in range(3)]
    for number, content in enumerate(contents):
        await blobs.put(named(content), pieces(content), user="ada")
        os.utime(tmp_path / "a" / named(content), (number, number))
    arriving = tmp_path / "a" / "0123.arriving"
    arriving.touch()

    def left() -> list[str]:
        return [name for name in map(named, contents) if (tmp_path / "a" / name).exists()]

    await blobs.forget_copies(unused_since=1.0, most=5000)
    assert left() == [named(content) for content in contents[1:]]
    await blobs.forget_copies(unused_since=0.0, most=1999)
    assert left() == [named(contents[2])]
    await blobs.forget_copies(unused_since=0.0, most=0)
    assert (left(), os.listdir(tmp_path / "a/users/ada"), arriving.exists()) == ([], [], True)
    assert await read(blobs, named(contents[0])) == contents[0]


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
    wall.passed = REMOVED_SECONDS + 60
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
