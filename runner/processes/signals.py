"""Signals of this process, heard in its event loop.

asyncio does the same, and first looks whether the function is a coroutine's. For that it loads
`inspect` with what that imports: 3 of a runner's 55 ms of CPU time (`python -m bench.runner_start`
of a built runtime).
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

_READ_BYTES = 4096


class Signals:
    """Calls functions in the running loop when signals come. Make it in the main thread; there can
    be one in a process, and none next to signal handlers of the loop itself."""

    def __init__(self) -> None:
        self._acts: dict[int, Callable[[], object]] = {}
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read, self._hear)
        # A full pipe has told enough: it is read to its end, and a signal may come many times.
        self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def on(self, number: signal.Signals, act: Callable[[], object]) -> None:
        """Call `act` whenever this signal comes, from now on."""
        self._acts[number] = act
        # The interpreter tells the pipe of signals that have a handler in Python alone.
        signal.signal(number, _told_by_the_pipe)
        # A system call that it interrupts goes on (signal(7)).
        signal.siginterrupt(number, False)

    def close(self) -> None:
        """Leave these signals to their defaults."""
        for number in self._acts:
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(self._before)
        self._loop.remove_reader(self._read)
        os.close(self._read)
        os.close(self._write)

    def _hear(self) -> None:
        came = b""
        with suppress(BlockingIOError):
            came = os.read(self._read, _READ_BYTES)
        # One call for each kind of signal, as the kernel merges those that wait.
        for number in dict.fromkeys(came):
            if (act := self._acts.get(number)) is not None:
                # Not here: one that fails would lose the others of this read.
                self._loop.call_soon(act)


def _told_by_the_pipe(number: int, frame: FrameType | None) -> None:
    """Do nothing: the interpreter has written the signal's number into the pipe."""
