"""How far the lines of each attempt have come to their receiver, for the next controller."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import msgspec

from common.files.durable import write_quickly
from controller.outputs.own_bucket import OwnBucket
from controller.shipping.log_copies import Origin
from fairlead.wire.decoders import decoder_of

_KEY = "shipping/positions"


class Position(msgspec.Struct, frozen=True):
    """`at`: the offset in the log from which on lines are to be sent."""

    origin: Origin
    at: int


class _Document(msgspec.Struct, frozen=True):
    saved_at: float = 0.0
    positions: dict[str, Position] = {}


class Positions:
    """The positions of the attempts that live, or whose last lines wait: in a file, and in the
    installation's own bucket if there is one. Every method may raise OSError, of which BucketError
    is one."""

    def __init__(self, file: Path, bucket: OwnBucket | None = None) -> None:
        self._file = file
        self._bucket = bucket

    async def load(self) -> dict[str, Position]:
        """Return what was saved last, by attempt."""
        here = await asyncio.to_thread(self._read)
        there = None if self._bucket is None else await self._bucket.ask(self._bucket.get, _KEY)
        latest = max((_decoded(here), _decoded(there)), key=lambda one: one.saved_at)
        return latest.positions

    async def save(self, positions: Mapping[str, Position], now: float) -> None:
        data = msgspec.json.encode(_Document(saved_at=now, positions=dict(positions)))
        await asyncio.to_thread(write_quickly, self._file, data, 0o600)
        if self._bucket is not None:
            await self._bucket.ask(self._bucket.put, _KEY, data)

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
