"""Requests to one daemon, whose connections are kept for a moment for the next one.

A controller makes two of them for each job that it starts. By aiohttp one costs it twice the CPU
time; a loss of that shows in the row "runs submitted and placed beside the nodes" of
`./dev bench scale`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote

from common.open_answers import Dial, InvalidAnswer, OpenAnswer

IDLE_SECONDS = 2.0
"""An unused connection is kept for this time: each costs a file here and a process on the node."""
_REPEATABLE = frozenset(("GET", "PUT", "DELETE"))
"""Methods of which a second request changes nothing more (RFC 9110, 9.2.2)."""
_PLAIN = re.compile(r"[A-Za-z0-9/_.?=&-]+")
_KEPT_IN_PATHS = "/?=&%:@"


class Answer(NamedTuple):
    status: int
    body: bytes


class KeptAnswer(OpenAnswer):
    """The answers to requests on one connection, one after the other."""

    __slots__ = ("_is_last", "has_begun")

    def __init__(self) -> None:
        super().__init__()
        self._is_last = False
        self.has_begun = False
        """Whether any byte of the present answer came."""

    @property
    def is_usable(self) -> bool:
        """Whether the last answer is read and another request may follow."""
        return (
            self._is_over
            and not (self._is_last or self._body or self._error)
            and self._transport is not None
            and not self._transport.is_closing()
            # A daemon may answer before it has the whole request, and need not read the rest.
            and not self._transport.get_write_buffer_size()
        )

    def ask(self, request: bytes) -> None:
        """Send the request, of any size; a lost connection is told to the reader."""
        self._begin_again()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(request)

    async def read_whole(self, most: int) -> bytes:
        """Return the body. Raises OSError; InvalidAnswer for one of more than `most` bytes."""
        await self.read_head()
        body = await self.read()
        if self._is_over and not self._body and len(body) <= most:
            return body
        whole = bytearray(body)
        while piece := await self.read():
            whole += piece
            if len(whole) > most:
                break
        if len(whole) > most:
            raise InvalidAnswer(f"an answer of more than {most} bytes")
        return bytes(whole)

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            # Its other side says what nobody has asked for: this is no connection to go on with.
            self._is_last = True
            return
        self.has_begun = True
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(ConnectionResetError("the connection was lost"))

    def _hold_back(self, held: int) -> None:
        # Nobody reads on after a whole answer, and the loss of its connection must be noticed.
        if not self._is_over:
            super()._hold_back(held)

    def on_message_begin(self) -> None:
        if self._is_over:
            raise InvalidAnswer("more than the answer")  # in the same piece; the parser stops here

    def on_message_complete(self) -> None:
        # An interim answer, after which the one that was asked for comes (RFC 9110, 15.2).
        if self.status < 200:
            self.status, self._head = 0, 0
            return
        super().on_message_complete()
        # The parser forgets it with the end of the message.
        self._is_last = self._parser is None or not self._parser.should_keep_alive()

    def _begin_again(self) -> None:
        self.status, self._head = 0, 0
        self._is_over = self.has_begun = False


class KeptConnections:
    """Connections to the daemon to which `dial` leads. It opens more when it is asked at once."""

    def __init__(self, dial: Dial, host: str) -> None:
        self._dial = dial
        self._host = host
        self._idle: list[tuple[float, KeptAnswer]] = []
        """Each with the time until which it is kept, on the clock of the event loop."""
        self._timer: asyncio.TimerHandle | None = None

    async def ask(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        within: float,
        most: int,
    ) -> Answer:
        """Return the answer, which must come `within` so many seconds and have at most `most`
        bytes. Raises OSError, InvalidAnswer."""
        request = _request(method, path, self._host, headers or {}, body)
        async with asyncio.timeout(within):
            answer, content = await self._exchange(method, request, most)
        if answer.is_usable:
            self._keep(answer)
        else:
            answer.close()
        return Answer(answer.status, content)

    async def open(self, path: str, within: float) -> OpenAnswer:
        """Return the answer to a GET request, whose head must come `within` so many seconds. The
        caller closes it. Raises OSError, InvalidAnswer."""
        async with asyncio.timeout(within):
            return (await self._exchange("GET", _request("GET", path, self._host, {}, None)))[0]

    async def _exchange(
        self, method: str, request: bytes, most: int | None = None
    ) -> tuple[KeptAnswer, bytes]:
        """Return the answer and its body; without `most` only the head is read."""
        if (kept := self._take()) is not None:
            try:
                return await _asked(kept, request, most)
            # Its daemon may have closed it in this moment, which says nothing about the next one.
            except OSError:
                if kept.has_begun or method not in _REPEATABLE:
                    raise
        answer = KeptAnswer()
        try:
            await self._dial(lambda: answer)
        except BaseException:
            answer.close()
            raise
        return await _asked(answer, request, most)

    def _take(self) -> KeptAnswer | None:
        while self._idle:
            _, kept = self._idle.pop()
            if kept.is_usable:
                return kept
            kept.close()
        return None

    def _keep(self, answer: KeptAnswer) -> None:
        loop = asyncio.get_running_loop()
        self._idle.append((loop.time() + IDLE_SECONDS, answer))
        if self._timer is None:
            self._timer = loop.call_later(IDLE_SECONDS, self._close_old)

    def _close_old(self) -> None:
        self._timer, loop = None, asyncio.get_running_loop()
        now = loop.time()
        for until, kept in self._idle:
            if until <= now or not kept.is_usable:
                kept.close()
        self._idle = [one for one in self._idle if one[1].is_usable]
        if self._idle:
            self._timer = loop.call_later(self._idle[0][0] - now, self._close_old)


async def _asked(answer: KeptAnswer, request: bytes, most: int | None) -> tuple[KeptAnswer, bytes]:
    try:
        answer.ask(request)
        if most is None:
            await answer.read_head()
            return answer, b""
        return answer, await answer.read_whole(most)
    except BaseException:
        # Also when it is cancelled: what comes now belongs to no later request.
        answer.close()
        raise


def _request(
    method: str, path: str, host: str, headers: Mapping[str, str], body: bytes | None
) -> bytes:
    # A line break in a name of a user's would begin a header, or a request, of its own.
    if not _PLAIN.fullmatch(path):
        path = quote(path, safe=_KEPT_IN_PATHS)
    if not all(map(str.isprintable, headers.values())):
        raise ValueError("a header with a line break")
    more = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    size = "" if body is None and method == "GET" else f"Content-Length: {len(body or b'')}\r\n"
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{more}{size}\r\n".encode()
    return head if body is None else head + body
