"""What the doctor sees of a bucket: it writes, reads and removes a small object there."""

from __future__ import annotations

import secrets
import time
from datetime import timedelta

import msgspec

from common import object_storage
from controller.outputs.bucket import Bucket, BucketError, as_bucket_errors
from controller.outputs.own_bucket import owner_of

_REQUEST = timedelta(seconds=5)


class BucketFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`why`: why it cannot be used; None: it can. `owner`: the installation that it names."""

    bucket: Bucket
    option: str
    why: str | None = None
    owner: str | None = None
    clock_ahead: float = 0.0
    """Seconds by which the storage's clock is ahead of this one."""


def bucket_facts(
    bucket: Bucket, option: str, installation: str | None, *, lists: bool = True
) -> BucketFacts:
    """Look at a bucket; nothing is written to one of another installation. `lists`: its keys must
    allow to list it. Blocking."""
    facts = BucketFacts(bucket=bucket, option=option)
    try:
        owner = owner_of(bucket)
        if owner is None or owner == installation:
            facts = msgspec.structs.replace(facts, clock_ahead=_try(bucket, lists))
        return msgspec.structs.replace(facts, owner=owner)
    except BucketError as error:
        return msgspec.structs.replace(facts, why=str(error))


def _try(bucket: Bucket, lists: bool) -> float:
    """Return by how much the storage's clock is ahead. Raises BucketError."""
    import obstore

    place = bucket.object(f"doctor/{secrets.token_hex(8)}")
    store = object_storage.open_bucket(
        bucket.name, bucket.endpoint, bucket.region, request=_REQUEST, retries=0
    )
    with as_bucket_errors(bucket):
        began = time.time()
        obstore.put(store, place.key, b"fairlead", use_multipart=False)
        try:
            at = obstore.head(store, place.key)["last_modified"].timestamp()
            read = bytes(obstore.get(store, place.key).bytes())
            folder = place.key.rpartition("/")[0]
            found = obstore.list(store, prefix=folder) if lists else ()
            listed = [one["path"] for some in found for one in some]
            ended = time.time()
        finally:
            obstore.delete(store, place.key)
    if read != b"fairlead" or (lists and place.key not in listed):
        raise BucketError(f"{bucket}: it does not give back what was written")
    # A storage tells whole seconds.
    return at - min(max(at, began - 1.0), ended)
