"""Ends connections to machines that have vanished, and none whose other end reads nothing.

The kernel can't tell the two apart: TCP_USER_TIMEOUT counts from the last byte that was taken, and
without it Linux goes on for a quarter of an hour (tcp(7), tcp_retries2). So each connection is
looked at once a second.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress

from fairlead.connections.keepalives import GONE_SECONDS, notice_the_gone

_EVERY_SECONDS = 1.0
_LOOKS = 3
"""A machine far away may not have answered yet when it is looked at: not three times, though."""
_TCP_INFO = getattr(socket, "TCP_INFO", None)
"""Linux's, as `struct tcp_info` of linux/tcp.h."""
_RETRANSMITS, _PROBES, _LAST_ACK_RECEIVED = 2, 3, 56
_SIZE = 60


def end_when_vanished(transport: asyncio.WriteTransport) -> None:
    """Abort this TCP connection when the kernel of the other machine has answered nothing for
    GONE_SECONDS, whether something waits for its acknowledgement or not. Where it reads nothing,
    the kernel asks it more and more seldom, and it takes as long again as it has read nothing; two
    minutes more at most (TCP_RTO_MAX)."""
    notice_the_gone(transport.get_extra_info("socket"), is_read=False)
    if _TCP_INFO is not None:
        _Looking(transport).look_later()


class _Looking:
    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self._looks = 0

    def look_later(self) -> None:
        asyncio.get_running_loop().call_later(_EVERY_SECONDS, self._look)

    def _look(self) -> None:
        # What a closed one still has to send is repeated as long.
        if self._transport.is_closing() and not self._transport.get_write_buffer_size():
            return
        # It was closed meanwhile.
        with suppress(OSError):
            is_late, heard_before = _unanswered(self._transport.get_extra_info("socket"))
            self._looks = self._looks + 1 if is_late else 0
            if self._looks >= _LOOKS and heard_before >= GONE_SECONDS:
                self._transport.abort()
                return
            self.look_later()


def _unanswered(connection: socket.socket) -> tuple[bool, float]:
    """Return whether something was repeated or asked to which no answer has come, and for how many
    seconds nothing has come. Raises OSError."""
    assert _TCP_INFO is not None
    info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _SIZE)
    (milliseconds,) = struct.unpack_from("=I", info, _LAST_ACK_RECEIVED)
    return bool(info[_RETRANSMITS] or info[_PROBES]), milliseconds / 1000
