"""What a leader feeds a follower with, for all watches of clients there: messages, one JSON line
each.

The follower asks for runs; the leader tells their lines, and which runs and nodes changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

FEED_PATH = "/v1/controllers/feed"
"""A follower sends `Ask` as the body of its request for as long as it reads the answer."""
MAX_ASK_BYTES = 1 << 10


class Ask(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tell the run's line, then the next ones: what is told with `number` or a greater one was read
    after the question. `number` 0: tell no more of it."""

    run: str
    number: int = 0


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """The feed begins. `started`: differs for each start of a leader; `revision`: that of its
    changes; `broken`: how many things of each part of the dashboard need a person."""

    started: str
    revision: int
    broken: Mapping[str, int] = {}


class Changed(msgspec.Struct, frozen=True, tag="changed"):
    """These runs and nodes were committed, up to this revision. None: any may have been."""

    revision: int
    keys: tuple[str, ...] | None = None
    broken: Mapping[str, int] = {}


NO_LINE = msgspec.Raw()


class RunLine(msgspec.Struct, frozen=True, tag="line", omit_defaults=True):
    """`line`: the next one of the run's watch; empty: the last one still holds. `number`: of the
    latest question that came before the run was read. `is_over`: it was the watch's last line."""

    run: str
    line: msgspec.Raw = NO_LINE
    number: int = 0
    is_over: bool = False


class RunLost(msgspec.Struct, frozen=True, tag="lost"):
    """The run is not there, or can't be read now: its watches end, and may be opened again."""

    run: str


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """Nothing changed."""


Message = Begun | Changed | RunLine | RunLost | Beat
_DECODER: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)
_ENCODER = msgspec.json.Encoder()


def encoded(message: Message | Ask) -> bytes:
    return _ENCODER.encode(message) + b"\n"


class Lines:
    """Puts lines together again from pieces of any length."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []

    def messages(self, piece: bytes) -> Iterator[Message]:
        """Yield what is whole. Raises msgspec.MsgspecError."""
        *whole, rest = piece.split(b"\n")
        for line in whole:
            # As bytes, which no one changes: a Raw refers to what it was decoded from.
            data = b"".join((*self._rest, line))
            self._rest.clear()
            yield _DECODER.decode(data)
        self._rest.append(rest)
