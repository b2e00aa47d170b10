"""Uploads as REST: files of a run that no node can fetch, named by their sha256."""

from __future__ import annotations

import msgspec

from controller.api.routes import Call, Route
from controller.blobs import PIECE_BYTES


class BlobAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`size` in bytes."""

    sha256: str
    size: int


async def put_blob(call: Call) -> BlobAnswer:
    digest = call.path("blob")
    pieces = call.request.content.iter_chunked(PIECE_BYTES)
    size = await call.service.blobs.put(digest, pieces, user=call.caller)
    return BlobAnswer(sha256=digest, size=size)


async def get_blob(call: Call) -> BlobAnswer:
    digest = call.path("blob")
    size = await call.service.blobs.size(digest, user=call.caller)
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
)
