"""The log of an attempt, as it is stored and as it comes."""

from __future__ import annotations

import asyncio
import codecs
import logging
import re
from collections.abc import AsyncIterator, Coroutine
from functools import partial
from typing import Literal

import msgspec
from aiohttp import WSCloseCode, web

from common.http import json_response
from controller.api.http.routes import FRAMES, NDJSON, TEXT, Call, Route
from controller.api.http.streams import (
    CLOSE_SECONDS,
    PROTOCOL,
    cancel_this,
    reader_may_leave,
    registered,
)
from controller.clock import iso_of_job
from controller.outputs.bucket import BucketError
from controller.service.jobs.logs import follow_log
from controller.store.errors import StoreError
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES
from fairlead.queries import Offset, Query
from fairlead.wire.frames import ATTEMPT_HEADER, Decoder, Frame, Stream, tail_from
from fairlead.wire.runner import LogsHeader

log = logging.getLogger(__name__)

HERE = "{}"
"""The answer to a message of a reader of JSON. A browser shows its programs no ping."""


class FollowQuery(Query, frozen=True):
    """As `LogsQuery`. `format` of the messages: whole frames; for browsers one JSON object for each
    frame, by which a reader can resume, or the text of each. A reader of JSON that sends a message
    gets an empty object, which shows that the controller is there."""

    attempt: str | None = None
    job: str | None = None
    offset: Offset = 0
    format: Literal["frames", "json", "text"] = "frames"


class LogsQuery(Query, frozen=True):
    """`offset` counts bytes of the attempt's output; `job` defaults to the first, `attempt` to the
    job's latest. `format`: frames, the output itself, or one JSON object on each line; by default
    the one that `Accept` names."""

    attempt: str | None = None
    job: str | None = None
    offset: Offset = 0
    format: Literal["frames", "text", "ndjson"] | None = None


class FoundLog(msgspec.Struct, frozen=True):
    """The log that a request for a stream is about, for a follower that gives it itself."""

    run_id: str
    attempt_id: str


IS_ONLY_FOUND = web.RequestKey("is_only_found", bool)
"""Whether a follower asks which live log a request is about. A final log is no such one: who reads
it is soon at its end."""

# A type with the weight 0 is one that the client does not take (RFC 9110, 12.4.2).
_NEVER = re.compile(r"q\s*=\s*0(\.0*)?", re.ASCII)


_MEDIA = {"frames": FRAMES, "text": f"{TEXT}; charset=utf-8", "ndjson": NDJSON}


async def read_logs(call: Call) -> web.StreamResponse:
    """Send the stored log as raw frames, as text or as lines of JSON.

    An attempt that has not begun has an empty log; a removed log is an error.
    """
    query: LogsQuery = call.query
    state = await call.service.runs.lookup.get(call.path("run"))
    attempt = await call.service.runs.lookup.attempt(state, query.job, query.attempt)
    await call.service.jobs.kept_logs.require(state, attempt)
    pieces = None if attempt is None else call.service.jobs.logs.read(attempt.id, query.offset)
    return await send_log(call.request, query, pieces, None if attempt is None else attempt.id)


async def send_log(
    request: web.Request,
    query: LogsQuery,
    pieces: AsyncIterator[bytes] | None,
    attempt_id: str | None,
) -> web.StreamResponse:
    form = query.format or accepted(request.headers.get("Accept", ""))
    headers = {"Content-Type": _MEDIA[form]}
    # nosniff: a browser that guesses could take a job's output for HTML and run its scripts.
    headers |= {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Vary": "Accept"}
    if attempt_id is not None:
        headers[ATTEMPT_HEADER] = attempt_id
    response = web.StreamResponse(headers=headers)
    with registered(request, cancel_this()), reader_may_leave():
        await response.prepare(request)
        if pieces is not None:
            async for piece in formed(pieces, query.offset, form):
                await response.write(piece)
        await response.write_eof()
    return response


def accepted(accept: str) -> Literal["frames", "text", "ndjson"]:
    """Return the form that an `Accept` header asks for: text for a browser's, else frames."""
    wanted = set()
    for one in accept.lower().split(","):
        media, *parameters = (part.strip() for part in one.split(";"))
        if not any(_NEVER.fullmatch(parameter) for parameter in parameters):
            wanted.add(media)
    if FRAMES in wanted:
        return "frames"
    if NDJSON in wanted:
        return "ndjson"
    return "text" if any(media.startswith("text/") for media in wanted) else "frames"


async def formed(
    pieces: AsyncIterator[bytes], offset: int, form: Literal["frames", "text", "ndjson"]
) -> AsyncIterator[bytes]:
    """Yield the output in these frames from `offset` on."""
    if form == "frames":
        async for piece in pieces:
            yield piece
        return
    async for tails in _tails(pieces, offset):
        if form == "text":
            yield b"".join(tail.payload for tail in tails)
        else:
            yield "".join(as_line(tail) + "\n" for tail in tails).encode()


async def _tails(pieces: AsyncIterator[bytes], offset: int) -> AsyncIterator[list[Frame]]:
    """Yield what these frames hold from `offset` on, piece by piece."""
    decoder = Decoder()
    async for piece in pieces:
        tails = (tail_from(frame, offset) for frame in decoder.feed(piece))
        yield [tail for tail in tails if tail is not None]
        del piece, tails


async def follow_logs(call: Call) -> web.StreamResponse:
    """Send the log as the runner does: `LogsHeader` as text, then whole frames; closes with 1000 at
    the end. JSON and text have no header."""
    query: FollowQuery = call.query
    state = await call.service.runs.lookup.get(call.path("run"))
    attempt = await call.service.runs.lookup.attempt(state, query.job, query.attempt)
    if call.request.get(IS_ONLY_FOUND, False):
        if attempt is None or attempt.status in FINAL_ATTEMPT_STATUSES:
            return web.Response(status=204)
        return json_response(FoundLog(run_id=state.run.id, attempt_id=attempt.id))
    await call.service.jobs.kept_logs.require(state, attempt)
    pieces = None
    if attempt is not None:
        service = call.service
        pieces = follow_log(
            service.runs.lookup, service.jobs.logs, state.run.id, attempt.id, query.offset
        )
    return await stream_log(call.request, query, pieces)


async def stream_log(
    request: web.Request, query: FollowQuery, pieces: AsyncIterator[bytes] | None
) -> web.StreamResponse:
    socket = web.WebSocketResponse(
        heartbeat=30.0, timeout=CLOSE_SECONDS, compress=False, protocols=(PROTOCOL,)
    )
    await socket.prepare(request)
    with registered(request, partial(socket.close, code=WSCloseCode.GOING_AWAY)):
        if query.format == "frames":
            header = LogsHeader(offset=query.offset)
            await socket.send_str(msgspec.json.encode(header).decode())
        if pieces is not None:
            send = {"frames": _send, "json": _send_json, "text": _send_text}[query.format]
            try:
                sending = send(socket, pieces, query.offset)
                await _send_until_gone(socket, sending, HERE if query.format == "json" else None)
            except (BucketError, StoreError) as error:
                # Raised further, it would be answered with a status amid the frames.
                log.error("the stream of %s ends early: %s", request.path, error)
                await socket.close(code=WSCloseCode.TRY_AGAIN_LATER)
        await socket.close(code=WSCloseCode.OK)
    return socket


async def _send_until_gone(
    socket: web.WebSocketResponse, send: Coroutine[None, None, None], here: str | None
) -> None:
    """Send and read at the same time: only then does aiohttp answer pings and see the other side
    close. `here`: the answer to each message; None: they get none."""
    sending = asyncio.create_task(send)
    reading = asyncio.create_task(_read_to_close(socket, here))
    try:
        await asyncio.wait((sending, reading), return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            sending.result()
    finally:
        for task in (sending, reading):
            task.cancel()
        # Both use the one connection: neither may outlive this request.
        await asyncio.gather(sending, reading, return_exceptions=True)


# These functions keep nothing of what they sent: a quiet job has readers for hours.
async def _send(socket: web.WebSocketResponse, pieces: AsyncIterator[bytes], offset: int) -> None:
    with reader_may_leave():
        async for piece in pieces:
            await socket.send_bytes(piece)
            del piece


async def _send_json(
    socket: web.WebSocketResponse, pieces: AsyncIterator[bytes], offset: int
) -> None:
    with reader_may_leave():
        async for tails in _tails(pieces, offset):
            for line in map(as_line, tails):
                await socket.send_str(line)
            del tails


async def _send_text(
    socket: web.WebSocketResponse, pieces: AsyncIterator[bytes], offset: int
) -> None:
    """Send text; a character that is cut by the end of a frame comes whole with the next one."""
    decoders = {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in Stream}
    with reader_may_leave():
        async for tails in _tails(pieces, offset):
            text = "".join(decoders[tail.stream].decode(tail.payload) for tail in tails)
            if text:
                await socket.send_str(text)
            del tails, text
        rest = "".join(decoder.decode(b"", final=True) for decoder in decoders.values())
        if rest:
            await socket.send_str(rest)


def as_line(frame: Frame) -> str:
    """Return the frame as JSON; bytes that are not UTF-8 become marks."""
    shown = {
        "offset": frame.offset,
        "end": frame.end,
        "at": iso_of_job(frame.time_ns),
        "stream": frame.stream.name.lower(),
        "text": frame.payload.decode(errors="replace"),
    }
    return msgspec.json.encode(shown).decode()


async def _read_to_close(socket: web.WebSocketResponse, here: str | None) -> None:
    with reader_may_leave():
        async for _ in socket:
            if here is not None:
                await socket.send_str(here)


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path="/v1/runs/{run}/logs",
        summary="The stored log as raw frames, text or JSON lines, by `format` or else `Accept`",
        handler=read_logs,
        query=LogsQuery,
        media=FRAMES,
        asked_for=(TEXT, NDJSON),
    ),
    Route(
        method="GET",
        path="/v1/runs/{run}/logs/ws",
        summary="WebSocket: the log from an offset on, until the attempt has ended",
        handler=follow_logs,
        query=FollowQuery,
        status=101,
        media=FRAMES,
    ),
)
