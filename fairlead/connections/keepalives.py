"""Notices that the machine at the other end of a connection is gone."""

from __future__ import annotations

import contextlib
import socket

GONE_SECONDS = 3
"""The machine counts as gone when its kernel was silent for so long: a busy process answers here
all the same."""


def notice_the_gone(connection: socket.socket, seconds: int = GONE_SECONDS) -> None:
    """Let reads and writes fail (TimeoutError) when the other machine was silent for so long.
    Without this, reads wait for ever, and Linux repeats what was sent for a quarter of an hour
    (tcp(7), tcp_retries2)."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    third = seconds // 3
    for name, value in (
        ("TCP_KEEPIDLE", third),
        ("TCP_KEEPINTVL", third),
        ("TCP_KEEPCNT", 3),
        # Keepalives are not sent while data waits for its acknowledgement (tcp(7)).
        ("TCP_USER_TIMEOUT", seconds * 1000),
    ):
        # Not all systems have all of them.
        if (option := getattr(socket, name, None)) is not None:
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
