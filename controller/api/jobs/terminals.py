"""One WebSocket is one terminal in a running job.

Binary messages are what is typed, and what the terminal shows. A text message of the browser is
`{"columns": …, "rows": …}`; the controller sends `{"exit": …}` when the shell has ended, and
`{"error": …}` when there is none. The shell is hung up on when the socket closes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Annotated

import msgspec
from aiohttp import WSCloseCode, WSMsgType, web

from common.refusals import Forbidden, ServiceError
from controller.api.http.origins import host_of
from controller.api.http.routes import BYTES, Call, Route
from controller.api.http.streams import CLOSE_SECONDS, PROTOCOL, registered
from controller.service.jobs.terminals import Process, TerminalService
from controller.store.accounts import User
from fairlead.queries import Query
from fairlead.wire.decoders import decoder_of

log = logging.getLogger(__name__)
TERMINAL_PATH = "/v1/runs/{run}/terminal"
IDLE_SECONDS = 3600.0
"""A terminal in which nothing is typed or shown for so long ends."""
_MAX_TYPED = 1 << 20
_PIECE_BYTES = 32 << 10
Heard = Callable[[], None]
_Cells = Annotated[int, msgspec.Meta(ge=1, le=1000)]


class TerminalQuery(Query, frozen=True):
    """`job` as in the log's query; `login`: a user of the image."""

    job: str | None = None
    login: str = "root"
    columns: _Cells = 80
    rows: _Cells = 24


class _Size(msgspec.Struct, frozen=True):
    columns: _Cells
    rows: _Cells


async def open_terminal(call: Call) -> web.StreamResponse:
    run = call.path("run")
    return await serve_terminal(
        call.request, call.service.jobs.terminals, run, call.query, call.caller
    )


async def serve_terminal(
    request: web.Request, terminals: TerminalService, run: str, query: TerminalQuery, user: User
) -> web.StreamResponse:
    """Answer with the WebSocket of a terminal in this run. Raises as `TerminalService.require`."""
    require_same_origin(request)
    # Before the upgrade: a refusal can still have a status.
    await terminals.require(run, query.job, user=user)
    socket = web.WebSocketResponse(
        heartbeat=30.0,
        timeout=CLOSE_SECONDS,
        compress=False,
        max_msg_size=_MAX_TYPED,
        protocols=(PROTOCOL,),
    )
    await socket.prepare(request)
    size = (query.columns, query.rows)
    with registered(request, partial(socket.close, code=WSCloseCode.GOING_AWAY)):
        try:
            async with terminals.opened(
                run, query.job, user=user, login=query.login, size=size
            ) as process:
                log.info("%s opened a terminal in run %s", user.name, run)
                await _carry(socket, process)
        except ServiceError as error:
            await _say(socket, error=str(error))
        await socket.close(code=WSCloseCode.OK)
    return socket


def require_same_origin(request: web.Request) -> None:
    """Raise Forbidden if a browser sends this from a page of another origin."""
    # The dashboard's cookie comes along, and a WebSocket needs no preflight (RFC 6455, 10.2).
    origin = request.headers.get("Origin")
    hosts = (request.host, request.headers.get("X-Forwarded-Host", request.host))
    if origin is not None and host_of(origin) not in [host.lower() for host in hosts]:
        raise Forbidden(
            f"the page {origin} may not open terminals of {request.host}", code="other_origin"
        )


async def _carry(socket: web.WebSocketResponse, process: Process) -> None:
    """Carry bytes until the shell ends, the socket closes, or neither sends for IDLE_SECONDS."""
    quiet = asyncio.timeout(IDLE_SECONDS)

    def heard() -> None:
        quiet.reschedule(asyncio.get_running_loop().time() + IDLE_SECONDS)

    tasks = [
        asyncio.create_task(_to_job(socket, process, heard)),
        asyncio.create_task(_to_user(socket, process, heard)),
    ]
    try:
        async with quiet:
            # Either side may end first: the shell, or the browser's tab.
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    except TimeoutError:
        await _say(socket, error=f"nothing happened here for {IDLE_SECONDS / 60:.0f} minutes")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _to_job(socket: web.WebSocketResponse, process: Process, heard: Heard) -> None:
    async for message in socket:
        heard()
        if message.type is WSMsgType.BINARY:
            process.stdin.write(message.data)
            await process.stdin.drain()
        elif message.type is WSMsgType.TEXT:
            try:
                size = decoder_of(_Size).decode(message.data)
            # A page of another version may send what this one does not know: the terminal goes on.
            except msgspec.DecodeError:
                continue
            process.change_terminal_size(size.columns, size.rows)


async def _to_user(socket: web.WebSocketResponse, process: Process, heard: Heard) -> None:
    while data := await process.stdout.read(_PIECE_BYTES):
        heard()
        await socket.send_bytes(data)
    # The exit status may come after the end of the output (RFC 4254, 6.10).
    await process.wait_closed()
    await _say(socket, exit=process.exit_status)


async def _say(socket: web.WebSocketResponse, **fields: object) -> None:
    if not socket.closed:
        await socket.send_str(msgspec.json.encode(fields).decode())


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path=TERMINAL_PATH,
        summary="WebSocket: a shell with a terminal in a running job",
        handler=open_terminal,
        query=TerminalQuery,
        status=101,
        media=BYTES,
    ),
)
