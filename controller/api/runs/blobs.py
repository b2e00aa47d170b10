"""Uploads as REST: files of a run that no node can fetch, named by their sha256.

An upload can be sent in parts: the controller says which of them no earlier upload of the user has,
and only these come.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import aclosing
from typing import Annotated

import msgspec

from common.refusals import Invalid, TooSlow
from controller.api.http.routes import Call, Route, decode_body
from controller.blobs import PIECE_BYTES
from fairlead.wire.blobs import MAX_PARTS, Part

# aiohttp's client_max_size limits `request.read()` alone, and not a body that is streamed.
MAX_MANIFEST_BYTES = 4 << 20
MIN_BYTES = 256 << 10
PACE_SECONDS = 60.0
"""An upload that brings fewer bytes while it is waited for so long keeps room from others."""
_LATE_SECONDS = 1.0
"""A timer that fires so late says that this process stood still, and not its client."""
Parts = Annotated[tuple[Part, ...], msgspec.Meta(min_length=1, max_length=MAX_PARTS)]


class BlobAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`size` in bytes."""

    sha256: str
    size: int


class PartsBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`parts`: all bytes of the blob, in their order."""

    parts: Parts


class PartsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`missing`: the sha256 of each part that the caller must send."""

    missing: tuple[str, ...]


class PartsManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line of an upload in parts; the bytes of the parts in `sent` follow, in their order
    and each as often as the blob has it."""

    parts: Parts
    sent: frozenset[str]


async def put_blob(call: Call) -> BlobAnswer:
    digest = call.path("blob")
    async with aclosing(_paced(call.request.content.iter_chunked(PIECE_BYTES))) as pieces:
        size = await call.service.runs.blobs.put(digest, pieces, user=call.caller)
    return BlobAnswer(sha256=digest, size=size)


async def find_missing_parts(call: Call) -> PartsAnswer:
    body: PartsBody = call.body
    found = await call.service.runs.blobs.missing(call.path("blob"), body.parts, user=call.caller)
    return PartsAnswer(missing=tuple(found))


async def put_blob_parts(call: Call) -> BlobAnswer:
    digest = call.path("blob")
    async with aclosing(_paced(call.request.content.iter_chunked(PIECE_BYTES))) as pieces:
        line, rest = await _first_line(pieces)
        manifest = decode_body(line, PartsManifest)
        async with aclosing(_after(rest, pieces)) as coming:
            size = await call.service.runs.blobs.put_parts(
                digest, manifest.parts, manifest.sent, coming, user=call.caller
            )
    return BlobAnswer(sha256=digest, size=size)


async def _paced(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Raises TooSlow. Only the time counts for which a piece is waited for: this controller's disk
    may be slow, too."""
    now = asyncio.get_running_loop().time
    come, left = 0, PACE_SECONDS
    while True:
        began = now()
        try:
            async with asyncio.timeout(left):
                piece = await anext(pieces, None)
        except TimeoutError:
            if now() > began + left + _LATE_SECONDS:
                come, left = 0, PACE_SECONDS
                continue
            raise TooSlow(
                f"{come >> 10} KiB of the upload came within {PACE_SECONDS:g} s, and at least "
                f"{MIN_BYTES >> 10} KiB must, because it keeps room from others: send it again "
                f"when the network is faster",
                code="upload_too_slow",
            ) from None
        if piece is None:
            return
        come, left = come + len(piece), left - (now() - began)
        if come >= MIN_BYTES:
            come, left = 0, PACE_SECONDS
        yield piece


async def _first_line(pieces: AsyncIterable[bytes]) -> tuple[bytes, bytes]:
    """Return the line, and what came of the bytes after it. Raises Invalid."""
    come = bytearray()
    async for piece in pieces:
        come += piece
        line, newline, rest = come.partition(b"\n")
        if len(line) > MAX_MANIFEST_BYTES:
            break
        if newline:
            return bytes(line), bytes(rest)
    raise Invalid("the body begins with a line of JSON that names the parts", code="not_json")


async def _after(rest: bytes, pieces: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    if rest:
        yield rest
    async for piece in pieces:
        yield piece


async def get_blob(call: Call) -> BlobAnswer:
    digest = call.path("blob")
    size = await call.service.runs.blobs.size(digest, user=call.caller)
    return BlobAnswer(sha256=digest, size=size)


ROUTES: tuple[Route, ...] = (
    Route(
        method="PUT",
        path="/v1/blobs/{blob}",
        summary="Upload a blob for a run, named by its sha256; the body is its bytes",
        handler=put_blob,
        answer=BlobAnswer,
    ),
    Route(
        method="GET",
        path="/v1/blobs/{blob}",
        summary="Whether the caller has uploaded this blob; the request keeps it for another day",
        handler=get_blob,
        answer=BlobAnswer,
    ),
    Route(
        method="POST",
        path="/v1/blobs/{blob}/missing",
        summary="Which parts of a new blob no earlier upload of the caller has",
        handler=find_missing_parts,
        body=PartsBody,
        answer=PartsAnswer,
    ),
    Route(
        method="PUT",
        path="/v1/blobs/{blob}/parts",
        summary="Upload a blob in parts: a line of JSON (`parts`, `sent`), then the bytes of those"
        " in `sent`; 409 (`parts_missing`): send all of it",
        handler=put_blob_parts,
        answer=BlobAnswer,
    ),
)
