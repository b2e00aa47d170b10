"""One pseudo-terminal between a visitor and a program."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import struct
import termios
from collections.abc import Callable, Iterator

import asyncssh

from runner.processes.spawn import Child, Ending

_CHUNK = 1 << 16
_END_OF_FILE = b"\x04"
_LAST_WORDS_SECONDS = 0.05
"""Output that a program wrote just before its end may need this long to pass the kernel."""


class Terminal:
    def __init__(self, size: tuple[int, int, int, int]) -> None:
        self._master, self.slave = os.openpty()
        os.set_blocking(self._master, False)
        self.name = os.ttyname(self.slave)
        self.resize(size)

    def take(self) -> None:
        """Own the terminal, in the child before it becomes the program: standard input is the
        slave."""
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def resize(self, size: tuple[int, int, int, int]) -> None:
        width, height, pixel_width, pixel_height = size
        packed = struct.pack("HHHH", height or 24, width or 80, pixel_width, pixel_height)
        # The client may resize its window after the program has ended, and the terminal is closed.
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, packed)

    def close_slave(self) -> None:
        if self.slave >= 0:
            os.close(self.slave)
            self.slave = -1

    def close(self) -> None:
        """Hang up: processes that still have the terminal get SIGHUP."""
        self.close_slave()
        if self._master >= 0:
            os.close(self._master)
            self._master = -1

    async def carry(self, process: asyncssh.SSHServerProcess[bytes], child: Child) -> bool:
        """Carry both directions until the program has ended and all is said (True), or the visitor
        is gone."""
        pumping = asyncio.create_task(self._pump(process.stdout, child.ended))
        feeding = asyncio.create_task(self._feed(process, child))
        try:
            await asyncio.wait({pumping, feeding}, return_when=asyncio.FIRST_COMPLETED)
            if feeding.done() and process.is_closing():
                return False
            await pumping
            return True
        finally:
            pumping.cancel()
            feeding.cancel()
            await asyncio.wait({pumping, feeding})

    async def _pump(self, writer: asyncssh.SSHWriter[bytes], ended: asyncio.Future[Ending]) -> None:
        # The read ends with EIO once no process has the terminal any more.
        with contextlib.suppress(OSError, asyncssh.Error):
            while True:
                try:
                    data = os.read(self._master, _CHUNK)
                except BlockingIOError:
                    if await self._more_to_read(ended):
                        continue
                    return
                if not data:
                    return
                writer.write(data)
                await writer.drain()

    async def _feed(self, process: asyncssh.SSHServerProcess[bytes], child: Child) -> None:
        while True:
            try:
                data = await process.stdin.read(_CHUNK)
            except asyncssh.TerminalSizeChanged as changed:
                self.resize(changed.term_size)
                continue
            except asyncssh.SignalReceived as received:
                # A client may send any name (RFC 4254, 6.9); signal 0 does nothing (kill(2)).
                child.signal_group(getattr(signal, f"SIG{received.signal}", 0))
                continue
            # A pseudo-terminal has no serial line that could be broken (tcsendbreak(3)).
            except asyncssh.BreakReceived:
                continue
            except (OSError, asyncssh.Error):
                data = b""
            if not data and process.is_closing():
                return
            # A terminal has no half-close: the end of input is a character.
            await self._write(data or _END_OF_FILE)
            if not data:
                return

    async def _more_to_read(self, ended: asyncio.Future[Ending]) -> bool:
        """Return False when the program has ended and no more output came."""
        loop = asyncio.get_running_loop()
        with _watched(loop.add_reader, loop.remove_reader, self._master) as readable:
            if not ended.done():

                def wake(_: asyncio.Future[Ending]) -> None:
                    readable.set()

                ended.add_done_callback(wake)
                try:
                    await readable.wait()
                finally:
                    ended.remove_done_callback(wake)
                return True
            with contextlib.suppress(TimeoutError):
                # What children of the program still have in their buffers comes after its end.
                async with asyncio.timeout(_LAST_WORDS_SECONDS):
                    await readable.wait()
            return readable.is_set()

    async def _write(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        while data:
            try:
                data = data[os.write(self._master, data) :]
            except BlockingIOError:
                # The program does not read, and the terminal's buffer is full (pty(7)).
                with _watched(loop.add_writer, loop.remove_writer, self._master) as writable:
                    await writable.wait()
            except OSError:
                return


@contextlib.contextmanager
def _watched(
    add: Callable[..., object], remove: Callable[[int], object], descriptor: int
) -> Iterator[asyncio.Event]:
    event = asyncio.Event()
    add(descriptor, event.set)
    try:
        yield event
    finally:
        remove(descriptor)
