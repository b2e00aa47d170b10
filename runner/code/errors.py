"""The limits of a code archive, and the errors for code that cannot be put in its place."""

from __future__ import annotations

import msgspec


class ArchiveLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in bytes. `ratio` is unpacked to packed; it counts beyond `ratio_free` bytes."""

    size: int = 32 << 30
    entries: int = 1_000_000
    ratio: int = 200
    ratio_free: int = 256 << 20
    depth: int = 64
    name: int = 255
    path: int = 4095
    header: int = 64 << 10
    """The size of one extended header: these are kept in memory."""


class BadArchive(Exception):
    """The archive is damaged, or does something that a code archive need not do. The message names
    the entry, for the user."""


class Failed(Exception):
    """The runtime's own git failed; the message is for the user."""


class Abandoned(Exception):
    """The job was stopped while its code was being prepared."""
