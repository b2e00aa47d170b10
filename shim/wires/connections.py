"""How much of the kernel's table of connections (conntrack) jobs may fill, and who is in it. Pure:
texts for nft, and messages of ctnetlink.

All jobs of a node and the node itself share this table, because what a job sends is translated to
the node's address. A job fills it in seconds: then nobody begins a connection, the controller's SSH
included. And an entry outlives its container: until it goes, the outside reaches whoever has the
container's address next.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import msgspec

from shim.wires.rtnetlink import ATTRIBUTE, aligned

TABLE_SIZE = "/proc/sys/net/netfilter/nf_conntrack_max"
CLOSED_SECONDS = 10
"""How long a TCP connection of a job stays in the table once it is closed. The kernel's 120 s would
let 2,200 short connections a second fill it, and `ct count` does not count closed ones
(already_closed in nf_conncount.c)."""
_IN_BUCKET = 32
_OF_RUN, _OF_ALL, _OF_CLOSED = 8, 2, 4
_HEADER = struct.Struct("=IHHIIBBH")
"""A message's length, type, flags, sequence and port; then family, version, resource
(linux/netlink.h, linux/netfilter/nfnetlink.h)."""
_OF_FAMILY = 4
_GET, _DELETE = 0x101, 0x102
"""linux/netfilter/nfnetlink_conntrack.h, in the subsystem 1 of nfnetlink; so are all below."""
_REQUEST, _ACKNOWLEDGED, _DUMP = 1, 4, 0x300
_KIND_OF, _NESTED = 0x3FFF, 0x8000
_BEGINNER, _ID, _ZONE = 1, 12, 18
_KNOWN_BY = (_BEGINNER, _ID, _ZONE)
_IP, _SOURCE4, _SOURCE6 = 1, 1, 3
_BEGINNERS = (_BEGINNER | _NESTED, _IP | _NESTED)
_BEGINS = struct.Struct("=HHHH")
_SOURCE = _OF_FAMILY + _BEGINS.size
_SOURCE_ENDS = _SOURCE + ATTRIBUTE.size + 4
"""The kernel begins each message with who began the connection, this with its addresses, and these
with the source (ctnetlink_dump_tuples)."""


class Limits(msgspec.Struct, frozen=True):
    """What of a table for `size` connections jobs may have. An eighth stays the node's own even if
    many runs do their worst: half of the table open, and three eighths closed a moment ago."""

    size: int

    @property
    def of_run(self) -> Limit:
        return Limit(
            open=self.size // _OF_RUN,
            burst=self.size // _OF_RUN,
            rate=self._rate_of_closed(_OF_RUN),
        )

    @property
    def of_all(self) -> Limit:
        part = self.size // _OF_ALL
        return Limit(open=part, burst=self.size // _OF_RUN, rate=self._rate_of_closed(_OF_CLOSED))

    def _rate_of_closed(self, part: int) -> int:
        """Return how many a second may be closed until they are this part of the table."""
        return max(self.size // part // CLOSED_SECONDS, 1)


class Limit(msgspec.Struct, frozen=True):
    """How many connections may be open, and how many may begin: `burst` at once, and `rate` a
    second."""

    open: int
    burst: int
    rate: int

    @property
    def buckets(self) -> int:
        """The kernel keeps what it counts as a list, which it reads through for each new
        connection: for one of 32,768, each would take a millisecond. So each is counted in the next
        one of many short lists."""
        return max(self.open // _IN_BUCKET, 1)

    def counted_in(self, name: str) -> tuple[str, str]:
        """Return two rules for the first packet of a connection, which drop what is too much."""
        each = self.open // self.buckets
        return (
            f"limit rate over {self.rate}/second burst {self.burst} packets counter drop",
            f"add @{name} {{ numgen inc mod {self.buckets} ct count over {each} }} counter drop",
        )

    def set_of_counts(self) -> str:
        # An emptied element counts for a moment after it is gone, and a full set counts nothing.
        return f"type mark; size {2 * self.buckets}; flags dynamic;"


FIRST_PACKET = "ct state new ct status & confirmed == 0"
"""Later ones without an answer are `new` too, and kernels before 6.19 count some of them again: a
one-way stream would soon be over any limit."""


def question() -> bytes:
    """Return the request for all connections. The kernel's own filter by a source, of 5.8, finds
    for IPv6 just those of all others (ctnetlink_filter_match_tuple), and would read through the
    whole table for each."""
    return _message(_GET, _REQUEST | _DUMP, socket.AF_UNSPEC)


def beginner_in(body: bytes) -> bytes:
    """Return the address, in the network's order, of whoever began the connection that a message
    describes; empty: it describes none. `body`: without the message's own header."""
    # Read in place: the table may have 100,000 entries.
    if len(body) < _SOURCE_ENDS or _BEGINS.unpack_from(body, _OF_FAMILY)[1::2] != _BEGINNERS:
        return b""
    size, kind = ATTRIBUTE.unpack_from(body, _SOURCE)
    start = _SOURCE + ATTRIBUTE.size
    return body[start : _SOURCE + size] if kind in (_SOURCE4, _SOURCE6) else b""


def removal(body: bytes) -> bytes:
    """Return the request to remove the connection that a message describes."""
    known_by = b"".join(
        whole for kind, whole in _attributes(body[_OF_FAMILY:]) if kind in _KNOWN_BY
    )
    return _message(_DELETE, _REQUEST | _ACKNOWLEDGED, body[0], known_by)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the kind of each attribute, and the whole of it."""
    at = 0
    while at + ATTRIBUTE.size <= len(data):
        size, kind = ATTRIBUTE.unpack_from(data, at)
        step = max(aligned(size), ATTRIBUTE.size)
        yield kind & _KIND_OF, data[at : at + step]
        at += step


def _message(kind: int, flags: int, family: int, body: bytes = b"") -> bytes:
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, 0, 0, family, 0, 0) + body
