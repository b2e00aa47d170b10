"""A job's folder of a bucket in a container, with keys that the controller keeps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lab import UNTIL_ASKED, RunLab
from tests.support.object_storage import ObjectStorage, object_storage
from tests.support.planted_secrets import leaks

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory, here: str) -> Iterator[ObjectStorage]:
    with object_storage(tmp_path_factory.mktemp("storage"), here) as started:
        started.put("train/a.txt", b"from the bucket")
        yield started


def test_a_job_reads_a_bucket_and_writes_back_with_a_key_that_only_it_gets(
    lab: RunLab, storage: ObjectStorage, tmp_path: Path
) -> None:
    canary = f"canary-{os.urandom(8).hex()}"
    (tmp_path / "key").write_text(canary)
    lab.cli("secret", "set", "S3_KEY", "--from-file", tmp_path / "key").succeeded()
    fields = {
        "user": "65534",
        "env": {"AWS_ACCESS_KEY_ID": "job", "AWS_SECRET_ACCESS_KEY": "${{ secrets.S3_KEY }}"},
        "buckets": [
            {
                "url": "s3://outputs/train",
                "path": "/data",
                "mode": "write-back",
                "endpoint": storage.endpoint,
            }
        ],
    }
    command = f"cat /data/a.txt; echo; echo loss > /data/loss; {UNTIL_ASKED}"
    lab.start("copied", commands=[command], **fields)
    lab.wait_for_log("copied", b"from the bucket")
    assert leaks(lab, "copied", canary) == []
    lab.let_go("copied")
    lab.wait_for("copied", "done")
    assert storage.get("train/loss") == b"loss\n"
    assert b"buckets: 1 changed files (5 B) of /data are in s3://outputs/train" in lab.log("copied")
    assert leaks(lab, "copied", canary) == []
