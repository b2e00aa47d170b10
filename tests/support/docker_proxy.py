"""A way to dockerd on which an answer can be lost after its act was done."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from tests.support.waiting import LONG

T = TypeVar("T")
_CHUNK = 1 << 16


class LossyDocker:
    """Forwards a unix socket to dockerd's. `lose(act)` takes away the answer to the next request
    whose first line holds `act`, such as `/containers/create`, together with the connection."""

    def __init__(self, path: Path, target: Path) -> None:
        self.url = f"unix://{path}"
        self.lost: list[str] = []
        self._target = target
        self._act: bytes | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lossy docker")
        self._thread.start()
        self._server = self._do(asyncio.start_unix_server(self._forward, str(path)))

    def lose(self, act: str) -> None:
        self._act = act.encode()

    def close(self) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LONG)

    async def _end(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=LONG)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target_reader, target_writer = await asyncio.open_unix_connection(str(self._target))
        losing = asyncio.Event()
        try:
            await asyncio.gather(
                self._requests(reader, target_writer, losing),
                self._answers(target_reader, writer, losing),
            )
        finally:
            for each in (writer, target_writer):
                each.close()

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, losing: asyncio.Event
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                line = data.partition(b"\r\n")[0]
                if self._act is not None and self._act in line:
                    self._act = None
                    self.lost.append(line.decode())
                    losing.set()
                writer.write(data)
                await writer.drain()
            writer.write_eof()

    async def _answers(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, losing: asyncio.Event
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                if losing.is_set():
                    writer.transport.abort()
                    return
                writer.write(data)
                await writer.drain()
        writer.close()
