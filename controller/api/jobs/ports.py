"""One WebSocket is one connection to a port of a job.

Binary messages are its bytes, in both directions. The text message `eof` says that its sender sends
no more, while the other direction goes on. The socket closes with 1000 when both directions have
ended, and with 1011 when the connection broke.
"""

from __future__ import annotations

import asyncio
from functools import partial

from aiohttp import WSCloseCode, WSMsgType, web

from common.refusals import Invalid
from common.streams import PortStream
from controller.api.http.routes import BYTES, Call, Route
from controller.api.http.streams import CLOSE_SECONDS, registered
from fairlead.queries import Query

PORT_PATH = "/v1/runs/{run}/ports/{port}"
EOF = "eof"
PIECE_BYTES = 256 << 10
_MAX_PORT = 65535


class PortQuery(Query, frozen=True):
    """`job` as in the log's query."""

    job: str | None = None


async def open_port(call: Call) -> web.StreamResponse:
    query: PortQuery = call.query
    port = number_of(call.path("port"))
    stream = await call.service.jobs.ports.open(call.path("run"), query.job, port, user=call.caller)
    return await carry_port(call.request, stream)


async def carry_port(request: web.Request, stream: PortStream) -> web.StreamResponse:
    """Answer with a WebSocket that carries the stream, which is closed at its end."""
    try:
        socket = web.WebSocketResponse(heartbeat=30.0, timeout=CLOSE_SECONDS, compress=False)
        await socket.prepare(request)
        with registered(request, partial(socket.close, code=WSCloseCode.GOING_AWAY)):
            whole = await _carry(socket, stream)
            code = WSCloseCode.OK if whole else WSCloseCode.INTERNAL_ERROR
            await socket.close(code=code)
        return socket
    finally:
        stream.writer.close()


async def _carry(socket: web.WebSocketResponse, stream: PortStream) -> bool:
    """Return whether both directions came to their end. The user's side is read to its end, because
    only then does aiohttp see it close."""
    ended = asyncio.Event()
    reading = asyncio.create_task(_to_job(socket, stream, ended))
    sending = asyncio.create_task(_to_user(socket, stream))
    finished = asyncio.create_task(_both(sending, ended))
    try:
        await asyncio.wait((reading, finished), return_when=asyncio.FIRST_COMPLETED)
        return finished.done() and finished.exception() is None
    finally:
        tasks = (reading, sending, finished)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _both(sending: asyncio.Task[None], ended: asyncio.Event) -> None:
    await sending
    await ended.wait()


async def _to_job(socket: web.WebSocketResponse, stream: PortStream, ended: asyncio.Event) -> None:
    """Send the user's bytes to the job. A job that takes no more may still send an answer, so the
    rest is read and dropped."""
    async for message in socket:
        if ended.is_set():
            continue
        try:
            if message.type is WSMsgType.BINARY:
                stream.writer.write(message.data)
                await stream.writer.drain()
            elif message.type is WSMsgType.TEXT and message.data == EOF:
                stream.writer.write_eof()
                ended.set()
        except OSError:
            # The job closed its end: a write to it is EPIPE or ECONNRESET (send(2)).
            ended.set()


async def _to_user(socket: web.WebSocketResponse, stream: PortStream) -> None:
    data = stream.first
    while data or (data := await stream.reader.read(PIECE_BYTES)):
        await socket.send_bytes(data)
        data = b""
    await socket.send_str(EOF)


def number_of(text: str) -> int:
    """Return the port of a path. Raises Invalid."""
    if not (text.isascii() and text.isdecimal() and len(text) < 6 and 1 <= int(text) <= _MAX_PORT):
        raise Invalid(f"{text!r} is not a port from 1 to {_MAX_PORT}", field="port")
    return int(text)


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path=PORT_PATH,
        summary="WebSocket: a connection to a port that a job listens on",
        handler=open_port,
        query=PortQuery,
        status=101,
        media=BYTES,
    ),
)
