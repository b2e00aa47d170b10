"""What the kernel is told and tells by netlink, without a program: of wires, of connections, and of
changes of nftables.

The sockets are of the network namespace of the thread that makes them.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from ipaddress import IPv6Address

from shim.wires import connections
from shim.wires.rtnetlink import ATTRIBUTE, LINK, Request, aligned, attribute, way_to

_ROUTE, _NETFILTER = 0, 12
_GROUP_OF_NFTABLES = 1 << (7 - 1)
"""linux/netlink.h; NFNLGRP_NFTABLES of linux/netfilter/nfnetlink.h, as a bit."""
_HEADER = struct.Struct("=IHHII")
_ERROR = struct.Struct("=i")
"""nlmsghdr and nlmsgerr of netlink(7)."""
_REQUEST, _ACKNOWLEDGED = 1, 4
_IS_ERROR, _IS_DONE, _NEW_LINK, _GET_LINK = 2, 3, 16, 18
_NAME, _STATE = 3, 16
"""IFLA_IFNAME and IFLA_OPERSTATE of linux/if_link.h."""
UP = 6
"""IF_OPER_UP of linux/if.h; RFC 2863, ifOperStatus."""
_NEW_ROUTE, _GET_ROUTE, _TYPE_OF_ROUTE, _LOCAL = 24, 26, 7, 2
"""Of linux/rtnetlink.h: the place of rtm_type in rtmsg, and RTN_LOCAL."""
_MAX_ANSWER = 1 << 16
_SECONDS = 20.0
_AT_ONCE = 64


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
    named = attribute(_NAME, device.encode() + b"\0")
    body = LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + named
    with _asking() as asked:
        return state_in(_answer(asked, _GET_LINK, _REQUEST, body))


def is_local(address: IPv6Address) -> bool:
    """Return whether the kernel takes what is sent to this address. Raises OSError, also when no
    route leads to it."""
    with _asking() as asked:
        return leads_here(_answer(asked, _GET_ROUTE, _REQUEST, way_to(address)))


def change(requests: Iterable[Request]) -> None:
    """Have the kernel make these changes one after the other, up to the first that it refuses.
    Raises OSError, whose file name is the words of that one."""
    with _asking() as asked:
        for one in requests:
            try:
                index = socket.if_nametoindex(one.device) if one.device is not None else 0
                flags = _REQUEST | _ACKNOWLEDGED | one.flags
                _raise_error(_answer(asked, one.kind, flags, one.body(index)))
            except OSError as error:
                if error.errno is not None and error.errno == one.needless_after:
                    continue
                # Neither a name that no device has, nor a kernel that is silent, has a number.
                number, why = error.errno or errno.ENODEV, error.strerror or str(error)
                raise OSError(number, why, one.words) from None


def forget(is_stale: Callable[[bytes], bool]) -> int:
    """Remove the connections that stale addresses began from the kernel's table; return how many.
    An address is asked about in the network's order. Raises OSError."""
    with _asking(_NETFILTER) as asked:
        asked.send(connections.question())
        stale = [one for one in _answers(asked) if is_stale(connections.beginner_in(one))]
        for start in range(0, len(stale), _AT_ONCE):
            _remove(asked, stale[start : start + _AT_ONCE])
    return len(stale)


def _remove(asked: socket.socket, stale: Iterable[bytes]) -> None:
    removals = [connections.removal(one) for one in stale]
    asked.send(b"".join(removals))
    for _ in removals:
        try:
            _raise_error(asked.recv(_MAX_ANSWER))
        # It has ended by itself meanwhile.
        except FileNotFoundError:
            continue


def _answers(asked: socket.socket) -> Iterator[bytes]:
    """Yield the bodies of all messages up to the one that says that these were all. Raises
    OSError."""
    while True:
        heard, at = asked.recv(_MAX_ANSWER), 0
        while at + _HEADER.size <= len(heard):
            length, kind = _HEADER.unpack_from(heard, at)[:2]
            if kind == _IS_DONE:
                return
            _raise_error(heard[at:])
            yield heard[at + _HEADER.size : at + length]
            at += max(aligned(length), _HEADER.size)


def _asking(protocol: int = _ROUTE) -> socket.socket:
    asked = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    asked.settimeout(_SECONDS)
    return asked


def _answer(asked: socket.socket, kind: int, flags: int, body: bytes) -> bytes:
    asked.send(_HEADER.pack(_HEADER.size + len(body), kind, flags, 0, 0) + body)
    return asked.recv(_MAX_ANSWER)


def state_in(answer: bytes) -> int | None:
    """Return the operational state that the kernel's answer names. Raises OSError for its error."""
    _raise_error(answer)
    length, kind = _HEADER.unpack_from(answer)[:2]
    at, end = _HEADER.size + LINK.size, min(length, len(answer))
    while kind == _NEW_LINK and at + ATTRIBUTE.size < end:
        size, what = ATTRIBUTE.unpack_from(answer, at)
        if what == _STATE:
            return answer[at + ATTRIBUTE.size]
        at += max(aligned(size), ATTRIBUTE.size)
    return None


def leads_here(answer: bytes) -> bool:
    """Return whether the route that the kernel's answer names ends at this machine. Raises OSError
    for its error."""
    _raise_error(answer)
    return (
        _HEADER.unpack_from(answer)[1] == _NEW_ROUTE
        and answer[_HEADER.size + _TYPE_OF_ROUTE] == _LOCAL
    )


def _raise_error(answer: bytes) -> None:
    """Raise OSError for an error; an acknowledgement is one with the number 0 (netlink(7))."""
    if _HEADER.unpack_from(answer)[1] == _IS_ERROR:
        number = -_ERROR.unpack_from(answer, _HEADER.size)[0]
        if number:
            raise OSError(number, os.strerror(number))
