"""The log of an attempt, as it is stored and as it comes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Coroutine
from functools import partial
from typing import Literal

import msgspec
from aiohttp import WSCloseCode, web

from controller.api.routes import FRAMES, TEXT, Call, Offset, Query, Route
from controller.api.streams import (
    CLOSE_SECONDS,
    PROTOCOL,
    cancel_this,
    reader_may_leave,
    registered,
)
from controller.api.views import iso
from controller.service.job_access import follow_log
from runner.schemas import LogsHeader
from runner.schemas.frames import Decoder, Frame, tail_from


class FollowQuery(Query, frozen=True):
    """As `LogsQuery`. `format` of the messages: whole frames, or (for browsers) one JSON object for
    each frame."""

    attempt: str | None = None
    job: str | None = None
    offset: Offset = 0
    format: Literal["frames", "json"] = "frames"


class LogsQuery(Query, frozen=True):
    """`offset` counts bytes of the attempt's output; `job` defaults to the first, `attempt` to the
    job's latest."""

    attempt: str | None = None
    job: str | None = None
    offset: Offset = 0


_LAST_MOMENT = 1e11
"""Unix seconds; a job may write times that no calendar has."""
_NEVER = re.compile(r"q\s*=\s*0(\.0*)?", re.ASCII)


async def read_logs(call: Call) -> web.StreamResponse:
    """Send the stored log, as raw frames or as text.

    An attempt that has not begun has an empty log; a removed log is an error.
    """
    query: LogsQuery = call.query
    state = await call.service.runs.get(call.path("run"))
    attempt = await call.service.runs.attempt(state, query.job, query.attempt)
    await call.service.kept_logs.require(state, attempt)
    as_text = wants_text(call.request.headers.get("Accept", ""))
    headers = {"Content-Type": f"{TEXT}; charset=utf-8" if as_text else FRAMES}
    headers |= {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Vary": "Accept"}
    response = web.StreamResponse(headers=headers)
    with registered(call.request, cancel_this()), reader_may_leave():
        await response.prepare(call.request)
        if attempt is not None:
            pieces = call.service.logs.read(attempt.id, query.offset)
            async for piece in _texts(pieces, query.offset) if as_text else pieces:
                await response.write(piece)
        await response.write_eof()
    return response


def wants_text(accept: str) -> bool:
    """Return whether an `Accept` header asks for text, as a browser's does, and not for frames."""
    wanted = set()
    for one in accept.lower().split(","):
        media, *parameters = (part.strip() for part in one.split(";"))
        if not any(_NEVER.fullmatch(parameter) for parameter in parameters):
            wanted.add(media)
    return FRAMES not in wanted and any(media.startswith("text/") for media in wanted)


async def _texts(pieces: AsyncIterator[bytes], offset: int) -> AsyncIterator[bytes]:
    """Yield the output in these frames from `offset` on."""
    decoder = Decoder()
    async for piece in pieces:
        tails = (tail_from(frame, offset) for frame in decoder.feed(piece))
        yield b"".join(tail.payload for tail in tails if tail is not None)


async def follow_logs(call: Call) -> web.StreamResponse:
    """Send the log as the runner does: `LogsHeader` as text, then whole frames; closes with 1000 at
    the end. As JSON there is no header."""
    query: FollowQuery = call.query
    state = await call.service.runs.get(call.path("run"))
    attempt = await call.service.runs.attempt(state, query.job, query.attempt)
    await call.service.kept_logs.require(state, attempt)
    socket = web.WebSocketResponse(
        heartbeat=30.0, timeout=CLOSE_SECONDS, compress=False, protocols=(PROTOCOL,)
    )
    await socket.prepare(call.request)
    as_json = query.format == "json"
    with registered(call.request, partial(socket.close, code=WSCloseCode.GOING_AWAY)):
        if not as_json:
            header = LogsHeader(offset=query.offset)
            await socket.send_str(msgspec.json.encode(header).decode())
        if attempt is not None:
            service = call.service
            pieces = follow_log(service.runs, service.logs, state.run.id, attempt.id, query.offset)
            send = _send_json(socket, pieces, query.offset) if as_json else _send(socket, pieces)
            await _send_until_gone(socket, send)
        await socket.close(code=WSCloseCode.OK)
    return socket


async def _send_until_gone(
    socket: web.WebSocketResponse, send: Coroutine[None, None, None]
) -> None:
    """Send and read at the same time: only then does aiohttp answer pings and see the other side
    close."""
    sending = asyncio.create_task(send)
    reading = asyncio.create_task(_read_to_close(socket))
    try:
        await asyncio.wait((sending, reading), return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            sending.result()
    finally:
        for task in (sending, reading):
            task.cancel()
        await asyncio.gather(sending, reading, return_exceptions=True)


async def _send(socket: web.WebSocketResponse, pieces: AsyncIterator[bytes]) -> None:
    with reader_may_leave():
        async for piece in pieces:
            await socket.send_bytes(piece)


async def _send_json(
    socket: web.WebSocketResponse, pieces: AsyncIterator[bytes], offset: int
) -> None:
    decoder = Decoder()
    with reader_may_leave():
        async for piece in pieces:
            for frame in decoder.feed(piece):
                tail = tail_from(frame, offset)
                if tail is not None:
                    await socket.send_str(as_line(tail))


def as_line(frame: Frame) -> str:
    """Return the frame as JSON; bytes that are not UTF-8 become marks."""
    shown = {
        "offset": frame.offset,
        "end": frame.end,
        "at": shown_time(frame.time_ns),
        "stream": frame.stream.name.lower(),
        "text": frame.payload.decode(errors="replace"),
    }
    return msgspec.json.encode(shown).decode()


def shown_time(time_ns: int) -> str:
    return iso(max(0.0, min(time_ns / 1e9, _LAST_MOMENT)))


async def _read_to_close(socket: web.WebSocketResponse) -> None:
    async for _ in socket:
        pass


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path="/v1/runs/{run}/logs",
        summary="The stored log, as raw frames, or as text if `Accept` names text",
        handler=read_logs,
        query=LogsQuery,
        media=FRAMES,
        asked_for=(TEXT,),
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
