"""The bucket of one installation: no other one reads or changes it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from controller.daemon import serving
from controller.daemon.options import CannotStart, Options
from controller.daemon.stores import open_stores
from controller.logs.parts import LogBucket, Part
from controller.outputs.bucket import Bucket, BucketError
from controller.outputs.own_bucket import BucketOfAnother, OwnBucket, SharedBucket, owner_of
from controller.outputs.uploads import OutputUploads
from tests.doubles.memory_store import MemoryStore
from tests.support.object_storage import ObjectStorage
from tests.support.ssh_daemon import free_port
from tests.unit.outputs.test_uploads import LARGE, keep


def place(storage: ObjectStorage, folder: Path) -> Bucket:
    return msgspec.structs.replace(storage.bucket, prefix=folder.name)


def test_the_first_installation_takes_it(storage: ObjectStorage, tmp_path: Path) -> None:
    bucket = place(storage, tmp_path)
    assert owner_of(bucket) is None
    first = OwnBucket(bucket, "first")
    first.put("kind/key", b"content")
    assert owner_of(bucket) == "first"
    OwnBucket(bucket, "first").verify()
    assert first.get("kind/key") == b"content"
    assert [one.name for one in first.list("kind/")] == ["key"]


def test_another_installation_changes_nothing(storage: ObjectStorage, tmp_path: Path) -> None:
    bucket = place(storage, tmp_path)
    OwnBucket(bucket, "first").verify()
    before = storage.objects()
    other = OwnBucket(bucket, "second")
    for refused in (
        other.verify,
        lambda: other.put("kind/key", b""),
        lambda: other.delete("kind/key"),
        lambda: other.list("kind/"),
    ):
        with pytest.raises(BucketOfAnother, match="belongs to the installation first, and this"):
            refused()
    assert storage.objects() == before


def test_of_two_that_begin_at_once_one_gets_it(
    storage: ObjectStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = place(storage, tmp_path)
    first, second = OwnBucket(bucket, "first"), OwnBucket(bucket, "second")
    # The second one has looked before the first one wrote its name.
    answers = iter([None, "first"])
    first.verify()
    monkeypatch.setattr("controller.outputs.own_bucket.owner_of", lambda _: next(answers))
    with pytest.raises(BucketOfAnother):
        second.verify()
    assert storage.get(f"{bucket.prefix}/fairlead-installation") == b"first\n"


def test_what_is_not_there_is_no_error(storage: ObjectStorage, tmp_path: Path) -> None:
    own = OwnBucket(place(storage, tmp_path), "first")
    own.delete("kind/key")
    assert (own.get("kind/key"), own.list("kind/")) == (None, [])
    assert not own.copy("kind/key", "kind/other")


def test_a_bucket_that_does_not_exist_is_a_line_with_the_storages_code(
    storage: ObjectStorage,
) -> None:
    missing = msgspec.structs.replace(storage.bucket, name="nobody-made-it")
    with pytest.raises(BucketError, match=r"s3://nobody-made-it.*: NoSuchBucket$") as caught:
        OwnBucket(missing, "first").verify()
    assert "<" not in str(caught.value)


async def test_a_bucket_that_is_away_is_a_sentence(storage: ObjectStorage) -> None:
    own = OwnBucket(Bucket.parse("s3://away", f"http://127.0.0.1:{free_port()}"), "first")
    with pytest.raises(BucketError, match="s3://away"):
        await own.ask(own.get, "kind/key")
    own.close()
    with pytest.raises(BucketError, match="the controller ends"):
        await own.ask(own.get, "kind/key")


@pytest.mark.parametrize("has_own", [True, False])
async def test_logs_wait_for_a_bucket_that_turns_out_to_be_of_another(
    storage: ObjectStorage, tmp_path: Path, has_own: bool
) -> None:
    """It was away when the controller started."""
    bucket = place(storage, tmp_path)
    OwnBucket(bucket, "first").verify()
    before = storage.objects()
    options = Options(data=tmp_path, bucket=bucket if has_own else None, logs_bucket=bucket)
    async with AsyncExitStack() as closing:
        own = OwnBucket(bucket, "second") if has_own else None
        if own is not None:
            closing.callback(own.close)
        stores = open_stores(options, MemoryStore(), own, "second", closing)
        with pytest.raises(BucketOfAnother):
            await stores.logs.writer("attempt")
    assert storage.objects() == before


@pytest.mark.parametrize("has_own", [True, False])
async def test_large_outputs_wait_for_a_bucket_that_turns_out_to_be_of_another(
    storage: ObjectStorage, tmp_path: Path, has_own: bool
) -> None:
    """It was away when the controller started."""
    theirs = place(storage, tmp_path)
    OwnBucket(theirs, "first").verify()
    options = Options(data=tmp_path, outputs_bucket=theirs, outputs_bucket_above=10)
    async with AsyncExitStack() as closing:
        own = None
        if has_own:
            own = OwnBucket(place(storage, tmp_path / "ours"), "second")
            closing.callback(own.close)
            own.verify()
        before = storage.objects()
        outputs = open_stores(options, MemoryStore(), own, "second", closing).outputs
        stored = await keep(outputs, "attempt", LARGE)
        with pytest.raises(BucketOfAnother):
            await OutputUploads(outputs, theirs, 10, lambda: 0.0).move_all()
        if has_own:
            with pytest.raises(BucketOfAnother):
                await outputs.secure("attempt", stored)
        assert await outputs.larger_than(10) == {"attempt": stored.length}
    assert storage.objects() == before


@pytest.mark.parametrize("option", ["logs_bucket", "outputs_bucket"])
async def test_no_controller_starts_with_what_another_installation_has_for_itself(
    storage: ObjectStorage, tmp_path: Path, option: str
) -> None:
    theirs = place(storage, tmp_path)
    OwnBucket(theirs, "first").verify()
    before = storage.objects()
    options = Options(data=tmp_path, port=0, bucket=place(storage, tmp_path / "ours"))
    refused = f"^--{option.replace('_', '-')}: {theirs} belongs to the installation first, and this"
    with pytest.raises(CannotStart, match=refused):
        await serving.serve(msgspec.structs.replace(options, **{option: theirs}), print)
    assert storage.objects() == before


def test_a_bucket_without_a_name_is_shared(storage: ObjectStorage, tmp_path: Path) -> None:
    bucket = place(storage, tmp_path)
    for installation in ("first", "second"):
        SharedBucket(bucket, installation).verify()
        logs = LogBucket(bucket, installation)
        logs.put("attempt", Part(0, 5), installation.encode())
        assert logs.get("attempt", Part(0, 5)) == installation.encode()
    assert owner_of(bucket) is None


def test_a_bucket_with_logs_of_another_is_not_taken(storage: ObjectStorage, tmp_path: Path) -> None:
    """The other one's next start would be refused, in a bucket that has its name nowhere."""
    bucket = place(storage, tmp_path)
    LogBucket(bucket, "first").put("attempt", Part(0, 5), b"first")
    before = storage.objects()
    with pytest.raises(BucketOfAnother, match="has logs of the installation first, and this one"):
        OwnBucket(bucket, "second").verify()
    assert storage.objects() == before
    # Of this installation: it had a bucket for logs alone, and now has one for everything.
    OwnBucket(bucket, "first").verify()
    assert owner_of(bucket) == "first"
