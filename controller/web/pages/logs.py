"""The whole log of an attempt as a file; the viewer itself asks the API for windows."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator

from aiohttp import web

from controller.api.http.streams import cancel_this, reader_may_leave, registered
from controller.api.jobs.logs import formed
from controller.web.page import PageRoute, Visit

# What a browser sends that goes on with an interrupted download.
_REST = re.compile(r"bytes=([0-9]{1,18})-", re.ASCII)


async def download(visit: Visit) -> web.StreamResponse:
    """Send the stored output as it was printed, or the rest of it to a browser whose download was
    interrupted. Raises NotFound, Forbidden, Gone."""
    runs, logs = visit.service.runs.lookup, visit.service.jobs.logs
    state = await runs.seen(visit.path("run"), visit.user)
    job, key = visit.query("job") or None, visit.query("attempt") or None
    attempt = await runs.attempt(state, job, key)
    await visit.service.jobs.kept_logs.require(state, attempt)
    name = f"{state.run.name}-{attempt.id}.log" if attempt else f"{state.run.name}.log"
    headers = {
        "Content-Type": "text/plain; charset=utf-8",
        "Content-Disposition": f'attachment; filename="{name}"',
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        # A browser may show it on this origin: a job's output must run no script there.
        "Content-Security-Policy": "sandbox",
    }
    response = web.StreamResponse(headers=headers)
    pieces = None
    if attempt is not None:
        pieces = formed(logs.read(attempt.id, 0), 0, "text")
        # A byte at its place never changes, though a live log grows.
        response.headers.update({"Accept-Ranges": "bytes", "ETag": f'"{attempt.id}"'})
        if (first := _first_asked(visit.request, f'"{attempt.id}"')) is not None:
            pieces = await _rest(response, first, pieces, logs.read(attempt.id, 0))
    with registered(visit.request, cancel_this()), reader_may_leave():
        await response.prepare(visit.request)
        if pieces is not None:
            async for piece in pieces:
                await response.write(piece)
        await response.write_eof()
    return response


def _first_asked(request: web.Request, tag: str) -> int | None:
    """Return where the rest of an interrupted download begins; None: all of it is asked for."""
    asked = _REST.fullmatch(request.headers.get("Range", ""))
    # RFC 9110, 13.1.5: the rest of another attempt's log would not fit.
    if asked is None or request.headers.get("If-Range", tag) != tag:
        return None
    return int(asked[1])


async def _rest(
    response: web.StreamResponse,
    first: int,
    pieces: AsyncIterator[bytes],
    frames: AsyncIterator[bytes],
) -> AsyncIterator[bytes] | None:
    """Return the output from its byte `first` on, and tell in the head which part it is. The output
    is read once more: only then its length is known, since of a gap it has a sentence."""
    length = 0
    async for piece in formed(frames, 0, "text"):
        length += len(piece)
    if first >= length:
        response.set_status(416)
        response.headers["Content-Range"] = f"bytes */{length}"
        return None
    response.set_status(206)
    response.headers["Content-Range"] = f"bytes {first}-{length - 1}/{length}"
    response.content_length = length - first
    return _between(pieces, first, length)


async def _between(
    pieces: AsyncIterator[bytes], first: int, end: int
) -> AsyncGenerator[bytes, None]:
    at = 0
    async for piece in pieces:
        if part := piece[max(first - at, 0) : max(end - at, 0)]:
            yield part
        at += len(piece)


PAGES: tuple[PageRoute, ...] = (PageRoute(path="/runs/{run}/log.txt", handler=download),)
