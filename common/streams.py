"""Byte streams to a port, with and without SSH between."""

from __future__ import annotations

from typing import Protocol

import msgspec


class SocketUnreachable(OSError):
    """A daemon's socket cannot be reached; the message names it."""


class StreamReader(Protocol):
    """The common part of `asyncio` and `asyncssh` readers."""

    async def read(self, n: int = -1, /) -> bytes: ...
    def at_eof(self) -> bool:
        """Return whether the other side has ended, and all that it sent was read."""


class StreamWriter(Protocol):
    def write(self, data: bytes, /) -> None: ...
    async def drain(self) -> None: ...
    def write_eof(self) -> None: ...
    def close(self) -> None: ...


class PortStream(msgspec.Struct, frozen=True):
    """A connection to a port of a job. `writer.write_eof` ends one direction only."""

    reader: StreamReader
    writer: StreamWriter
    first: bytes = b""
    """The job's first bytes, sent before `reader` is used."""
