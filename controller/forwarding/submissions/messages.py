"""What a follower gives the leader at once, and what it gets back: MessagePack in one request.

The answer comes in pieces, so that no client waits for another one's.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
from collections.abc import Iterator, Mapping

import msgspec

from controller import __version__
from controller.service.runs.submission_stages import Form, IfExists
from fairlead.configuration.runs.plan import Defaults, Plan

CONTENT = "application/msgpack"
READING = "Fairlead-Reading"
"""Of such a request: how the follower reads files. A leader that reads them in another way takes
none of it."""


class Given(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One submission. `plan`: the number of its plan in the message."""

    plan: int
    name: str | None = None
    client_key: str | None = None
    if_exists: IfExists = IfExists.ERROR
    parent: str | None = None


class Asked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request of a client. `token`: the id of the token that it has."""

    token: str
    submissions: tuple[Given, ...]
    form: Form = Form.ONE


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """`plans`: each once, as bytes, so that a leader knows those that it had before."""

    plans: tuple[bytes, ...]
    asked: tuple[Asked, ...]


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to one of the requests. `status` 0: nothing of it was done, and it is to be passed
    on as it came. `mark`: the name of the header that a link would have."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    mark: str | None = None


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of what comes back. `answers`: by the number of the request in the message."""

    answers: dict[int, Answer]


_LENGTH = struct.Struct("!I")
_encoded = msgspec.msgpack.Encoder().encode
_decoded = msgspec.msgpack.Decoder(Answers).decode


def piece(answers: Mapping[int, Answer]) -> bytes:
    """Return these answers as a piece, with its length before it."""
    data = _encoded(Answers(answers=dict(answers)))
    return _LENGTH.pack(len(data)) + data


class Pieces:
    """Puts pieces together again, however their bytes come."""

    def __init__(self) -> None:
        self._come = bytearray()

    @property
    def is_between(self) -> bool:
        """Whether all that has come was whole pieces."""
        return not self._come

    def whole(self, data: bytes) -> Iterator[Mapping[int, Answer]]:
        """Yield the answers of each piece that is whole with these bytes. Raises MsgspecError."""
        self._come += data
        while len(self._come) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._come)[0]
            if len(self._come) < end:
                return
            found = _decoded(bytes(self._come[_LENGTH.size : end]))
            del self._come[:end]
            yield found.answers


class Reading:
    """How a controller reads files and messages: the same at all of one version whose operator
    chose the same defaults."""

    def __init__(self, defaults: Defaults) -> None:
        self.defaults = defaults
        self._digest: str | None = None

    async def digest(self) -> str:
        """Return what is equal where files are read alike."""
        # When it is asked for first: no start and no takeover waits for it.
        if self._digest is None:
            self._digest = await asyncio.to_thread(_digest, self.defaults)
        return self._digest


def _digest(defaults: Defaults) -> str:
    shapes = msgspec.json.schema_components((Message, Answers, Plan), schema_hook=_any)
    seen = (__version__, defaults, shapes)
    return hashlib.sha256(msgspec.json.encode(seen, order="sorted")).hexdigest()


def _any(_kind: type) -> dict[str, object]:
    """Return the shape of what may have any: a configuration as it was written."""
    return {"title": "any"}
