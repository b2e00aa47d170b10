"""The doctor tries a bucket, leaves nothing there, and writes nothing to another installation's."""

from __future__ import annotations

from pathlib import Path

import msgspec

from controller.outputs.bucket import Bucket
from controller.outputs.examination import bucket_facts
from controller.outputs.own_bucket import OwnBucket
from tests.support.object_storage import ObjectStorage
from tests.support.ssh_daemon import free_port


def test_a_bucket_is_tried_and_left_as_it_was(storage: ObjectStorage, tmp_path: Path) -> None:
    bucket = msgspec.structs.replace(storage.bucket, prefix=tmp_path.name)
    found = bucket_facts(bucket, "--bucket", "ours")
    assert (found.why, found.owner) == (None, None)
    assert not [key for key in storage.objects() if key.startswith(tmp_path.name)]
    OwnBucket(bucket, "ours").verify()
    assert bucket_facts(bucket, "--bucket", "ours").owner == "ours"
    assert bucket_facts(bucket, "--bucket", "theirs").owner == "ours"


def test_a_bucket_that_is_away_is_a_sentence(storage: ObjectStorage) -> None:
    away = Bucket.parse("s3://away", f"http://127.0.0.1:{free_port()}")
    why = bucket_facts(away, "--bucket", None).why
    assert why is not None
    assert why.startswith("s3://away: ")
