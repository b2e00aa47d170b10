"""A plain stream to a unix socket on the far side of an SSH connection, for what is no HTTP.

Whatever goes wrong with the channel is an OSError, as with a socket of this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import asyncssh

from controller.links.channel import CHANNEL_ERRORS, as_os_error

_WINDOW_BYTES = 4 << 20


async def open_stream(
    ssh: asyncssh.SSHClientConnection, path: str, heard: Callable[[], None] = lambda: None
) -> tuple[ChannelReader, ChannelWriter]:
    """`heard` is called whenever bytes came. Raises OSError."""
    with _os_errors():
        reader, writer = await ssh.open_unix_connection(path, window=_WINDOW_BYTES)
    return ChannelReader(reader, heard), ChannelWriter(writer)


class ChannelReader:
    def __init__(self, reader: asyncssh.SSHReader[bytes], heard: Callable[[], None]) -> None:
        self._reader = reader
        self._heard = heard

    async def read(self, n: int = -1, /) -> bytes:
        with _os_errors():
            data = await self._reader.read(n)
        if data:
            self._heard()
        return data


class ChannelWriter:
    def __init__(self, writer: asyncssh.SSHWriter[bytes]) -> None:
        self._writer = writer

    def write(self, data: bytes, /) -> None:
        with _os_errors():
            self._writer.write(data)

    async def drain(self) -> None:
        with _os_errors():
            await self._writer.drain()

    def write_eof(self) -> None:
        with _os_errors():
            self._writer.write_eof()

    def close(self) -> None:
        self._writer.close()


@contextmanager
def _os_errors() -> Iterator[None]:
    try:
        yield
    except CHANNEL_ERRORS as error:
        raise as_os_error(error) from error
