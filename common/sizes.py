"""Numbers and sizes as people and programs write them."""

from __future__ import annotations

import re

MAX_SIZE = 1 << 60
_MOST_DIGITS = 18
_UNITS: dict[str, int] = {
    "B": 1,
    **{f"{letter}B": int(1000**power) for power, letter in enumerate("KMGTP", start=1)},
    **{f"{letter}IB": int(1024**power) for power, letter in enumerate("KMGTP", start=1)},
}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]{1,3})", re.ASCII)


def is_count(text: str) -> bool:
    """Return whether it is a whole number, 0 or more, that every part of Fairlead can store."""
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS


def size_of(text: str) -> float | None:
    """Return bytes, not rounded; None when the string is not a size with a unit.

    `GB` is 10⁹ bytes and `GiB` is 2³⁰. Vendors name the memory of machines and GPUs in this way, so
    `memory: 80GB` fits on a GPU that is sold with 80 GB.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(match[2].upper()) if match else None
    return None if match is None or unit is None else float(match[1]) * unit


def human_size(amount: int) -> str:
    """Return `amount` bytes in a readable unit."""
    value = float(amount)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
