"""One of two sockets whose bytes are passed on unread.

Callbacks, not streams: a stream that only waits is held by nothing once its other direction has
ended, and the garbage collector takes the connection away; and each piece costs half as much CPU.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import cast

BUFFER_BYTES = 1 << 20
"""An end that has so much to write makes the other one pause."""


class RelayEnd(asyncio.Protocol):
    """One of two sockets. Its input goes to the other, and it reads no faster than that one
    writes."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: RelayEnd | None = None
        self.has_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # those of uvloop are no subclass
        self.transport.set_write_buffer_limits(high=BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.write(data)

    def eof_received(self) -> bool:
        self.has_ended = True
        other = self.other
        if other is None:
            return False
        # A client may end its own direction and wait for the answer (shutdown(2)).
        other.write_eof()
        if other.has_ended:
            self.close()
            other.close()
        return True

    def pause_writing(self) -> None:
        # What is not read here fills the socket's buffer, and so slows the sender down (tcp(7)).
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        other, self.other = self.other, None
        if other is None:
            return
        # A reset stays a reset: the other side must not take what it got for all.
        if exc is None:
            other.close()
        else:
            other.abort()

    def write(self, data: bytes) -> None:
        # asyncio warns in the log of writes to a connection that is lost.
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def write_eof(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            # asyncio calls shutdown(2) at once, which fails once the peer has reset (ENOTCONN).
            with suppress(OSError):
                self.transport.write_eof()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()
