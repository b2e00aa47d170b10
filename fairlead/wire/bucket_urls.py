"""URLs of buckets and of the storages that have them, as users write them."""

from __future__ import annotations

import re

_URL = re.compile(
    r"s3://(?P<name>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<prefix>[^?#]*))?", re.ASCII
)
_ENDPOINT = re.compile(r"https?://[^/?#@\s]+/?", re.ASCII)


class BucketUrlInvalid(ValueError):
    """The message says what is wrong with the URL of a bucket or endpoint."""


def parse_bucket(url: str) -> tuple[str, str]:
    """Return name and prefix (without slashes around it) of s3://NAME[/PREFIX]. Raises
    BucketUrlInvalid."""
    found = _URL.fullmatch(url)
    if found is None:
        raise BucketUrlInvalid(f"{url!r} is no bucket; write s3://BUCKET or s3://BUCKET/PREFIX")
    prefix = (found["prefix"] or "").removesuffix("/")
    if prefix and any(part in {"", ".", ".."} for part in prefix.split("/")):
        raise BucketUrlInvalid(f"{url!r} has an empty part, . or .. in its prefix")
    return found["name"], prefix


def parse_endpoint(url: str) -> str:
    """Return the URL of a storage that is not AWS, without a slash at its end. Raises
    BucketUrlInvalid."""
    if not _ENDPOINT.fullmatch(url):
        raise BucketUrlInvalid(f"{url!r} is no endpoint; write https://HOST[:PORT]")
    return url.removesuffix("/")
