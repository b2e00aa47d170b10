"""A network that can be cut: a TCP proxy in front of a real daemon."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from tests.support.waiting import LONG

T = TypeVar("T")
_CHUNK = 256 * 1024


class CuttableProxy:
    """Forwards 127.0.0.1:`port` to a local port, from a thread of its own.

    `cut` resets all connections and new ones until `restore`; `stall` lets them stand but moves
    no byte, as an unplugged cable does.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_cut = False
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")
        self._thread.start()
        self._server = self._do(asyncio.start_server(self._forward, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.connections = 0
        """How many were accepted so far, those that were reset at once not counted."""
        self.refused = 0
        """How many were reset at once."""

    def cut(self) -> None:
        self._do(self._cut())

    def stall(self) -> None:
        self._do(self._stall())

    def restore(self) -> None:
        self._is_cut = False
        self._loop.call_soon_threadsafe(self._flowing.set)

    def close(self) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LONG)

    async def _cut(self) -> None:
        self._is_cut = True
        for writer in list(self._writers):
            _reset(writer)

    async def _stall(self) -> None:
        self._flowing.clear()

    async def _close(self) -> None:
        self._server.close()
        await self._cut()
        self._flowing.set()
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=LONG)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            self.refused += 1
            _reset(writer)
            return
        self.connections += 1
        target = await asyncio.open_connection("127.0.0.1", self._target_port)
        ends = {writer, target[1]}
        if self._was_cut():
            for end in ends:
                _reset(end)
            return
        self._writers |= ends
        try:
            await asyncio.gather(self._pump(reader, target[1]), self._pump(target[0], writer))
        finally:
            self._writers -= ends
            for end in ends:
                end.close()

    def _was_cut(self) -> bool:
        """Meanwhile: what was seen before a wait is not taken for granted after it."""
        return self._is_cut

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    """A peer sees ECONNRESET, not the end of the stream: linger 0 makes the kernel say so."""
    connection = writer.get_extra_info("socket")
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
