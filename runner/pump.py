"""Moves the job's output from its pipes into the log, as fast as it comes and without threads."""

from __future__ import annotations

import asyncio

from runner.output import Output


class OutputPump:
    """Reads both pipes until each has ended or `close` is called."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        output.before_close = loop.remove_reader
        for fd in output.open:
            loop.add_reader(fd, self._read, fd)
        self._look_for_the_end()

    async def wait_ended(self) -> None:
        """Until nobody holds the writing ends any more."""
        await self._ended.wait()

    def close(self) -> None:
        """Takes what lies in the pipes now, at most what they can hold, and stops reading."""
        for fd in self._output.open:
            for _ in range(16):
                if not self._output.take(fd):
                    break
            self._output.close(fd)
        self._look_for_the_end()

    def _read(self, fd: int) -> None:
        self._output.take(fd)
        self._look_for_the_end()

    def _look_for_the_end(self) -> None:
        if not self._output.open:
            self._ended.set()
