"""A terminal for a job that wants one.

The job's session owns it, so that shells with job control and programs that look at their terminal
work. Nobody sits at it: standard input stays empty, and what reads the terminal itself is told that
its input has ended instead of waiting forever.
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from contextlib import suppress

from runner.job.identity import Identity

ROWS, COLUMNS = 24, 80
TERM = "xterm-256color"
_SIZE = struct.Struct("HHHH")
_STDOUT = 1
_ENDS = 64
_END_OF_INPUT = b"\x04"
"""What a new terminal takes for it (VEOF)."""
_ON = struct.pack("i", 1)
_MODE = 0o620


def open_for(identity: Identity | None) -> tuple[int, int]:
    """The side to read from (without blocking) and the job's side. Raises OSError."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, _SIZE.pack(ROWS, COLUMNS, 0, 0))
    _keep_line_ends(theirs)
    if identity is not None:
        os.fchown(theirs, identity.uid, -1)
    os.fchmod(theirs, _MODE)
    os.set_blocking(ours, False)
    fcntl.ioctl(ours, termios.TIOCPKT, _ON)
    _end_input(ours)
    return ours, theirs


def heard(ours: int, packet: bytes) -> bytes:
    """The output in what was read from our side. Who throws unread input away, as programs that ask
    for a password do, must find the end of input anew."""
    kind = packet[0]
    if kind & termios.TIOCPKT_FLUSHREAD:
        _end_input(ours)
    return packet[1:] if kind == termios.TIOCPKT_DATA else b""


def take() -> None:
    """In the new process, leader of a session without a terminal: own the one it writes to."""
    fcntl.ioctl(_STDOUT, termios.TIOCSCTTY, 0)


def _keep_line_ends(fd: int) -> None:
    """A log has no use for carriage returns that the program did not write, nor for an echo."""
    attributes = termios.tcgetattr(fd)
    attributes[1] &= ~termios.ONLCR
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(fd, termios.TCSANOW, attributes)


def _end_input(ours: int) -> None:
    with suppress(BlockingIOError):
        os.write(ours, _END_OF_INPUT * _ENDS)
