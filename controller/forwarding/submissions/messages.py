"""What a follower gives the leader at once, and what it gets back: MessagePack in one request."""

from __future__ import annotations

import asyncio
import hashlib

import msgspec

from controller import __version__
from controller.service.runs.submission_stages import IfExists
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
    """A request of a client. `token`: the id of the token that it has. `is_batch`: its answer has
    one of each submission."""

    token: str
    submissions: tuple[Given, ...]
    is_batch: bool = False


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
    """In the order of the requests."""

    answers: tuple[Answer, ...]


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
