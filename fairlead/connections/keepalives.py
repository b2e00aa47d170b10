"""Notices that the machine at the other end of a connection is gone."""

from __future__ import annotations

import contextlib
import socket

GONE_SECONDS = 3
"""The machine counts as gone when its kernel was silent for so long: a busy process answers here
all the same."""


def notice_the_gone(
    connection: socket.socket, seconds: int = GONE_SECONDS, *, is_read: bool = True
) -> None:
    """Let reads and writes fail (TimeoutError) when the other machine was silent for so long.
    Without this, reads wait for ever, and Linux repeats what was sent for a quarter of an hour
    (tcp(7), tcp_retries2).

    `is_read` False: the other end may read nothing for a while, which does not end the connection
    then; of a machine that vanishes, only reads without anything unconfirmed notice it.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    third = seconds // 3
    options = {"TCP_KEEPIDLE": third, "TCP_KEEPINTVL": third, "TCP_KEEPCNT": 3}
    if is_read:
        # Keepalives are not sent while data waits for its acknowledgement (tcp(7)). It also ends a
        # connection whose window was closed for so long, though the other kernel answers: a paused
        # download and an upload to a slow disk were cut after 3 s.
        options["TCP_USER_TIMEOUT"] = seconds * 1000
    for name, value in options.items():
        # Not all systems have all of them.
        if (option := getattr(socket, name, None)) is not None:
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
