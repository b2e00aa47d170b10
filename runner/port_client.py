"""How a stream to the runner's socket becomes a stream to a port of its job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

_MAX_HEAD = 8192
_MAX_BODY = 64 << 10
_END_OF_HEAD = b"\r\n\r\n"


class StreamReader(Protocol):
    """What `asyncio` and `asyncssh` readers have in common."""

    async def read(self, n: int = -1, /) -> bytes: ...


class StreamWriter(Protocol):
    def write(self, data: bytes, /) -> None: ...
    async def drain(self) -> None: ...
    def write_eof(self) -> None: ...
    def close(self) -> None: ...


class PortStream(msgspec.Struct, frozen=True):
    """A connection to a port of the job. `writer.write_eof` ends one direction only."""

    reader: StreamReader
    writer: StreamWriter
    first: bytes = b""
    """What the job said before it was first read from `reader`."""


Dial = Callable[[], Awaitable[tuple[StreamReader, StreamWriter]]]
"""A fresh stream to the runner's socket. Raises OSError."""


class Answer(msgspec.Struct, frozen=True):
    status: int
    rest: bytes


async def ask(reader: StreamReader, writer: StreamWriter, port: int) -> Answer:
    """`rest` is what came after the head: the body of an error, or the job's first bytes. Raises
    OSError, ValueError for an answer that is none."""
    writer.write(f"CONNECT /v1/ports/{port} HTTP/1.1\r\nHost: runner\r\n\r\n".encode())
    await writer.drain()
    received = await _read_to(reader, b"", _END_OF_HEAD, _MAX_HEAD)
    head, end, rest = received.partition(_END_OF_HEAD)
    words = head.split(b"\r\n", 1)[0].split(b" ", 2)
    if not end or len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise ValueError("not an answer of a runner")
    status = int(words[1])
    if status != 200:
        rest = await _read_to(reader, rest, None, _MAX_BODY)
    return Answer(status, rest)


async def _read_to(reader: StreamReader, data: bytes, end: bytes | None, most: int) -> bytes:
    while (end is None or end not in data) and len(data) < most:
        more = await reader.read(most)
        if not more:
            break
        data += more
    return data
