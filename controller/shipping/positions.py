"""How far the lines of each attempt have come to their receiver, for the next controller."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import msgspec

from common.files.durable import write_quickly
from controller.outputs.own_bucket import OwnBucket
from controller.shipping.log_documents import Origin
from fairlead.wire.decoders import decoder_of

_FOLDER = "shipping/positions/"
_FORMER_KEY = "shipping/positions"
"""One object of all leaders, in earlier versions."""
Fence = tuple[int, int]
"""The epoch and the token of the leader."""


class Position(msgspec.Struct, frozen=True):
    """`at`: the offset in the log from which on lines are to be sent."""

    origin: Origin
    at: int


class _Document(msgspec.Struct, frozen=True):
    fence: Fence = (0, 0)
    saved_at: float = 0.0
    positions: dict[str, Position] = {}


class Positions:
    """The positions of the attempts that live, or whose last lines wait: in a file, and in the
    installation's own bucket if there is one. Every method may raise OSError, of which BucketError
    is one.

    Each leader has an object of its own in the bucket, and the latest leader's counts: one that was
    paused, and goes on while another one leads, overwrites nothing, whatever its clock shows.
    """

    def __init__(self, file: Path, bucket: OwnBucket | None = None, fence: Fence = (0, 0)) -> None:
        self._file = file
        self._bucket = bucket
        self._fence = fence
        self._is_alone = False

    async def load(self) -> dict[str, Position]:
        """Return what the latest leader saved last, by attempt."""
        found = [_decoded(await asyncio.to_thread(self._read))]
        if self._bucket is not None:
            found += await self._bucket.ask(_in_bucket, self._bucket)
        return max(found, key=lambda one: (one.fence, one.saved_at)).positions

    async def save(self, positions: Mapping[str, Position], now: float) -> None:
        document = _Document(fence=self._fence, saved_at=now, positions=dict(positions))
        data = msgspec.json.encode(document)
        await asyncio.to_thread(write_quickly, self._file, data, 0o600)
        if self._bucket is not None:
            await self._bucket.ask(self._put, self._bucket, data)

    def _put(self, bucket: OwnBucket, data: bytes) -> None:
        bucket.put(_key(self._fence), data)
        if not self._is_alone:
            for fence in _fences(bucket):
                if fence < self._fence:
                    bucket.delete(_key(fence))
            self._is_alone = True

    def _read(self) -> bytes | None:
        try:
            return self._file.read_bytes()
        except FileNotFoundError:
            return None


def _decoded(data: bytes | None) -> _Document:
    """A document that a power cut has damaged counts as none: lines are sent again then."""
    try:
        return _Document() if data is None else decoder_of(_Document).decode(data)
    except msgspec.MsgspecError:
        return _Document()


def _in_bucket(bucket: OwnBucket) -> list[_Document]:
    """Blocking, as the functions below."""
    latest = max(_fences(bucket), default=None)
    keys = (_FORMER_KEY,) if latest is None else (_FORMER_KEY, _key(latest))
    return [_decoded(bucket.get(key)) for key in keys]


def _fences(bucket: OwnBucket) -> list[Fence]:
    """Return the leaders whose positions are in the bucket."""
    found = []
    for listed in bucket.list(_FOLDER):
        epoch, _, token = listed.name.partition("-")
        if epoch.isdecimal() and token.isdecimal():
            found.append((int(epoch), int(token)))
    return found


def _key(fence: Fence) -> str:
    epoch, token = fence
    return f"{_FOLDER}{epoch}-{token}"
