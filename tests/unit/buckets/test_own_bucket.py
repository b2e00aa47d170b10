"""The bucket of one installation: no other one reads or changes it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from controller.daemon.options import Options
from controller.daemon.stores import open_stores
from controller.outputs.bucket import Bucket, BucketError
from controller.outputs.own_bucket import BucketOfAnother, OwnBucket, owner_of
from tests.doubles.memory_store import MemoryStore
from tests.support.object_storage import ObjectStorage
from tests.support.ssh_daemon import free_port


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


async def test_logs_wait_for_a_bucket_that_turns_out_to_be_of_another(
    storage: ObjectStorage, tmp_path: Path
) -> None:
    """It was away when the controller started."""
    bucket = place(storage, tmp_path)
    OwnBucket(bucket, "first").verify()
    before = storage.objects()
    options = Options(data=tmp_path, bucket=bucket, logs_bucket=bucket)
    async with AsyncExitStack() as closing:
        own = OwnBucket(bucket, "second")
        closing.callback(own.close)
        stores = open_stores(options, MemoryStore(), own, "second", closing)
        with pytest.raises(BucketOfAnother):
            await stores.logs.writer("attempt")
    assert storage.objects() == before
