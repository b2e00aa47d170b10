"""Notices that the machine at the other end of a connection is gone."""

from __future__ import annotations

import contextlib
import socket

GONE_SECONDS = 3
"""The machine counts as gone when its kernel was silent for so long: a busy process answers here
all the same."""
_OPTIONS = (
    ("TCP_KEEPIDLE", 1),
    ("TCP_KEEPINTVL", 1),
    ("TCP_KEEPCNT", GONE_SECONDS),
    # Keepalives are not sent while data waits for its acknowledgement (tcp(7)).
    ("TCP_USER_TIMEOUT", GONE_SECONDS * 1000),
)


def notice_the_gone(connection: socket.socket) -> None:
    """Let reads and writes fail (TimeoutError) when the other machine is gone. Without this, they
    wait for hours (tcp(7))."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS:
        # Not all systems have all of them.
        if (option := getattr(socket, name, None)) is not None:
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
