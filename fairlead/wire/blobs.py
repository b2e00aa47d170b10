"""The parts of an upload, of which a client sends only those that the controller lacks."""

from __future__ import annotations

from typing import Annotated

import msgspec

MAX_PARTS = 16_384
"""Parts of one blob."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive bytes of a blob, named by their sha256."""

    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    size: Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]


class MissingParts(msgspec.Struct, frozen=True):
    missing: frozenset[str]
