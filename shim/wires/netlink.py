"""What the kernel tells by netlink, without a program: of a device, and of changes of nftables.

The sockets are of the network namespace of the thread that makes them.
"""

from __future__ import annotations

import os
import socket
import struct

_ROUTE, _NETFILTER = 0, 12
_GROUP_OF_NFTABLES = 1 << (7 - 1)
"""linux/netlink.h; NFNLGRP_NFTABLES of linux/netfilter/nfnetlink.h, as a bit."""
_HEADER = struct.Struct("=IHHII")
_LINK = struct.Struct("=BxHiII")
_ATTRIBUTE = struct.Struct("=HH")
_ERROR = struct.Struct("=i")
"""nlmsghdr and nlmsgerr of netlink(7), ifinfomsg and rtattr of rtnetlink(7)."""
_REQUEST = 1
_IS_ERROR, _NEW_LINK, _GET_LINK = 2, 16, 18
_NAME, _STATE = 3, 16
"""IFLA_IFNAME and IFLA_OPERSTATE of linux/if_link.h."""
UP = 6
"""IF_OPER_UP of linux/if.h; RFC 2863, ifOperStatus."""
_MAX_ANSWER = 1 << 16
_SECONDS = 20.0


def changes_of_nftables() -> socket.socket:
    """Return a socket that hears of each change of nftables. Raises OSError."""
    heard = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, _NETFILTER)
    try:
        heard.bind((0, _GROUP_OF_NFTABLES))
    except OSError:
        heard.close()
        raise
    return heard


def state_of(device: str) -> int | None:
    """Return the operational state of a device; None: the kernel does not say. Raises OSError,
    also when there is no such device."""
    name = device.encode() + b"\0"
    named = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(name), _NAME) + name
    body = _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + named.ljust(_aligned(len(named)), b"\0")
    head = _HEADER.pack(_HEADER.size + len(body), _GET_LINK, _REQUEST, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _ROUTE) as asked:
        asked.settimeout(_SECONDS)
        asked.send(head + body)
        return state_in(asked.recv(_MAX_ANSWER))


def state_in(answer: bytes) -> int | None:
    """Return the operational state that the kernel's answer names. Raises OSError for its error."""
    length, kind = _HEADER.unpack_from(answer)[:2]
    if kind == _IS_ERROR:
        number = -_ERROR.unpack_from(answer, _HEADER.size)[0]
        raise OSError(number, os.strerror(number))
    at, end = _HEADER.size + _LINK.size, min(length, len(answer))
    while kind == _NEW_LINK and at + _ATTRIBUTE.size < end:
        size, what = _ATTRIBUTE.unpack_from(answer, at)
        if what == _STATE:
            return answer[at + _ATTRIBUTE.size]
        at += max(_aligned(size), _ATTRIBUTE.size)
    return None


def _aligned(length: int) -> int:
    """Return the length with the padding up to the next attribute."""
    return length + 3 & ~3
