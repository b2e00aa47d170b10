"""The limits of an archive of code, and the errors for code that cannot be put in its place."""

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


class BadArchive(Exception):
    """The archive is damaged or tries what an archive of code has no reason to; the text names the
    entry, for the user."""


class Failed(Exception):
    """What the runtime's own git could not do: a sentence for the user."""


class Abandoned(Exception):
    """The job was stopped while its code was being prepared."""
