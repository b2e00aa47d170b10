"""Numbers and sizes as people and programs write them, and the sizes of a job's outputs."""

from __future__ import annotations

import re

import msgspec

MAX_SIZE = 1 << 60
_MAX_DIGITS = 18
_UNITS: dict[str, int] = {
    "B": 1,
    **{f"{letter}B": int(1000**power) for power, letter in enumerate("KMGTP", start=1)},
    **{f"{letter}IB": int(1024**power) for power, letter in enumerate("KMGTP", start=1)},
}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]{1,3})", re.ASCII)


def is_count(text: str) -> bool:
    """Return whether it is a whole number, 0 or more, that every part of Fairlead can store."""
    return text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS


def size_of(text: str) -> float | None:
    """Return bytes, not rounded; None when the string is not a size with a unit.

    `GB` is 10⁹ bytes and `GiB` is 2³⁰. Vendors name the memory of machines and GPUs in this way, so
    `memory: 80GB` fits on a GPU that is sold with 80 GB.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(match[2].upper()) if match else None
    return None if match is None or unit is None else float(match[1]) * unit


def is_decimal(amount: int) -> bool:
    """Return whether the bytes were written in a unit of thousands, such as 8GB: to the one who
    wrote it, that is no 7.45 GiB."""
    return amount > 0 and amount % 10**6 == 0 and amount % (1 << 20) != 0


def human_size(amount: int) -> str:
    """Return `amount` bytes in a readable unit, one of thousands if it was written in such a
    unit."""
    value = float(amount)
    step, units = (1000, "KB MB GB TB") if is_decimal(amount) else (1024, "KiB MiB GiB TiB")
    for unit in ("B", *units.split()):
        if value < step or unit.startswith("T"):
            break
        value /= step
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


SHOWN_DIGITS = 2


def number(value: float) -> str:
    return f"{value:.{SHOWN_DIGITS}f}".rstrip("0").rstrip(".")


_BINARY = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20))
_DECIMAL = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6))


def size_words(value: int, *, like: int | None = None) -> str:
    """Return the size in the unit in which its user wrote it, or in which `like` was written: 8 GB
    are no 7.45 GiB to the one who asked for them."""
    written = value if like is None else like
    for unit, size in _DECIMAL if is_decimal(written) else _BINARY:
        if value >= size:
            return f"{number(value / size)} {unit}"
    return f"{value} B"


def counted_files(count: int) -> str:
    """Return the number of files in words."""
    return "1 file" if count == 1 else f"{count} files"


class OutputsAbout(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the tar of a task's outputs. `length`: its bytes; the others count content."""

    files: int
    size: int
    left_out: int
    """Entries that are no plain files or folders, cannot be read, or are beyond the limits."""
    left_out_size: int
    length: int
