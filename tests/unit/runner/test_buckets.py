"""A job's folders of buckets: filled before it starts, written back when it has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairlead.wire.job import BucketFolder, BucketMode
from fairlead.wire.runner import ExitRecord
from runner.job.buckets import BucketCopier
from tests.support.object_storage import KEYS, ObjectStorage
from tests.support.waiting import eventually
from tests.unit.runner.harness import a_job, a_runner, exit_of, followed, payload, run_job


@pytest.fixture(scope="module")
def storage(storage: ObjectStorage) -> ObjectStorage:
    for key in ("train/a.txt", "train/deep/b.txt", "training/other.txt"):
        storage.put(key, key.encode())
    return storage


def folder(storage: ObjectStorage, path: Path, **fields: Any) -> BucketFolder:
    named = {"url": "s3://outputs/train", "endpoint": storage.endpoint, **fields}
    return BucketFolder(path=str(path), **named)


async def ended(tmp_path: Path, *commands: str, **fields: Any) -> tuple[ExitRecord, str]:
    async with a_runner(tmp_path) as (_, client):
        fields.setdefault("env", KEYS)
        record = await run_job(client, a_job(*commands, **fields))
        return record, payload(await followed(client)).decode()


async def test_the_objects_below_the_prefix_are_files_before_the_job_starts(
    tmp_path: Path, storage: ObjectStorage
) -> None:
    data = tmp_path / "data"
    command = f"cd {data}; find . -type f | sort; cat a.txt deep/b.txt; echo changed > a.txt"
    record, log = await ended(tmp_path, command, buckets=[folder(storage, data)])
    assert record.exit_code == 0, log
    assert log == "./a.txt\n./deep/b.txt\ntrain/a.txttrain/deep/b.txt"
    assert storage.get("train/a.txt") == b"train/a.txt"


async def test_only_what_changed_is_written_back_also_of_a_job_that_fails(
    tmp_path: Path, storage: ObjectStorage
) -> None:
    for name in ("same", "changes", "stays"):
        storage.put(f"back/{name}", b"before")
    data = tmp_path / "data"
    back = folder(storage, data, url="s3://outputs/back", mode=BucketMode.WRITE_BACK)
    command = (
        f"cd {data}; echo -n after > changes; rm stays; mkdir new; echo -n new > new/x;"
        " ln -s /etc/passwd link; exit 3"
    )
    record, log = await ended(tmp_path, command, buckets=[back])
    assert record.exit_code == 3
    assert log == f"buckets: 2 changed files (8 B) of {data} are in s3://outputs/back\n"
    kept = {key: storage.get(key) for key in storage.objects() if key.startswith("back/")}
    assert kept == {
        "back/changes": b"after",
        "back/new/x": b"new",
        "back/same": b"before",
        "back/stays": b"before",
    }


async def test_a_bucket_that_cannot_be_read_ends_the_job_before_its_commands(
    tmp_path: Path, storage: ObjectStorage
) -> None:
    missing = folder(storage, tmp_path / "data", url="s3://not-there/x")
    record, log = await ended(tmp_path, "echo never", buckets=[missing])
    assert record.reason == "executor_error"
    assert "buckets: s3://not-there/x cannot be copied to" in (record.message or "")
    assert "never" not in log
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in (record.message or "")


async def test_a_bucket_that_is_away_at_the_end_is_told_in_the_log(
    tmp_path: Path, storage: ObjectStorage
) -> None:
    data = tmp_path / "data"
    back = folder(storage, data, url="s3://outputs/gone", mode=BucketMode.WRITE_BACK)
    async with a_runner(tmp_path) as (_, client):
        job = a_job(
            f"cd {data}; touch go; while [ ! -e away ]; do sleep 0.05; done; echo 1 > x",
            env=KEYS,
            buckets=[back],
        )
        await client.submit(job)
        await client.run()
        await eventually((data / "go").exists)
        storage.away()
        (data / "away").touch()
        record = await exit_of(client)
        log = payload(await followed(client)).decode()
    storage.back()
    assert record.exit_code == 0
    assert log.startswith(f"buckets: {data} was not written back to s3://outputs/gone: ")


@pytest.mark.parametrize("key", ["train/../x", "train//etc/passwd/..", "train"])
def test_a_key_that_leads_out_of_the_folder_has_no_place(key: str) -> None:
    copier = BucketCopier(BucketFolder(url="s3://outputs/train", path="/data"))
    with pytest.raises(OSError, match="has no place in a folder"):
        copier.path_of(key)
