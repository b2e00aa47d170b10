"""What comes out of the job's pipes and goes into the log, secrets left out.

It does nothing by itself: whoever waits for the pipes calls `take` (`pump.OutputPump` in the loop).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable

from runner import terminal
from runner.masking import Masker
from runner.schemas.frames import Stream
from runner.segments import SegmentLog

_TAIL = 4096
_READ_SIZE = 256 << 10


class Output:
    """Owns both pipes. What `secrets` holds never reaches the log. With `is_terminal`, `stdout` is
    a terminal's side (see `terminal.open_for`) that carries both streams."""

    def __init__(
        self,
        log: SegmentLog,
        stdout: int,
        stderr: int,
        *,
        secrets: Iterable[str] = (),
        is_terminal: bool = False,
    ) -> None:
        self.before_close: Callable[[int], object] = _ignore
        self._log = log
        self._open = {stdout: Stream.STDOUT, stderr: Stream.STDERR}
        self._maskers = {fd: Masker(secrets) for fd in self._open}
        self._terminal = stdout if is_terminal else None
        self._tail_of = Stream.STDOUT if is_terminal else Stream.STDERR
        self._tail = b""

    @property
    def open(self) -> tuple[int, ...]:
        """Those of the two that have not come to their end."""
        return tuple(self._open)

    @property
    def stderr_tail(self) -> bytes:
        """The last few KiB of stderr (or of the terminal), secrets masked."""
        return self._tail

    def take(self, fd: int) -> bool:
        """A piece of what lies in this pipe; False when it is empty, or has ended and is closed."""
        try:
            data = os.read(fd, _READ_SIZE)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = b""  # a terminal that nobody holds any more
        if not data:
            self.close(fd)
            return False
        if len(data) == _READ_SIZE:
            self._log.pacing.press()
        if fd == self._terminal:
            data = terminal.heard(fd, data)
        self._append(self._open[fd], self._maskers[fd].feed(data))
        return True

    def close(self, fd: int) -> None:
        """Repeatable. What was held back because it might have become a secret goes out."""
        stream = self._open.pop(fd, None)
        if stream is None:
            return
        self._append(stream, self._maskers.pop(fd).rest())
        self.before_close(fd)
        os.close(fd)

    def _append(self, stream: Stream, data: bytes) -> None:
        if stream is self._tail_of:
            self._tail = (self._tail + data)[-_TAIL:]
        if data:
            self._log.append(stream, data)


def _ignore(_: int) -> None:
    pass
