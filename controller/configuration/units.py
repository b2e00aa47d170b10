"""Sizes, durations and counts as people write them. All raise ValueError with a sentence."""

from __future__ import annotations

import math
import re

from common.sizes import MAX_SIZE, size_of

SIZE_ALLOWED = "a size with a unit, such as 512MB, 8GB, 1.5TB or 16GiB"
DURATION_ALLOWED = "a duration such as 30s, 90m, 2h, 1d or 1h30m, or a number of seconds"
OFF_ALLOWED = f"{DURATION_ALLOWED}, or off"
CPU_ALLOWED = "a number of CPU cores such as 4 or 0.5, or a range such as 2.. or 2..8"

MAX_CPU = 65536.0
MAX_DURATION = 10 * 365 * 86400.0

_DURATION_PART = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*([smhdw])", re.ASCII)
_DURATION = re.compile(rf"(?:{_DURATION_PART.pattern}\s*)+", re.ASCII)
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9})?", re.ASCII)
_OFF = frozenset({"off", "never", "none"})


def parse_size(value: object) -> int:
    """Return bytes, at least 1."""
    size = size_of(value) if isinstance(value, str) else None
    if size is None:
        raise ValueError(f"{shown(value)} is not a size")
    if not 1 <= size <= MAX_SIZE:
        raise ValueError(f"{shown(value)} is not between 1B and 1000PB")
    return round(size)


def parse_duration(value: object) -> float:
    """Return seconds, at least 0."""
    seconds = _duration(value)
    if seconds is None or not 0 <= seconds <= MAX_DURATION:
        raise ValueError(f"{shown(value)} is not a duration between 0 and 10 years")
    return seconds


def parse_duration_or_off(value: object) -> float | None:
    """Return seconds; None for `off`."""
    if value is False or (isinstance(value, str) and value.strip().lower() in _OFF):
        return None
    return parse_duration(value)


def _duration(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if abs(value) <= MAX_DURATION else None
    if not isinstance(value, str):
        return None
    text = value.strip().lower()
    if _NUMBER.fullmatch(text):
        return float(text)
    if len(text) > 64 or not _DURATION.fullmatch(text):
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(text))


def parse_cpu(value: object) -> float:
    """Return cores, more than 0; for a range its lower end, which is what a job takes.

    dstack's `x86:4` names the architecture that all nodes have.
    """
    amount = value.strip().removeprefix("x86:") if isinstance(value, str) else value
    if isinstance(amount, str) and amount.startswith("arm:"):
        raise ValueError(f"{shown(value)} asks for another architecture; nodes are of x86")
    cores = parse_number(lower_end(amount))
    if cores is None:
        raise ValueError(f"{shown(value)} is not a number of CPU cores")
    if not 0 < cores <= MAX_CPU:
        raise ValueError(f"{shown(value)} is not more than 0 and at most {MAX_CPU:g}")
    return cores


def parse_count(value: object) -> int:
    """Return a whole number, at least 0; for a range its lower end."""
    number = parse_number(lower_end(value))
    if number is None or not number.is_integer():
        raise ValueError(f"{shown(value)} is not a whole number")
    if not 0 <= number <= MAX_CPU:
        raise ValueError(f"{shown(value)} is not between 0 and {MAX_CPU:g}")
    return int(number)


def parse_number(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        finite = abs(value) <= MAX_SIZE and math.isfinite(value)
        return float(value) if finite else None
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        return float(value)
    return None


def lower_end(value: object) -> object:
    """Return the `2` of `2..` or `2..8`, and any other value unchanged. Raises ValueError for
    `8..2`."""
    if not isinstance(value, str) or ".." not in value:
        return value
    lower, _, upper = value.partition("..")
    low, high = parse_number(lower), parse_number(upper)
    if low is not None and high is not None and high < low:
        raise ValueError(f"{shown(value)} ends before it begins")
    if upper.strip() and high is None and parse_number(lower) is not None:
        raise ValueError(f"{shown(value)} is not a range")
    return lower


def shown(value: object) -> str:
    """Return the value as it may appear in a message: short, and never a whole structure."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "nothing"
    if isinstance(value, int | float | str):
        text = str(value) if not isinstance(value, int) or abs(value) < 10**20 else "a huge number"
        return repr(text if len(text) <= 40 else text[:40] + "…")
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else f"a {type(value).__name__}"
