"""Heartbeats that say again what the last one said, taken where they arrive.

Each of thousands of nodes sends one every few seconds. What it costs to lead it through aiohttp's
parser and streams to a task that throws it away is most of what a controller at rest costs; so one
whose bytes are known only counts as heard. aiohttp has no public hook for a protocol of one's own:
`pyproject.toml` pins the minor version and tests/unit/links keep it honest.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler

from controller.links.losses import PacedHandler

_LONGEST = 1024


class _Messages(list[Any]):
    """In place of a deque, which has room for 64 answers from the start: one comes at a time."""

    __slots__ = ()

    def popleft(self) -> Any:
        return self.pop(0)


class HeartbeatHandler(PacedHandler):
    """aiohttp's, until somebody has `expect`ed a line. From then on a piece of the stream that is
    that line alone, once more, goes no further: `heard` is called and nobody wakes.

    Only a whole chunk of the HTTP stream that follows a whole one can be such a piece: whatever
    else arrives, a part of one too, is aiohttp's, and nothing is expected after it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, heard: Callable[[], None]) -> None:
        super().__init__(loop)
        self._buffer = cast("deque[Any]", _Messages())
        self._heard = heard
        self._last = b""
        self._expected: bytes | None = None

    def data_received(self, data: bytes) -> None:
        if data == self._expected:
            self._reschedule_timeout()
            self._heard()
            return
        if data:  # without any, aiohttp goes on with what it has
            self._expected = None
            self._last = data if len(data) <= _LONGEST else b""
        super().data_received(data)

    def set_parser(
        self, parser: Any, payload: Any, data_received_cb: Callable[[], None] | None = None
    ) -> None:
        """Of a WebSocket: nothing on this connection will be HTTP any more."""
        super().set_parser(parser, payload, data_received_cb)
        self._parser = None

    def expect(self, line: bytes) -> None:
        """`line`: read from the stream just now, with nothing left behind it. It is of a kind that
        has no `\\r` and is no news when it comes again."""
        if self._last == b"%x\r\n%b\r\n" % (len(line), line):
            self._expected = self._last


def use_heartbeat_handlers(connector: aiohttp.BaseConnector, heard: Callable[[], None]) -> None:
    """For all connections that this connector will open."""
    loop = asyncio.get_running_loop()
    connector._factory = cast("partial[ResponseHandler]", partial(HeartbeatHandler, loop, heard))


def expect(response: aiohttp.ClientResponse, line: bytes) -> None:
    """See `HeartbeatHandler.expect`; without effect on a connection of another kind."""
    protocol = None if response.connection is None else response.connection.protocol
    if isinstance(protocol, HeartbeatHandler):
        protocol.expect(line)
