"""One connection of a client: its requests one after the other, and their answers.

A peer may send anything. Its head, its header lines, its pipelined requests and the unread part of
a body are limited, and so is the time for each part, so it can cost neither memory nor a descriptor
for ever. A connection that is lost cancels the handler of its request.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

import httptools

from fairlead.wire.errors import Refused
from runner.http.messages import (
    Answer,
    Body,
    BrokenBody,
    Request,
    Response,
    Streamed,
    Upgrade,
    as_refusal,
)
from runner.http.websocket import WebSocket

MAX_HEAD = 32 << 10
MAX_HEADERS = 128
MAX_WAITING = 64
"""Pipelined requests that may wait on one connection."""
HEAD_SECONDS = 75.0
"""Seconds from the first byte of a request until its head is whole."""
BODY_SECONDS = 300.0
"""Seconds within which some more of a body has to come: what a client may need for a piece."""
IDLE_SECONDS = 3630.0
"""Longer than any client keeps a connection: else its next request could meet our close."""
LINGER_SECONDS = 10.0
"""Seconds for the rest of a body that nobody reads, so that a client that still sends gets its
answer."""
_JOINED = 1 << 12
"""Below this size, one write of a copy costs less than two writes."""
_log = logging.getLogger(__name__)


class Owner(Protocol):
    """Whoever answers the requests of a connection."""

    async def answer(self, request: Request) -> Answer: ...

    def came(self, connection: Connection) -> None: ...

    def left(self, connection: Connection) -> None:
        """The connection is lost; what it was asked is not answered any more."""


class Connection(asyncio.Protocol):
    def __init__(self, server: Owner) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[Request] = deque()
        self._incoming: Request | None = None
        self._serving: asyncio.Task[None] | None = None
        self._websocket: WebSocket | None = None
        self._early = b""
        self._refusal: Refused | None = None
        self._is_last = False
        self._timer: asyncio.TimerHandle | None = None
        self._writable: asyncio.Future[None] | None = None
        self._reset_head()

    # -- asyncio -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.came(self)
        self._within(HEAD_SECONDS, self._late)

    def data_received(self, data: bytes) -> None:
        if self._websocket is not None:
            self._websocket.feed(data)
        elif self._upgrades:
            # A client may send frames before it has the answer to its handshake.
            self._early += data
        elif not self._is_last:
            self._parse(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._stop_timer()
        if self._websocket is not None:
            self._websocket.gone()
        # It is done where the task that waited for it was cancelled.
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        if self._serving is not None:
            self._serving.cancel()
        self._server.left(self)

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()
        if self._websocket is not None:
            self._websocket.is_paused = True

    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)
        if self._websocket is not None:
            self._websocket.resume()

    # -- httptools -----------------------------------------------------------------------------

    def _reset_head(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._head_size = 0
        self._head_fed = 0
        self._header_count = 0
        self._in_head = False
        self._upgrades = False

    def on_message_begin(self) -> None:
        self._reset_head()
        self._in_head = True
        self._within(HEAD_SECONDS, self._late)

    def on_url(self, url: bytes) -> None:
        # httptools calls this once for each piece of the bytes that it is fed.
        self._count_head(len(url))
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_count += 1
        if self._header_count > MAX_HEADERS:
            raise _too_large_head()
        self._count_head(len(name) + len(value))
        if not self._in_head:  # a trailer of a chunked body
            return
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        before = self._headers.get(key)
        self._headers[key] = text if before is None else f"{before}, {text}"

    def on_headers_complete(self) -> None:
        self._in_head = False
        if len(self._waiting) >= MAX_WAITING:
            raise Refused(400, "invalid", f"more than {MAX_WAITING} requests at once")
        self._incoming = self._request()
        self._waiting.append(self._incoming)
        self._within(BODY_SECONDS, self._late)
        self._go_on()

    def on_body(self, body: bytes) -> None:
        if self._incoming is not None:
            self._incoming.body.feed(body)
            self._within(BODY_SECONDS, self._late)
            self._pace()

    def on_message_complete(self) -> None:
        self._stop_timer()
        if self._incoming is not None:
            self._incoming.body.end()
            self._incoming = None

    def _count_head(self, size: int) -> None:
        self._head_size += size
        if self._head_size > MAX_HEAD:
            raise _too_large_head()

    def _request(self) -> Request:
        # Only its path and query count: a proxy's form of a target names a host as well.
        url = httptools.parse_url(self._url)
        query = (url.query or b"").decode("latin-1")
        return Request(
            method=self._parser.get_method().decode(),
            path=(url.path or b"/").decode("latin-1"),
            query=_fields_of(query),
            headers=self._headers,
            body=Body(self._pace),
            keeps_alive=self._parser.should_keep_alive(),
            is_http_1_0=self._parser.get_http_version() == "1.0",
        )

    # -- reading -------------------------------------------------------------------------------

    def _parse(self, data: bytes) -> None:
        if self._in_head:
            self._head_fed += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgrades = self._is_last = True
            # httptools tells how many of these bytes belong to the head; the rest are frames.
            self._early = data[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            self._break_off(_refusal_of(error))
        else:
            # The parser holds a header line until it is whole, however long it is.
            if self._in_head and self._head_fed > MAX_HEAD:
                self._break_off(_too_large_head())
        self._pace()

    def _break_off(self, refusal: Refused) -> None:
        """Read no more requests. What came before gets its answers first."""
        self._is_last = True
        self._stop_timer()
        if self._incoming is not None:
            self._incoming.body.fail()
            self._incoming = None
        else:
            self._refusal = refusal
        self._go_on()

    def _pace(self) -> None:
        """Read only what can be used soon."""
        if self._transport is None or self._transport.is_closing():
            return
        is_full = self._incoming is not None and self._incoming.body.is_full
        if self._websocket is None and (self._waiting or is_full or self._upgrades):
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _within(self, seconds: float, act: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = self._loop.call_later(seconds, act)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if self._incoming is not None and self._incoming.body.is_full:
            # It is the handler that is slow.
            self._within(BODY_SECONDS, self._late)
        else:
            self._break_off(Refused(408, "timeout", "the request did not come within its time"))

    # -- answering -----------------------------------------------------------------------------

    def shut_down(self) -> None:
        """Answer what was asked, and end the connection."""
        self._is_last = True
        if self._serving is None:
            self._close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _close(self) -> None:
        self._stop_timer()
        if self._transport is not None:
            self._transport.close()

    def _go_on(self) -> None:
        if self._serving is None and self._transport is not None:
            self._serving = self._loop.create_task(self._serve())

    async def _serve(self) -> None:
        keeps = True
        try:
            while keeps and self._waiting:
                request = self._waiting.popleft()
                self._pace()
                keeps = await self._answer(request)
            if keeps and self._refusal is not None:
                self._write(as_refusal(self._refusal), keeps=False)
        # The client is gone: nobody reads the rest of the answer.
        except ConnectionError:
            keeps = False
        except Exception:
            _log.exception("an answer was broken off")
            self.abort()
        finally:
            self._serving = None
        if self._is_last or not keeps:
            self._close()
        elif not self._in_head:
            self._within(IDLE_SECONDS, self._close)

    async def _answer(self, request: Request) -> bool:
        """Answer; return whether the connection goes on."""
        self._ask_for_body(request)
        answer = await self._server.answer(request)
        keeps = request.keeps_alive and not self._ends_after(request)
        match answer:
            case Upgrade():
                await self._become_websocket(answer)
                return False
            case Streamed():
                keeps = await self._write_pieces(answer, request, keeps)
            case Response():
                self._write(answer, keeps=keeps, is_http_1_0=request.is_http_1_0)
        await self._drain()
        return await self._end_of_body(request) and keeps

    def _ends_after(self, request: Request) -> bool:
        return self._is_last and not self._waiting and self._refusal is None

    def _ask_for_body(self, request: Request) -> None:
        # A client may hold its body back until it is asked for it (RFC 9110, 10.1.1).
        expects = request.headers.get("expect", "").lower() == "100-continue"
        if expects and not request.body.is_complete and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def _end_of_body(self, request: Request) -> bool:
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                # A connection that is closed with unread bytes is reset, and the answer may be lost
                # with them (RFC 9112, 9.6).
                await request.body.drop()
        except (BrokenBody, TimeoutError):
            return False
        return True

    def _write(self, answer: Response, *, keeps: bool, is_http_1_0: bool = False) -> None:
        headers = {
            "Content-Type": answer.content_type,
            "Content-Length": str(len(answer.body)),
            **answer.headers,
        }
        if not keeps:
            headers["Connection"] = "close"
        elif is_http_1_0:
            headers["Connection"] = "keep-alive"
        if self._transport is not None:
            head = _head(answer.status, headers)
            if len(answer.body) < _JOINED:
                self._transport.write(head + answer.body)
            else:
                self._transport.write(head)
                self._transport.write(answer.body)

    async def _write_pieces(self, answer: Streamed, request: Request, keeps: bool) -> bool:
        """Write the pieces as they come; return whether the connection can go on."""
        headers = {"Content-Type": answer.content_type}
        chunked = not request.is_http_1_0
        if chunked:
            headers["Transfer-Encoding"] = "chunked"
        keeps = keeps and chunked
        if not keeps:
            headers["Connection"] = "close"
        self._send(_head(200, headers))
        async for piece in answer.pieces:
            self._send(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            await self._drain()
        if chunked:
            self._send(b"0\r\n\r\n")
        return keeps

    async def _become_websocket(self, answer: Upgrade) -> None:
        transport = self._transport
        if transport is None:
            return
        upgrade = {"Upgrade": "websocket", "Connection": "Upgrade"}
        self._send(_head(101, {**upgrade, "Sec-WebSocket-Accept": answer.accept}))
        websocket = self._websocket = WebSocket(transport, self._drain)
        early, self._early = self._early, b""
        websocket.feed(early)
        self._pace()
        await answer.serve(websocket)

    def _send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    async def _drain(self) -> None:
        """Wait until the transport takes more. Raises ConnectionError."""
        if self._writable is not None:
            # All who write wait for it: one that is cancelled must not cancel it for the others.
            await asyncio.shield(self._writable)
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the peer is gone")


_PHRASES = {101: "Switching Protocols", 200: "OK", 400: "Bad Request", 404: "Not Found"}
"""Of the usual answers. A phrase may be missing (RFC 9112, 4), and to load those of `http` takes
0.3 of a runner's 45 ms."""


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {_PHRASES.get(status, '')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _too_large_head() -> Refused:
    return Refused(431, "too_large", f"the head is larger than {MAX_HEAD} bytes")


def _fields_of(query: str) -> dict[str, str]:
    """Raises ValueError for too many fields."""
    # urllib costs each job a millisecond to load, and no request of ours needs it.
    if "%" in query or "+" in query or query.count("&") >= MAX_HEADERS:
        from urllib.parse import parse_qsl

        return dict(parse_qsl(query, keep_blank_values=True, max_num_fields=MAX_HEADERS))
    fields = (field.partition("=") for field in query.split("&") if field)
    return {name: value for name, _, value in fields}


def _refusal_of(error: httptools.HttpParserError) -> Refused:
    # httptools wraps what its callbacks raise.
    if isinstance(error.__context__, Refused):
        return error.__context__
    return Refused(400, "invalid", "these bytes are no HTTP request")
