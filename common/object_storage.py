"""Buckets of an object storage that speaks S3, as the controller and jobs reach them.

obstore does it: one wheel without dependencies, typed, with multipart uploads; boto3 brings ten
times as much. Its blocking functions are called from threads: after its asyncio functions (0.12.1)
the interpreter aborted in 13 of 40 exits, after these in none. Credentials come from the
environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION) or from the
machine's role.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Store

PART_BYTES = 16 << 20
"""S3 takes 10,000 parts: objects of up to 156 GiB."""
PIECE_BYTES = 8 << 20
"""What one request reads."""
REQUEST = timedelta(seconds=120)
_CONNECT = timedelta(seconds=10)
_RETRY = timedelta(seconds=20)
_DOCUMENT = re.compile(r"<\?xml|<Error>")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_TOOK = re.compile(r" in [\d.]+(?:ns|µs|ms|s)(?= - )")


def open_bucket(
    name: str,
    endpoint: str | None,
    region: str | None = None,
    *,
    request: timedelta = REQUEST,
    retries: int = 3,
) -> S3Store:
    """Return the bucket; nothing is asked yet. `endpoint` None: AWS in this region, or in that of
    the environment. `request`: the time for one part or piece."""
    from obstore.store import S3Store

    options: ClientConfig = {"timeout": request, "connect_timeout": min(request, _CONNECT)}
    retry: RetryConfig = {"max_retries": retries, "retry_timeout": _RETRY}
    if endpoint is None and region is not None:
        return S3Store(name, region=region, client_options=options, retry_config=retry)
    if endpoint is None:
        return S3Store(name, client_options=options, retry_config=retry)
    options["allow_http"] = endpoint.startswith("http://")
    return S3Store(
        name,
        endpoint=endpoint,
        virtual_hosted_style_request=False,
        client_options=options,
        retry_config=retry,
    )


def read(store: S3Store, key: str, start: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of an object from `start` up to `end`, which is not among them. Blocking."""
    import obstore

    for at in range(start, end, PIECE_BYTES):
        yield bytes(obstore.get_range(store, key, start=at, end=min(at + PIECE_BYTES, end)))


def first_line(error: Exception) -> str:
    """Return what obstore says of a failure, without the sources that follow it, and without the
    time that it took: the same failure is the same line. Of the storage's own document, the code
    alone."""
    text = str(error).strip()
    line = _TOOK.sub("", text.partition("\n")[0])
    if (code := _CODE.search(text)) is not None:
        line = _DOCUMENT.split(line)[0] + code[1]
    return line[:300]
