"""Large outputs move to a bucket; what cannot move waits here, and nothing is lost on the way."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from controller.outputs import bucket
from controller.outputs.bucket import Bucket, BucketError, BucketObject
from controller.outputs.store import OutputStore, StoredOutputs, WaitingOutputs
from controller.outputs.uploads import OutputUploads
from fairlead.wire.bucket_urls import BucketUrlInvalid
from tests.support.object_storage import KEYS, ObjectStorage
from tests.support.waiting import eventually
from tests.unit.pipelines.test_output_collecting import a_tar, about

LARGE, SMALL = a_tar(model=os.urandom(300_000)), a_tar(loss=b"0.25")
ABOVE = 100_000


@pytest.fixture
async def outputs(tmp_path: Path) -> AsyncIterator[OutputStore]:
    store = OutputStore(tmp_path / "outputs")
    yield store
    await asyncio.to_thread(store.close)


async def keep(outputs: OutputStore, attempt_id: str, data: bytes) -> StoredOutputs:
    writer = await outputs.writer(attempt_id)
    await writer.append(data)
    stored = await writer.complete(about(data))
    await writer.close()
    return stored


def uploads(outputs: OutputStore, storage: ObjectStorage) -> OutputUploads:
    return OutputUploads(outputs, storage.bucket, ABOVE, lambda: 0.0)


def make_older(archive: Path) -> None:
    """Let the tar have been in its bucket for a long time."""
    before = time.time() - 3600
    os.utime(archive.parent / "about.json", (before, before))


async def test_only_what_is_large_moves_and_reads_the_same(
    outputs: OutputStore, storage: ObjectStorage
) -> None:
    before = await keep(outputs, "large", LARGE)
    await keep(outputs, "small", SMALL)
    await uploads(outputs, storage).move_all()
    moved, small = await outputs.find("large"), await outputs.find("small")
    assert moved is not None
    assert moved.place is not None
    assert moved.files == before.files
    assert str(moved.place) == "s3://outputs/kept/here/large/outputs.tar"
    assert storage.objects() == ["kept/here/large/outputs.tar"]
    assert small is not None
    assert small.place is None
    read = b"".join([piece async for piece in outputs.read(moved.place, 10, len(LARGE))])
    assert read == LARGE[10:]
    assert outputs.waiting == WaitingOutputs()


async def test_the_copy_here_goes_once_nobody_can_be_about_to_open_it(
    outputs: OutputStore, storage: ObjectStorage
) -> None:
    await keep(outputs, "read", LARGE)
    moving = uploads(outputs, storage)
    await moving.move_all()
    archive = outputs.archive("read")
    await moving.move_all()
    assert archive.read_bytes() == LARGE
    make_older(archive)
    await moving.move_all()
    assert not archive.exists()
    stored = await outputs.find("read")
    assert stored is not None
    assert stored.place is not None


async def test_a_bucket_that_is_away_keeps_outputs_here_until_it_is_back(
    outputs: OutputStore, storage: ObjectStorage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    storage.away()
    moving = uploads(outputs, storage)
    await keep(outputs, "waits", LARGE)
    running = asyncio.create_task(moving.run())
    await eventually(lambda: "outputs wait on this disk" in caplog.text)
    assert outputs.waiting == WaitingOutputs(count=1, size=len(LARGE))
    assert outputs.archive("waits").read_bytes() == LARGE
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in caplog.text
    storage.back()
    await keep(outputs, "comes", LARGE)
    both = {"kept/here/waits/outputs.tar", "kept/here/comes/outputs.tar"}
    # What has just been kept is counted only in the next round.
    await eventually(lambda: both <= set(storage.objects()))
    await eventually(lambda: outputs.waiting == WaitingOutputs())
    running.cancel()


async def test_a_controller_that_ends_before_it_noted_the_move_moves_again(
    outputs: OutputStore, storage: ObjectStorage
) -> None:
    stored = await keep(outputs, "twice", LARGE)
    place = storage.bucket.object("twice/outputs.tar")
    await bucket.upload(outputs.archive("twice"), stored.length, place)
    await uploads(outputs, storage).move_all()
    moved = await outputs.find("twice")
    assert moved is not None
    assert moved.place == place


async def test_expired_outputs_leave_the_bucket_and_later_when_it_is_away(
    outputs: OutputStore, storage: ObjectStorage
) -> None:
    await keep(outputs, "expired", LARGE)
    await uploads(outputs, storage).move_all()
    storage.away()
    assert await outputs.sweep((), float("inf")) == 0
    stored = await outputs.find("expired")
    assert stored is not None
    assert stored.place is not None
    storage.back()
    await bucket.upload(outputs.archive("expired"), stored.length, stored.place)
    assert await outputs.sweep((), float("inf")) == 1
    assert "kept/here/expired/outputs.tar" not in storage.objects()
    assert await outputs.find("expired") is None


async def test_an_object_that_another_program_removed_is_said_to_be_missing(
    outputs: OutputStore, storage: ObjectStorage
) -> None:
    place = storage.bucket.object("never/outputs.tar")
    with pytest.raises(BucketError, match=r"never/outputs\.tar"):
        await anext(outputs.read(place, 0, 10))


def test_a_bucket_that_is_not_there_is_named(storage: ObjectStorage) -> None:
    with pytest.raises(BucketError, match="s3://nothing-here"):
        bucket.check(Bucket.parse("s3://nothing-here", storage.endpoint))


def test_a_url_of_a_bucket_has_a_name_and_maybe_a_prefix() -> None:
    assert Bucket.parse("s3://kept") == Bucket(name="kept")
    full = Bucket.parse("s3://kept/a/b/", "https://storage.example.com:9000/")
    assert full == Bucket(name="kept", prefix="a/b", endpoint="https://storage.example.com:9000")


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("kept", None),
        ("s3://", None),
        ("s3://UPPER", None),
        ("s3://a", None),
        ("s3://kept/../x", None),
        ("s3://kept//x", None),
        ("s3://kept/x?y=z", None),
        ("gs://kept", None),
        ("s3://kept", "storage.example.com"),
        ("s3://kept", "https://user:word@storage.example.com"),
    ],
)
def test_what_is_no_bucket_or_endpoint_is_refused(url: str, endpoint: str | None) -> None:
    with pytest.raises(BucketUrlInvalid, match=r"write |empty part"):
        Bucket.parse(url, endpoint)


async def test_an_output_that_is_refused_holds_up_no_other(
    outputs: OutputStore, storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = bucket.upload

    async def refuses_first(path: Path, length: int, place: BucketObject) -> None:
        if "/first/" in place.key:
            raise BucketError("it is too large")
        await upload(path, length, place)

    monkeypatch.setattr(bucket, "upload", refuses_first)
    await keep(outputs, "first", LARGE)
    await keep(outputs, "second", LARGE)
    with pytest.raises(BucketError, match="too large"):
        await uploads(outputs, storage).move_all()
    assert outputs.waiting == WaitingOutputs(count=1, size=len(LARGE))
    assert "kept/here/second/outputs.tar" in storage.objects()


async def test_a_sweep_asks_a_bucket_that_is_away_once_and_removes_the_rest(
    outputs: OutputStore,
    storage: ObjectStorage,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in ("aa", "bb"):
        await keep(outputs, name, LARGE)
    await uploads(outputs, storage).move_all()
    await keep(outputs, "here", SMALL)
    asked = []

    def away(place: BucketObject) -> None:
        asked.append(place)
        raise BucketError("it is away")

    monkeypatch.setattr(bucket, "delete", away)
    assert await outputs.sweep((), float("inf")) == 1
    assert len(asked) == 1
    assert "2 expired outputs stay in their bucket for now: it is away" in caplog.text


async def test_a_controller_that_stops_ends_an_upload_to_a_storage_that_never_answers(
    outputs: OutputStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    stored, before = await keep(outputs, "stuck", LARGE), psutil.Process().children()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        place = Bucket.parse("s3://outputs", url).object("stuck")
        moving = asyncio.create_task(outputs.move("stuck", place))
        asked, _ = await asyncio.get_running_loop().sock_accept(silent)
        with asked:
            moving.cancel()
            await asyncio.gather(moving, return_exceptions=True)
    assert psutil.Process().children() == before
    found = await outputs.find("stuck")
    assert found is not None
    assert (found.place, found.moving_to, found.length) == (None, place, stored.length)


async def test_an_upload_that_was_never_noted_leaves_the_bucket_when_it_expires(
    outputs: OutputStore, storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keep(outputs, "unnoted", LARGE)
    upload = bucket.upload

    async def ends_after(path: Path, length: int, place: BucketObject) -> None:
        await upload(path, length, place)
        raise asyncio.CancelledError

    monkeypatch.setattr(bucket, "upload", ends_after)
    with pytest.raises(asyncio.CancelledError):
        await uploads(outputs, storage).move_all()
    assert "kept/here/unnoted/outputs.tar" in storage.objects()
    assert await outputs.sweep((), float("inf")) == 1
    assert "kept/here/unnoted/outputs.tar" not in storage.objects()


async def test_what_expires_while_its_bucket_is_gone_frees_this_disk(
    outputs: OutputStore, storage: ObjectStorage
) -> None:
    await keep(outputs, "freed", LARGE)
    storage.away()
    with pytest.raises(BucketError):
        await outputs.move("freed", storage.bucket.object("freed/outputs.tar"))
    assert await outputs.sweep((), float("inf")) == 0
    assert not outputs.archive("freed").exists()
    storage.back()
    assert await outputs.sweep((), float("inf")) == 1


async def test_outputs_expire_by_the_time_when_they_came_not_when_they_moved(
    outputs: OutputStore, storage: ObjectStorage
) -> None:
    await keep(outputs, "aged", LARGE)
    archive, before = outputs.archive("aged"), time.time() - 3600
    os.utime(archive.parent, (before, before))
    moving = uploads(outputs, storage)
    await moving.move_all()
    make_older(archive)
    await moving.move_all()
    assert await outputs.sweep((), before - 1) == 0
    assert await outputs.sweep((), before + 1) == 1


def test_an_object_of_aws_keeps_its_region() -> None:
    there = Bucket.parse("s3://outputs/kept", None, "eu-central-1").object("a")
    assert (there.region, there.endpoint) == ("eu-central-1", None)
    own = Bucket.parse("s3://outputs", "https://storage.test", "eu-central-1").object("a")
    assert (own.region, own.endpoint) == (None, "https://storage.test")
