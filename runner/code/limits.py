"""How much an archive of code may hold. What is larger belongs into an image or a volume."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in bytes. `ratio` is unpacked to packed, and counts beyond `ratio_free` bytes."""

    size: int = 32 << 30
    entries: int = 1_000_000
    ratio: int = 200
    ratio_free: int = 256 << 20
    depth: int = 64
    name: int = 255
    path: int = 4095
    header: int = 64 << 10
    """Of one extended header: those are held in memory."""
