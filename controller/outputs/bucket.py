"""A bucket of an object storage that speaks S3, for outputs that are too large for this disk.

obstore does it: one wheel without dependencies, typed, with asyncio and multipart uploads, where
boto3 blocks and brings ten times as much. Credentials come from the environment (AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION) or from the machine's role.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Store

_PART_BYTES = 16 << 20
"""S3 takes 10,000 parts: objects of up to 156 GiB."""
_PARTS_AT_ONCE = 4
_READ_BYTES = 1 << 20
_CONNECT = timedelta(seconds=10)
_REQUEST = timedelta(seconds=120)
"""The time for one part, or for an answer without a body."""
_DOWNLOAD = timedelta(days=1)
"""The time for a whole body, which a slow reader may take; a stalled one ends much sooner."""
_STALLED_SECONDS = 60.0
_PROBE = "fairlead-was-here"
_RETRY = timedelta(seconds=20)
_MOST_OF_MESSAGE = 300
_URL = re.compile(
    r"s3://(?P<name>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<prefix>[^?#]*))?", re.ASCII
)
_ENDPOINT = re.compile(r"https?://[^/?#@\s]+/?", re.ASCII)


class BucketError(OSError):
    """The bucket did not do what it was asked for; the same request may succeed later."""


class BucketUrlInvalid(ValueError):
    """The message says what is wrong with the URL of a bucket or endpoint."""


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
        found = _URL.fullmatch(url)
        if found is None:
            raise BucketUrlInvalid(f"{url!r} is no bucket; write s3://BUCKET or s3://BUCKET/PREFIX")
        prefix = (found["prefix"] or "").removesuffix("/")
        if prefix and any(part in {"", ".", ".."} for part in prefix.split("/")):
            raise BucketUrlInvalid(f"{url!r} has an empty part, . or .. in its prefix")
        if endpoint is not None and not _ENDPOINT.fullmatch(endpoint):
            raise BucketUrlInvalid(f"{endpoint!r} is no endpoint; write https://HOST[:PORT]")
        return cls(
            name=found["name"],
            prefix=prefix,
            endpoint=None if endpoint is None else endpoint.rstrip("/"),
        )

    def object(self, key: str) -> BucketObject:
        whole = f"{self.prefix}/{key}" if self.prefix else key
        return BucketObject(bucket=self.name, key=whole, endpoint=self.endpoint)

    def __str__(self) -> str:
        return f"s3://{self.name}/{self.prefix}".rstrip("/")


async def check(bucket: Bucket) -> None:
    """Write and remove a small object, as an upload would. Raises BucketError."""
    import obstore

    place = bucket.object(_PROBE)
    with _told(place):
        await obstore.put_async(_store(place, _REQUEST), place.key, b"", use_multipart=False)
    await delete(place)


async def upload(path: Path, length: int, place: BucketObject) -> None:
    """Write the file of that many bytes to its place, whole or not at all. Raises BucketError."""
    import obstore

    with _told(place):
        store = _store(place, _REQUEST)
        await obstore.put_async(
            store, place.key, path, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE
        )
        arrived = (await obstore.head_async(store, place.key))["size"]
    if arrived != length:
        raise BucketError(f"{place} has {arrived} bytes after {length} were written")


async def read(place: BucketObject, start: int, end: int) -> AsyncIterator[bytes]:
    """Yield the bytes from `start` up to `end`, which is not among them. Raises BucketError."""
    import obstore

    with _told(place):
        async with asyncio.timeout(_STALLED_SECONDS) as stalled:
            store = _store(place, _DOWNLOAD)
            found = await obstore.get_async(store, place.key, options={"range": (start, end)})
            async for piece in found.stream(min_chunk_size=_READ_BYTES):
                stalled.reschedule(None)
                yield bytes(piece)
                stalled.reschedule(asyncio.get_running_loop().time() + _STALLED_SECONDS)


async def delete(place: BucketObject) -> None:
    """Remove the object; one that is not there is removed. Raises BucketError."""
    import obstore

    with _told(place):
        await obstore.delete_async(_store(place, _REQUEST), place.key)


def _store(place: BucketObject, timeout: timedelta) -> S3Store:
    from obstore.store import S3Store

    options: ClientConfig = {"timeout": timeout, "connect_timeout": _CONNECT}
    retry: RetryConfig = {"max_retries": 3, "retry_timeout": _RETRY}
    if place.endpoint is None:
        return S3Store(place.bucket, client_options=options, retry_config=retry)
    options["allow_http"] = place.endpoint.startswith("http://")
    return S3Store(
        place.bucket,
        endpoint=place.endpoint,
        virtual_hosted_style_request=False,
        client_options=options,
        retry_config=retry,
    )


@contextmanager
def _told(place: BucketObject) -> Iterator[None]:
    from obstore.exceptions import BaseError

    try:
        yield
    except TimeoutError:
        raise BucketError(f"{place}: it sent nothing for {_STALLED_SECONDS:.0f} s") from None
    except (BaseError, FileNotFoundError) as error:
        said = str(error).strip().partition("\n")[0]
        raise BucketError(f"{place}: {said[:_MOST_OF_MESSAGE]}") from None
