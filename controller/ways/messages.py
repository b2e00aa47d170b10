"""The messages of a session between the leader and a follower, one JSON line each.

The follower's are the body of its request, the leader's are the answer; both go on for as long as
the session does. Whatever either side does not know of a message it ignores.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from common.proxy.view import Service
from fairlead.wire.gateway import GatewayNode, GroupCounts

FOLLOWER = "Fairlead-Follower"
"""The header that tells one follower's sessions from another's."""
BEAT_SECONDS = 5.0
COUNT_SECONDS = 1.0
"""Between two messages of a follower."""
SILENCE_SECONDS = 15.0
"""A session in which the other side is silent for so long has ended."""
MAX_GROUPS = 100
"""Counts of groups in one message."""


class ServicesChanged(msgspec.Struct, frozen=True, kw_only=True, tag="told", omit_defaults=True):
    """These services changed, and those are gone. `version`: grows with each message of a session.
    `begins`: it replaces all that was said before.

    A replica's `socket` is that of its exposed port, or empty: the leader does not know it (yet).
    The tag is that of earlier versions, with which a rolling upgrade has sessions.
    """

    version: int
    begins: bool = False
    services: tuple[Service, ...] = ()
    gone: tuple[str, ...] = ()
    """Ids of runs."""
    nodes: tuple[GatewayNode, ...] | None = None
    """The nodes of all replicas; None: they are those of before."""


class JobWay(msgspec.Struct, frozen=True, kw_only=True):
    """Where a follower reaches the ports of one job: `socket` on its node opens each of them, for
    who writes the port first (`ANY_PORT`). Whoever knows its name may do so, so none is shown."""

    socket: str
    node: GatewayNode

    @property
    def node_id(self) -> str:
        return self.node.id

    def __repr__(self) -> str:
        return f"JobWay(node={self.node.id!r})"


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """Nothing changed."""


class Counted(msgspec.Struct, frozen=True, kw_only=True, tag="counted", omit_defaults=True):
    """What a follower carries. `version`: of the latest `ServicesChanged` that holds there."""

    version: int
    in_flight: Mapping[str, int] = {}
    """The requests at each replica that has any, by the id of its attempt."""
    groups: tuple[GroupCounts, ...] = ()
    """The counts since the message before."""
    ejected: Mapping[str, float] = {}
    """For how many seconds each replica gets no requests here because it only failed."""


FromLeader = ServicesChanged | Beat
FROM_LEADER: msgspec.json.Decoder[FromLeader] = msgspec.json.Decoder(FromLeader)
FROM_FOLLOWER: msgspec.json.Decoder[Counted] = msgspec.json.Decoder(Counted)
_ENCODER = msgspec.json.Encoder()


def encoded(message: FromLeader | Counted) -> bytes:
    return _ENCODER.encode(message) + b"\n"


class Lines:
    """Puts lines together again from pieces of any length."""

    def __init__(self, max_bytes: int) -> None:
        self._rest = bytearray()
        self._max_bytes = max_bytes

    def whole(self, piece: bytes) -> list[bytes]:
        """Return the lines that are whole. Raises ValueError for one that is too long."""
        self._rest += piece
        if b"\n" not in piece:
            if len(self._rest) > self._max_bytes:
                raise ValueError("a line is too long")
            return []
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        return lines
