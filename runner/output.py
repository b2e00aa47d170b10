"""Moves the job's output from its pipes into the log, as fast as it comes and without threads."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterable

from runner import terminal
from runner.masking import Masker
from runner.schemas.frames import Stream
from runner.segments import SegmentLog

_TAIL = 4096
_READ_SIZE = 256 << 10


class OutputPump:
    """Reads both pipes until each has ended or `close` is called, which it does itself at EOF.
    What `secrets` holds never reaches the log. With `is_terminal`, `stdout` is a terminal's side
    (see `terminal.open_for`) that carries both streams."""

    def __init__(
        self,
        log: SegmentLog,
        stdout: int,
        stderr: int,
        *,
        secrets: Iterable[str] = (),
        is_terminal: bool = False,
    ) -> None:
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._open = {stdout: Stream.STDOUT, stderr: Stream.STDERR}
        self._maskers = {fd: Masker(secrets) for fd in self._open}
        self._terminal = stdout if is_terminal else None
        self._tail_of = Stream.STDOUT if is_terminal else Stream.STDERR
        self._tail = b""
        self._ended = asyncio.Event()
        for fd in self._open:
            self._loop.add_reader(fd, self._read, fd)

    @property
    def stderr_tail(self) -> bytes:
        """The last few KiB of stderr (or of the terminal), secrets masked."""
        return self._tail

    async def wait_ended(self) -> None:
        """Until nobody holds the writing ends any more."""
        await self._ended.wait()

    def close(self) -> None:
        """Takes what lies in the pipes now, at most what they can hold, and stops reading."""
        for fd in tuple(self._open):
            for _ in range(16):
                if fd not in self._open or not self._read(fd):
                    break
            self._forget(fd)

    def _read(self, fd: int) -> bool:
        try:
            data = os.read(fd, _READ_SIZE)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = b""  # a terminal that nobody holds any more
        if not data:
            self._forget(fd)
            return False
        if len(data) == _READ_SIZE:
            self._log.pacing.press()
        if fd == self._terminal:
            data = terminal.heard(fd, data)
        self._take(self._open[fd], self._maskers[fd].feed(data))
        return True

    def _take(self, stream: Stream, data: bytes) -> None:
        if stream is self._tail_of:
            self._tail = (self._tail + data)[-_TAIL:]
        if data:
            self._log.append(stream, data)

    def _forget(self, fd: int) -> None:
        stream = self._open.pop(fd, None)
        if stream is None:
            return
        self._take(stream, self._maskers.pop(fd).rest())
        self._loop.remove_reader(fd)
        os.close(fd)
        if not self._open:
            self._ended.set()
