"""A bucket of an object storage, for outputs that are too large for this disk."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from common import object_storage
from common.object_storage import PART_BYTES
from fairlead.wire.bucket_urls import parse_bucket, parse_endpoint
from fairlead.wire.decoders import decoder_of

if TYPE_CHECKING:
    from obstore.store import S3Store

_PARTS_AT_ONCE = 4
_SHORT = timedelta(seconds=8)
"""The time of a request without content."""
_PIECE = timedelta(seconds=25)
_PROBE = "fairlead-was-here"


class BucketError(OSError):
    """The bucket did not do what it was asked for; the same request may succeed later."""


class BucketObject(msgspec.Struct, frozen=True, kw_only=True):
    """The place of one object. `endpoint` None: AWS, in `region` or in that of the environment."""

    bucket: str
    key: str
    endpoint: str | None = None
    region: str | None = None

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """Where new objects go: into this bucket, below `prefix` (without slashes around it)."""

    name: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None

    @classmethod
    def parse(cls, url: str, endpoint: str | None = None, region: str | None = None) -> Bucket:
        """Read s3://NAME[/PREFIX]. `region` is that of AWS. Raises BucketUrlInvalid."""
        name, prefix = parse_bucket(url)
        if endpoint is not None:
            return cls(name=name, prefix=prefix, endpoint=parse_endpoint(endpoint))
        return cls(name=name, prefix=prefix, region=region)

    def object(self, key: str) -> BucketObject:
        whole = f"{self.prefix}/{key}" if self.prefix else key
        return BucketObject(bucket=self.name, key=whole, endpoint=self.endpoint, region=self.region)

    def __str__(self) -> str:
        return f"s3://{self.name}/{self.prefix}".rstrip("/")


def fingerprint_of(everything: Bucket | None, logs: Bucket | None) -> str:
    """Return what tells the buckets that all controllers have from others; empty: there is none.
    `logs`: one of the logs' own; without it they are in the other one."""
    buckets = (logs or everything, everything)
    written = b"".join(msgspec.json.encode(one) for one in buckets if one is not None)
    return hashlib.sha256(written).hexdigest()[:8] if written else ""


class Upload(msgspec.Struct, frozen=True):
    """An order to `controller.outputs.uploading`."""

    path: str
    place: BucketObject


class Uploaded(msgspec.Struct, frozen=True, kw_only=True):
    """Its answer; `error`: why it failed, empty if it did not."""

    length: int = 0
    error: str = ""


def check(bucket: Bucket) -> None:
    """Write and remove a small object, as an upload would. Blocking. Raises BucketError."""
    import obstore

    place = bucket.object(_PROBE)
    with as_bucket_errors(place):
        obstore.put(_open(place), place.key, b"", use_multipart=False)
    delete(place)


async def upload(path: Path, length: int, place: BucketObject) -> None:
    """Write the file of that many bytes to its place, whole or not at all. Raises BucketError.

    A process of its own does it: a thread would hold up the controller's end until a storage that
    does not answer has had its time.
    """
    order = msgspec.json.encode(Upload(path=str(path), place=place))
    # -P: no folder of the user's is searched for modules.
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "controller.outputs.uploading"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        answer, _ = await child.communicate(order)
    except BaseException:
        # asyncio raises it for a child that has ended by itself meanwhile.
        with suppress(ProcessLookupError):
            child.kill()
        # Reaped before it goes on: a killed child stays a zombie until then.
        await child.wait()
        raise
    try:
        done = decoder_of(Uploaded).decode(answer)
    # A child that was killed has written nothing, or half an answer.
    except msgspec.MsgspecError:
        done = Uploaded(error=f"{place}: the upload ended with status {child.returncode}")
    if done.error:
        raise BucketError(done.error)
    if done.length != length:
        raise BucketError(f"{place} has {done.length} bytes after {length} were written")


async def read(
    place: BucketObject,
    start: int,
    end: int,
    ask: Callable[[Callable[[], bytes]], Awaitable[bytes]],
) -> AsyncIterator[bytes]:
    """Yield the bytes from `start` up to `end`, which is not among them; `ask` runs what blocks.
    Raises BucketError."""
    pieces = _pieces(place, start, end)
    while piece := await ask(lambda: _next(pieces, place)):
        yield piece


def delete(place: BucketObject) -> None:
    """Remove the object; one that is not there is removed. Blocking. Raises BucketError."""
    import obstore

    with as_bucket_errors(place):
        obstore.delete(_open(place), place.key)


def put_file(path: Path, place: BucketObject) -> int:
    """Write the file to its place; return the bytes that are there then. Blocking. Raises
    BucketError."""
    import obstore

    with as_bucket_errors(place):
        store = object_storage.open_bucket(place.bucket, place.endpoint, place.region)
        obstore.put(store, place.key, path, chunk_size=PART_BYTES, max_concurrency=_PARTS_AT_ONCE)
        return obstore.head(store, place.key)["size"]


def _pieces(place: BucketObject, start: int, end: int) -> Iterator[bytes]:
    yield from object_storage.read(_open(place, _PIECE, retries=2), place.key, start, end)


def _next(pieces: Iterator[bytes], place: BucketObject) -> bytes:
    with as_bucket_errors(place):
        return next(pieces, b"")


def _open(place: BucketObject, request: timedelta = _SHORT, retries: int = 0) -> S3Store:
    """Raises obstore's errors, for an environment that is wrong."""
    where = (place.bucket, place.endpoint, place.region)
    return object_storage.open_bucket(*where, request=request, retries=retries)


@contextmanager
def as_bucket_errors(place: object) -> Iterator[None]:
    """Raise what obstore says of this place as BucketError."""
    from obstore.exceptions import BaseError

    try:
        yield
    # obstore has exceptions of its own, and raises Python's FileNotFoundError as well.
    except (BaseError, FileNotFoundError) as error:
        raise BucketError(f"{place}: {object_storage.first_line(error)}") from None
