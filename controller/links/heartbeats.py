"""Heartbeats that repeat the last one are handled where they arrive.

Each of thousands of nodes sends one every few seconds. To pass it through aiohttp's parser and
streams to a task that drops it would be most of the work of a controller at rest. So a heartbeat
with known bytes only counts as heard. aiohttp has no public hook for an own protocol:
`pyproject.toml` pins the minor version, and tests/unit/links check the assumption.
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
    """Replaces a deque, which has room for 64 answers from the start: only one comes at a time."""

    __slots__ = ()

    def popleft(self) -> Any:
        return self.pop(0)


class HeartbeatHandler(PacedHandler):
    """aiohttp's handler until a line is `expect`ed.

    From then on, a piece of the stream that is only that line goes no further: `heard` is called
    and no task wakes. Such a piece is a whole chunk of the HTTP stream that follows a whole one.
    Everything else, a part of a chunk included, goes to aiohttp, and nothing is expected after it.
    """

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
        """Set the parser of a WebSocket: nothing on this connection is HTTP any more."""
        super().set_parser(parser, payload, data_received_cb)
        self._parser = None

    def expect(self, line: bytes) -> None:
        """Expect this line again.

        It was read from the stream just now, with nothing left after it. It has no `\\r`, and its
        repetition tells nothing new.
        """
        if self._last == b"%x\r\n%b\r\n" % (len(line), line):
            self._expected = self._last


def use_heartbeat_handlers(connector: aiohttp.BaseConnector, heard: Callable[[], None]) -> None:
    """Use the handler for all connections that this connector will open."""
    loop = asyncio.get_running_loop()
    connector._factory = cast("partial[ResponseHandler]", partial(HeartbeatHandler, loop, heard))


def expect(response: aiohttp.ClientResponse, line: bytes) -> None:
    """See `HeartbeatHandler.expect`; it has no effect on a connection of another kind."""
    protocol = None if response.connection is None else response.connection.protocol
    if isinstance(protocol, HeartbeatHandler):
        protocol.expect(line)
