"""One HTTP/1.1 connection to a replica, over the byte stream to its port.

The parser is httptools, in C: 4 µs for an answer, where h11 takes 58 µs; aiohttp's client has no
public hook for a connection that is not a socket. Bytes are read only when the caller asks for
more, so a slow client slows its replica down, and no more than the stream's window is buffered.
"""

from __future__ import annotations

import asyncio
import re

import httptools
import msgspec

from common.streams import PortStream

PIECE_BYTES = 256 << 10
MAX_HEAD_BYTES = 64 << 10
IDLE_SECONDS = 1.5
"""An unused connection is kept for this time, which is less than servers keep it: else a request
could meet the server's close."""
_TIMEOUT = re.compile(r"(?:^|[,;\s])timeout=([0-9]{1,6})", re.ASCII | re.IGNORECASE)


class UpstreamError(Exception):
    """The replica gave no usable answer; the message continues the sentence 'the replica …'."""


class NoAnswer(UpstreamError):
    """The connection ended before the first byte of an answer."""


class BadAnswer(UpstreamError):
    """The bytes are not an HTTP/1.1 answer."""


class CutOff(UpstreamError):
    """The connection ended within the answer."""


class ResponseHead(msgspec.Struct, frozen=True):
    status: int
    reason: str
    headers: list[tuple[str, str]]


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        # A field may have any bytes beyond ASCII, in no known encoding (obs-text: RFC 9110, 5.5).
        return value.decode("latin-1")


class _Events:
    """The callbacks of httptools for one answer, without interim answers such as 100."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.head: ResponseHead | None = None
        self.body: list[bytes] = []
        self.complete = False
        self.is_framed = False
        self.is_reusable = False
        self._reason = b""
        self._headers: list[tuple[str, str]] = []
        self._interim = False

    def on_status(self, status: bytes) -> None:
        # httptools calls this once for each piece of the bytes that it is fed.
        self._reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        # httptools gives the trailers of a chunked body to this callback, too.
        if self.head is None:
            self._headers.append((name.decode("latin-1"), _text(value)))

    def on_headers_complete(self) -> None:
        status = self.parser.get_status_code()
        # A replica may send some before its answer, such as 103; 101 is an answer (RFC 9110, 15.2).
        self._interim = 100 <= status < 200 and status != 101
        if not self._interim and self.head is None:
            self.is_framed = any(
                name.lower() in ("content-length", "transfer-encoding") for name, _ in self._headers
            ) or status in (204, 304)
            self.is_reusable = self.parser.should_keep_alive()
            self.head = ResponseHead(status, _text(self._reason), self._headers)

    def on_body(self, body: bytes) -> None:
        # `answer` ends the one to HEAD itself; a body that an app sends with it is no part of it.
        if not self.complete:
            self.body.append(body)

    def on_message_complete(self) -> None:
        if self._interim:
            self._reason, self._headers, self._interim = b"", [], False
        else:
            self.complete = True

    def on_message_begin(self) -> None:
        if self.complete:
            self.is_reusable = False  # an answer without a request


def _may_have_an_unasked_body(method: str, head: ResponseHead) -> bool:
    """Return whether an app that breaks HTTP's rules may send a body with this answer, which has
    none (RFC 9112, 6.3). It may come after the next request is sent, when nothing tells it from
    that one's answer."""
    framing = [
        value.strip()
        for name, value in head.headers
        if name.lower() in ("content-length", "transfer-encoding")
    ]
    if head.status in (204, 304):
        return any(value != "0" for value in framing)
    return method == "HEAD" and framing != ["0"]


class ReplicaConnection:
    """A connection that carries one request at a time."""

    def __init__(self, stream: PortStream) -> None:
        self._reader, self._writer = stream.reader, stream.writer
        self._rest = stream.first
        self._events = _Events()
        self._is_closed = False
        self._usable_until = 0.0
        self.served = 0

    @property
    def can_be_reused(self) -> bool:
        """Whether another request may be sent now."""
        now = asyncio.get_running_loop().time()
        return not self._is_closed and now < self._usable_until and not self._has_input()

    @property
    def upgraded(self) -> PortStream:
        """The stream below, after an answer 101."""
        return PortStream(self._reader, self._writer, self._rest)

    async def send(self, data: bytes) -> None:
        """Send a part of the request. Raises NoAnswer."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise NoAnswer("closed the connection") from error

    async def answer(self, method: str) -> ResponseHead:
        """Read up to the end of the answer's head. Raises NoAnswer, BadAnswer, CutOff."""
        events = self._events = _Events()
        received = 0
        while events.head is None:
            data = await self._read(bool(received))
            received += len(data)
            self._feed(data)
            if received > MAX_HEAD_BYTES and events.head is None:
                raise BadAnswer(f"answered with a head of more than {MAX_HEAD_BYTES} bytes")
        if _may_have_an_unasked_body(method, events.head):
            events.is_reusable = False
        # httptools does not know the method, and waits for the body that Content-Length announces.
        if method == "HEAD":
            events.complete = True
            events.body.clear()
        return events.head

    async def read(self) -> bytes:
        """Return the next part of the answer's body; empty at its end. Raises BadAnswer, CutOff."""
        events = self._events
        while not events.body:
            if events.complete:
                return b""
            try:
                data = await self._read(True)
            except CutOff:
                # A body without length and chunks ends with the connection (RFC 9112, 6.3).
                if events.is_framed:
                    raise
                events.complete, events.is_reusable = True, False
                return b""
            self._feed(data)
        body = events.body[0] if len(events.body) == 1 else b"".join(events.body)
        events.body.clear()
        return body

    def finish(self) -> bool:
        """End the exchange. Return whether the connection can carry another one."""
        events = self._events
        self.served += 1
        if not (events.complete and events.is_reusable) or self._is_closed or events.head is None:
            return False
        if self._rest or self._has_input():
            return False
        seconds = IDLE_SECONDS
        for name, value in events.head.headers:
            if name.lower() == "keep-alive" and (match := _TIMEOUT.search(value)):
                # The server's time began when it sent the answer: a second is left for the way.
                seconds = min(seconds, int(match[1]) - 1.0)
        self._usable_until = asyncio.get_running_loop().time() + seconds
        return seconds > 0

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._writer.close()

    def _has_input(self) -> bool:
        """Return whether bytes that nobody asked for have come, or the end. Without this check the
        next client would get them as its answer. It takes one of the bytes, so the connection must
        not be used again."""
        reading = self._reader.read(1)
        try:
            reading.send(None)  # it waits for the first byte only if there is none
        except (StopIteration, OSError):
            return True
        reading.close()
        return False

    async def _read(self, begun: bool) -> bytes:
        if self._rest:
            data, self._rest = self._rest, b""
            return data
        ended = CutOff if begun else NoAnswer
        try:
            data = await self._reader.read(PIECE_BYTES)
        except OSError as error:
            raise ended("broke the connection") from error
        if not data:
            raise ended("closed the connection")
        return data

    def _feed(self, data: bytes) -> None:
        try:
            self._events.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # httptools stops after the head, and tells how many of these bytes it took.
            self._rest = data[upgrade.args[0] :]
            self._events.complete = True
            self._events.is_reusable = False
        except httptools.HttpParserError as error:
            # Bytes after a whole answer do not spoil it: only the connection is not used again.
            if not self._events.complete:
                raise BadAnswer("answered with bytes that are not HTTP/1.1") from error
            self._events.is_reusable = False
