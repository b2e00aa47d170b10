"""A bucket of an object storage, for outputs that are too large for this disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from common import object_storage
from common.object_storage import PART_BYTES, parse_bucket, parse_endpoint

if TYPE_CHECKING:
    from obstore.store import S3Store

_PARTS_AT_ONCE = 4
_PROBE = "fairlead-was-here"


class BucketError(OSError):
    """The bucket did not do what it was asked for; the same request may succeed later."""


class BucketObject(msgspec.Struct, frozen=True, kw_only=True):
    """The place of one object. `endpoint` None: AWS in the region of the environment."""

    bucket: str
    key: str
    endpoint: str | None = None

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """Where new objects go: into this bucket, below `prefix` (without slashes around it)."""

    name: str
    prefix: str = ""
    endpoint: str | None = None

    @classmethod
    def parse(cls, url: str, endpoint: str | None = None) -> Bucket:
        """Read s3://NAME[/PREFIX]. Raises BucketUrlInvalid."""
        name, prefix = parse_bucket(url)
        where = None if endpoint is None else parse_endpoint(endpoint)
        return cls(name=name, prefix=prefix, endpoint=where)

    def object(self, key: str) -> BucketObject:
        whole = f"{self.prefix}/{key}" if self.prefix else key
        return BucketObject(bucket=self.name, key=whole, endpoint=self.endpoint)

    def __str__(self) -> str:
        return f"s3://{self.name}/{self.prefix}".rstrip("/")


async def check(bucket: Bucket) -> None:
    """Write and remove a small object, as an upload would. Raises BucketError."""
    await asyncio.to_thread(_check, bucket.object(_PROBE))


async def upload(path: Path, length: int, place: BucketObject) -> None:
    """Write the file of that many bytes to its place, whole or not at all. Raises BucketError."""
    arrived = await asyncio.to_thread(_upload, path, place)
    if arrived != length:
        raise BucketError(f"{place} has {arrived} bytes after {length} were written")


async def read(place: BucketObject, start: int, end: int) -> AsyncIterator[bytes]:
    """Yield the bytes from `start` up to `end`, which is not among them. Raises BucketError."""
    pieces = _pieces(place, start, end)
    while piece := await asyncio.to_thread(_next, pieces, place):
        yield piece


async def delete(place: BucketObject) -> None:
    """Remove the object; one that is not there is removed. Raises BucketError."""
    await asyncio.to_thread(_delete, place)


def _check(place: BucketObject) -> None:
    import obstore

    with _told(place):
        obstore.put(_open(place), place.key, b"", use_multipart=False)
    _delete(place)


def _upload(path: Path, place: BucketObject) -> int:
    import obstore

    with _told(place):
        store = _open(place)
        obstore.put(store, place.key, path, chunk_size=PART_BYTES, max_concurrency=_PARTS_AT_ONCE)
        return obstore.head(store, place.key)["size"]


def _pieces(place: BucketObject, start: int, end: int) -> Iterator[bytes]:
    yield from object_storage.read(_open(place), place.key, start, end)


def _next(pieces: Iterator[bytes], place: BucketObject) -> bytes:
    with _told(place):
        return next(pieces, b"")


def _delete(place: BucketObject) -> None:
    import obstore

    with _told(place):
        obstore.delete(_open(place), place.key)


def _open(place: BucketObject) -> S3Store:
    """Raises obstore's errors, for an environment that is wrong."""
    return object_storage.open_bucket(place.bucket, place.endpoint)


@contextmanager
def _told(place: BucketObject) -> Iterator[None]:
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, FileNotFoundError) as error:
        raise BucketError(f"{place}: {object_storage.first_line(error)}") from None
