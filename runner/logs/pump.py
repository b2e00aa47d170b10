"""Reads a job's pipes into its log while it prints.

What comes after a silence is read at once. A job that prints all the time is read once in a
millisecond: woken for each of its writes, the runner and the job pay for that with CPU time, and
all that read the log later get it in small frames.
"""

from __future__ import annotations

import asyncio
from math import inf

from runner.logs.output import Output

GATHERING = 0.001
"""Seconds for which the output of a busy pipe gathers. A pipe is busy when two pieces of it come
in a shorter time."""
ALONE = 1.0
"""Seconds without output after which a pipe does not hinder the other one's gathering. While both
are written, each piece is read as it comes: only so do they stay in the job's order."""


class OutputPump:
    """Reads both pipes until each has ended or `close` is called."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._read_at = dict.fromkeys(output.open, -inf)
        self._gathering: tuple[int, asyncio.TimerHandle] | None = None
        """The pipe that is read when its time is over, not when it has something."""
        output.before_close = self._forget
        for fd in output.open:
            self._loop.add_reader(fd, self._read, fd)
        self._look_for_the_end()

    async def wait_ended(self) -> None:
        """Wait until no process holds the writing ends."""
        await self._ended.wait()

    def close(self) -> None:
        """Read what is in the pipes now, at most what they can hold, and stop."""
        for fd in self._output.open:
            # Not until it is empty: a process that escaped the kill may write as fast as this
            # reads.
            for _ in range(16):
                if not self._output.take(fd):
                    break
            self._output.close(fd)
        self._look_for_the_end()

    def _read(self, fd: int) -> None:
        if self._gathering is not None:
            # Most of what the other pipe has is older.
            self._output.take(self._gathering[0])
            self._stop_gathering()
        now, before = self._loop.time(), self._read_at[fd]
        size = self._output.take(fd)
        if size:
            self._read_at[fd] = now
        if now - before < GATHERING and self._may_gather(fd, size, now):
            self._loop.remove_reader(fd)
            self._gather(fd)
        self._look_for_the_end()

    def _may_gather(self, fd: int, size: int, now: float) -> bool:
        """Return whether the job, which has just written `size`, would neither have to wait for us
        nor lose the order of its pipes."""
        others = (at for other, at in self._read_at.items() if other != fd)
        return 0 < size < self._output.room(fd) and all(now - at >= ALONE for at in others)

    def _gather(self, fd: int) -> None:
        self._gathering = fd, self._loop.call_later(GATHERING, self._read_gathered)

    def _read_gathered(self) -> None:
        """Read what has gathered, and go on so until nothing has."""
        assert self._gathering is not None
        fd, _ = self._gathering
        size, now = self._output.take(fd), self._loop.time()
        if self._may_gather(fd, size, now):
            self._read_at[fd] = now
            self._gather(fd)
        else:
            self._stop_gathering()
        self._look_for_the_end()

    def _stop_gathering(self) -> None:
        """Read the pipe again whenever it has something."""
        if self._gathering is not None:
            (fd, timer), self._gathering = self._gathering, None
            timer.cancel()
            self._loop.add_reader(fd, self._read, fd)

    def _forget(self, fd: int) -> None:
        if self._gathering is not None and self._gathering[0] == fd:
            self._stop_gathering()
        del self._read_at[fd]
        # The number of a closed descriptor is soon that of another file.
        self._loop.remove_reader(fd)

    def _look_for_the_end(self) -> None:
        if not self._output.open:
            self._ended.set()
