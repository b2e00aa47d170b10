"""A terminal for a job that wants one.

The job's session owns it, so shells with job control and programs that look at their terminal work.
No user types into it: standard input stays empty, and a program that reads the terminal gets an end
of input instead of waiting forever.

`termios` is a library that only such jobs load.
"""

from __future__ import annotations

import fcntl
import os
import struct
from contextlib import suppress

from runner.processes.identity import Identity

ROWS, COLUMNS = 24, 80
TERM = "xterm-256color"
_SIZE = struct.Struct("HHHH")
_STDOUT = 1
# Each read(2) at the end of input takes one of them, and a program may read again.
_ENDS = 64
_END_OF_INPUT = b"\x04"
"""The character for the end of input in a new terminal (VEOF)."""
_ON = struct.pack("i", 1)
_MODE = 0o620


def open_for(identity: Identity | None) -> tuple[int, int]:
    """Return the side to read from (without blocking) and the job's side. Raises OSError."""
    import termios

    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, _SIZE.pack(ROWS, COLUMNS, 0, 0))
    _keep_line_ends(theirs)
    if identity is not None:
        os.fchown(theirs, identity.uid, -1)
    # The mode that grantpt(3) gives a terminal.
    os.fchmod(theirs, _MODE)
    os.set_blocking(ours, False)
    # Packets tell when a program discards its input (ioctl_tty(2), TIOCPKT).
    fcntl.ioctl(ours, termios.TIOCPKT, _ON)
    _end_input(ours)
    return ours, theirs


def output_of(ours: int, packet: bytes) -> bytes:
    """Return the output in what was read from our side.

    A program that discards unread input, as password prompts do, must find the end of input again.
    """
    import termios

    kind = packet[0]
    if kind & termios.TIOCPKT_FLUSHREAD:
        _end_input(ours)
    return packet[1:] if kind == termios.TIOCPKT_DATA else b""


def take() -> None:
    """Own the terminal, in the new process: it leads a session without a terminal."""
    import termios

    fcntl.ioctl(_STDOUT, termios.TIOCSCTTY, 0)


def _keep_line_ends(fd: int) -> None:
    """Turn off added carriage returns and the echo: a log does not need them."""
    import termios

    attributes = termios.tcgetattr(fd)
    attributes[1] &= ~termios.ONLCR
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(fd, termios.TCSANOW, attributes)


def _end_input(ours: int) -> None:
    # The buffer is full of input that nobody reads (pty(7)).
    with suppress(BlockingIOError):
        os.write(ours, _END_OF_INPUT * _ENDS)
