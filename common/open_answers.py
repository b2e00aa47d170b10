"""An HTTP answer that stays open for as long as its daemon has something to tell.

The controller has two of them for each node, for as long as the node is connected, and one for each
followed log. aiohttp keeps 8 KiB for one: its headers, its request, four queues. An `OpenAnswer`
is 2 KiB. A loss of that shows in the row "the same by SSH" of `./dev bench scale`.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Mapping
from math import inf
from typing import TypeVar, cast

import httptools

_MAX_HEAD = 64 << 10
_MAX_HELD = 128 << 10
_MAX_UNSENT = 64 << 10
_END_SECONDS = 5.0

Dial = Callable[[Callable[[], asyncio.Protocol]], Awaitable[object]]
"""Connects the protocol to a daemon's socket. Raises OSError."""


class InvalidAnswer(ValueError):
    """The other side does not speak HTTP, or says more at once than it may."""


class OpenAnswer(asyncio.Protocol):
    """The protocol of one answer whose body is read as it comes; `open_answer` makes it.

    What comes while nobody reads is held, up to `_MAX_HELD` bytes and one delivery.
    """

    __slots__ = (
        "_at",
        "_body",
        "_error",
        "_head",
        "_is_over",
        "_parser",
        "_paused",
        "_silence",
        "_since",
        "_timer",
        "_transport",
        "_waiter",
        "status",
    )

    def __init__(self) -> None:
        self._body = b""
        self._at = 0
        """No line ends before this place in the body."""
        self._head: int | None = 0
        """The bytes that came of the head; None: it is whole."""
        self._is_over = self._paused = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Looks whether the wait that began at `_since` has lasted for `_silence` seconds. It is
        set again when it was set for an earlier wait: a new one for each of thousands of heartbeats
        costs a controller more than the look."""
        self._since, self._silence = 0.0, inf
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self.status = 0

    async def read(self, silence: float | None = None) -> bytes:
        """Return the next bytes of the body; empty at its end.

        Raises OSError when the answer breaks off, or nothing came for `silence` seconds, which
        are as many in each call, or None; InvalidAnswer.
        """
        while not self._body and not self._is_over:
            await self._more(silence)
        body, self._body, self._at = self._body, b"", 0
        return body

    async def read_line(self, most: int, silence: float | None = None) -> bytes | None:
        """Return the next line without its end; None at the end of the body.

        Raises the errors of `read`; InvalidAnswer for a line of more than `most` bytes.
        """
        while (end := self._body.find(b"\n", self._at)) < 0:
            if self._is_over:
                return await self.read() or None
            self._at = len(self._body)
            if self._at > most:
                raise InvalidAnswer(f"a line of more than {most} bytes")
            await self._more(silence)
        line, self._body, self._at = self._body[:end], self._body[end + 1 :], 0
        return line

    def close(self) -> None:
        """Close the connection."""
        self._is_over = True
        # Else these are cycles, and wait for the collector: the error knows its readers' frames.
        self._parser = self._error = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            end(self._transport)

    def send(self, request: bytes) -> None:
        """Send the request; a lost connection is told to the reader. So is one whose other side
        asks without reading what it is answered."""
        # uvloop raises RuntimeError for a write to a connection that was closed here.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(request)
            if self._transport.get_write_buffer_size() > _MAX_UNSENT:
                self._transport.abort()

    async def read_head(self) -> None:
        """Return when `status` is known. Raises the errors of `read`."""
        while self._head is not None:
            await self._more(None)

    async def _more(self, silence: float | None) -> None:
        """Return when something came, or nothing more will."""
        if self._error is not None:
            raise self._error
        loop = asyncio.get_running_loop()
        self._waiter = waiter = loop.create_future()
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()  # a channel delivers what it holds within this call
        if silence is not None:
            self._since, self._silence = loop.time(), silence
            if self._timer is None:
                self._timer = loop.call_later(silence, self._look_for_silence)
        try:
            await waiter
        finally:
            self._waiter = None
            self._silence = inf

    def _look_for_silence(self) -> None:
        self._timer = None
        if self._waiter is None:
            return  # whoever waits next sets another one
        loop = asyncio.get_running_loop()
        left = self._since + self._silence - loop.time()
        if left <= 0:
            self._end(TimeoutError())
        elif left < inf:
            self._timer = loop.call_later(left, self._look_for_silence)

    def _end(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- what the transport calls --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # those of uvloop are no subclass

    def data_received(self, data: bytes) -> None:
        if self._parser is None or self._error is not None:
            return
        if self._head is not None:
            self._head += len(data)
        try:
            self._parser.feed_data(data)
        # httptools raises it at the end of a head that upgrades; its argument is where the rest
        # begins.
        except httptools.HttpParserUpgrade as upgrade:
            self._upgraded(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            self._end(InvalidAnswer(f"not an answer in HTTP: {error}"))
            return
        # httptools keeps a header until it is whole.
        if self._head is not None and self._head > _MAX_HEAD:
            self._end(InvalidAnswer(f"a head of more than {_MAX_HEAD} bytes"))
        self._hold(b"")

    def _hold(self, data: bytes) -> None:
        self._body += data
        self._hold_back(len(self._body))
        self._wake()

    def _hold_back(self, held: int) -> None:
        # A server that sends faster than its answer is read would fill the memory.
        if held > _MAX_HELD and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(ConnectionResetError(errno.ECONNRESET, "the connection was lost"))

    def _upgraded(self, rest: bytes) -> None:
        self._is_over = False
        self._end(InvalidAnswer("an answer in another protocol than HTTP"))

    # -- what the parser calls -----------------------------------------------------------------

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self.status = self._parser.get_status_code()
        self._head = None

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._is_over = True


def end(transport: asyncio.WriteTransport) -> None:
    """Close it; a side that doesn't read has a moment for what is on its way."""
    is_unsent = transport.get_write_buffer_size() > 0
    transport.close()
    if is_unsent:
        asyncio.get_running_loop().call_later(_END_SECONDS, transport.abort)


_Answer = TypeVar("_Answer", bound=OpenAnswer)


class UpgradedAnswer(OpenAnswer):
    """An answer that may be of status 101. Then its body is what comes after its head, as it is."""

    __slots__ = ("_held", "_is_raw", "_pieces", "headers")

    def __init__(self) -> None:
        super().__init__()
        self._is_raw = False
        self._pieces: list[bytes] | None = None
        """What came after `_body`, apart: joined as it came, each byte was copied three times."""
        self._held = 0
        self.headers: dict[str, str] = {}
        """The answer's headers with their names in lower case, until its reader takes them away."""

    def data_received(self, data: bytes) -> None:
        if self._is_raw:
            if self._error is None:
                self._hold(data)
            return
        super().data_received(data)

    async def read(self, silence: float | None = None) -> bytes:
        body = await super().read(silence)
        if self._is_raw:
            self._held -= len(body)
        if self._pieces:
            self._body = self._pieces.pop(0)
        else:
            self._pieces = None
        return body

    def _hold(self, data: bytes) -> None:
        if not self._is_raw:
            super()._hold(data)
            return
        self._held += len(data)
        if not self._body:
            self._body = data
        elif self._pieces is None:
            self._pieces = [data]
        else:
            self._pieces.append(data)
        self._hold_back(self._held)
        self._wake()

    def begin_again(self) -> None:
        """Expect the answer to another request."""
        self.headers, self.status = {}, 0
        self._head, self._is_over = 0, False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def _upgraded(self, rest: bytes) -> None:
        self._parser = None
        self._is_raw, self._is_over = True, False
        self._hold(rest)


async def open_answer(dial: Dial, host: str, path: str, within: float) -> OpenAnswer:
    """Send a GET request and return its answer, whose head must come `within` so many seconds.

    The caller closes it. Raises OSError, InvalidAnswer.
    """
    return await _opened(OpenAnswer(), dial, _request(host, path, {}), within)


async def open_upgraded(
    dial: Dial, host: str, path: str, headers: Mapping[str, str], within: float
) -> UpgradedAnswer:
    """Do the same as `open_answer` with a request that asks for an upgrade."""
    return await _opened(UpgradedAnswer(), dial, _request(host, path, headers), within)


async def upgrade(
    answer: UpgradedAnswer, host: str, path: str, headers: Mapping[str, str], within: float
) -> None:
    """Do the same on the connection of an answer that was read to its end. Raises OSError also when
    the other side has closed it meanwhile."""
    answer.begin_again()
    async with asyncio.timeout(within):
        answer.send(_request(host, path, headers))
        await answer.read_head()


def _request(host: str, path: str, headers: Mapping[str, str]) -> bytes:
    more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode()


async def _opened(answer: _Answer, dial: Dial, request: bytes, within: float) -> _Answer:
    try:
        await dial(lambda: answer)
        async with asyncio.timeout(within):
            answer.send(request)
            await answer.read_head()
    except BaseException:
        # Also when it is cancelled: nobody else knows this connection yet.
        answer.close()
        raise
    return answer
