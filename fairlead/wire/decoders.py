"""Decoders of JSON, made by one thread at a time.

msgspec (0.22) notes the fields of a struct when it meets it first. If two threads are there at
once, one of them finds the other's half-made notes and the process crashes. Whoever may be in
several threads asks here before the first use of a type; `msgspec.convert` uses the same notes.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_one_at_a_time = threading.Lock()
_decoders: dict[object, msgspec.json.Decoder[Any]] = {}


def decoder_of(shape: type[T]) -> msgspec.json.Decoder[T]:
    """Return the decoder of this shape, always the same one."""
    found = _decoders.get(shape)
    if found is None:
        with _one_at_a_time:
            found = _decoders.setdefault(shape, msgspec.json.Decoder(shape))
    return found
