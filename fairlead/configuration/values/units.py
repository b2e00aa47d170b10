"""Sizes, durations, cores and counts as people write them. All raise ValueError with a sentence."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, ClassVar, Self

import msgspec

from fairlead.configuration.field import Field
from fairlead.wire.sizes import MAX_SIZE, size_of

SIZE_ALLOWED = "a size with a unit, such as 512MB, 8GB, 1.5TB or 16GiB"
DURATION_ALLOWED = "a duration such as 30s, 90m, 2h, 1d or 1h30m, or a number of seconds"
OFF_ALLOWED = f"{DURATION_ALLOWED}, or off"
CPU_ALLOWED = "a number of CPU cores such as 4 or 0.5, or a range such as 2.. or 2..8"

MAX_CPU = 65536.0
MAX_DURATION = 10 * 365 * 86400.0

_DURATION_PART = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*([smhdw])", re.ASCII)
_DURATION = re.compile(rf"(?:{_DURATION_PART.pattern}\s*)+", re.ASCII)
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_SHORT_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([KMGTPkmgtp]?)(i?)", re.ASCII)
_CLOCK = re.compile(r"(\d{1,5}):([0-5]\d)(?::([0-5]\d))?", re.ASCII)
_WORDS = re.compile(r"(seconds?|secs?|minutes?|mins?|hours?|hrs?|days?|weeks?)", re.ASCII)
_CORES = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*(m|cores?|cpus?|vcpus?)", re.ASCII | re.IGNORECASE)
_HYPHEN = re.compile(r"(\d{1,9}) *- *(\d{1,9})", re.ASCII)
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9})?", re.ASCII)
_OFF = frozenset({"off", "never", "none"})

Times = Annotated[
    int, msgspec.Meta(ge=0, le=1_000_000_000), Field("a whole number from 0 to 1000000000")
]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1), Field("a whole number of at least 1")]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1_000_000_000), Field("a number of more than 0")]
Percent = Annotated[int, msgspec.Meta(ge=0, le=100), Field("a whole number from 0 to 100")]
_PLAIN_SIZE = r"\s*[0-9.]+\s*([KMGTPkmgtp]?[Bb]|[KMGTPkmgtp][Ii][Bb])\s*"


class Size(int):
    """Bytes. `is_least`: written without an upper end, as `8GB..`."""

    is_least = False
    ALLOWED = SIZE_ALLOWED
    SCHEMA: ClassVar[dict[str, Any]] = {
        "type": "string",
        "pattern": rf"^{_PLAIN_SIZE}(\.\.({_PLAIN_SIZE}|\s*))?$",
    }

    @classmethod
    def read(cls, value: object) -> Self:
        size = cls(parse_size(without_upper_end(value)))
        size.is_least = _is_open(value)
        return size

    @property
    def plain(self) -> int:
        return int(self)


class Cpu(float):
    """Cores. `is_least`: written without an upper end, as `4..`."""

    is_least = False
    ALLOWED = CPU_ALLOWED
    SCHEMA: ClassVar[dict[str, Any]] = {
        "anyOf": [
            {"type": "number", "exclusiveMinimum": 0},
            {"type": "string", "pattern": r"^\s*(x86:)?\s*[0-9.]+\s*(\.\.\s*[0-9.]*\s*)?$"},
        ]
    }

    @classmethod
    def read(cls, value: object) -> Self:
        cores = cls(parse_cpu(value))
        cores.is_least = _is_open(value)
        return cores

    @property
    def plain(self) -> float:
        return float(self)


class Duration(float):
    """Seconds."""

    ALLOWED = DURATION_ALLOWED
    SCHEMA: ClassVar[dict[str, Any]] = {
        "anyOf": [
            {"type": "number", "minimum": 0},
            {"type": "string", "pattern": r"^\s*([0-9.]+\s*[smhdwSMHDW]?\s*)+$"},
        ]
    }

    @classmethod
    def read(cls, value: object) -> Self:
        return cls(parse_duration(value))

    @property
    def plain(self) -> float:
        return float(self)


class DurationOrOff:
    """`seconds` is None when the user switched the limit off."""

    __slots__ = ("seconds",)
    ALLOWED = OFF_ALLOWED
    SCHEMA: ClassVar[dict[str, Any]] = {
        "anyOf": [Duration.SCHEMA, {"enum": [False, "off", "never", "none"]}]
    }

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds

    @classmethod
    def read(cls, value: object) -> Self:
        return cls(parse_duration_or_off(value))


def _is_open(value: object) -> bool:
    return isinstance(value, str) and value.rstrip().endswith("..")


def without_upper_end(value: object) -> object:
    """Return the lower end of `8GB..` or `8GB..16GB`, which users of dstack write for "at least
    8GB"."""
    if not isinstance(value, str) or ".." not in value:
        return value
    lower, _, upper = value.partition("..")
    if upper.strip() and parse_size(upper) < parse_size(lower):
        raise ValueError(f"{shown(value)} ends before it begins")
    return lower


def parse_size(value: object) -> int:
    """Return bytes, at least 1."""
    size = size_of(value) if isinstance(value, str) else None
    if size is None:
        raise ValueError(f"{shown(value)} is not a size{_with_unit(value)}")
    if not 1 <= size <= MAX_SIZE:
        raise ValueError(f"{shown(value)} is not between 1B and 1000PB")
    return round(size)


def _with_unit(value: object) -> str:
    """Return how to write a size whose unit is missing or cut short, as in `16`, `16G`, `16Gi`."""
    match = None if isinstance(value, bool) else _SHORT_SIZE.fullmatch(str(value).strip())
    if match is None or not float(match[1]) > 0:
        return ""
    number, unit = match[1], match[2].upper()
    units = (f"{unit}iB",) if match[3] else (f"{unit}B", f"{unit}iB") if unit else ("GB", "MB")
    return f": write {' or '.join(number + one for one in units)}"


def parse_duration(value: object) -> float:
    """Return seconds, at least 0."""
    if value is False:
        raise ValueError("cannot be switched off")
    seconds = _duration(value)
    if seconds is None or not 0 <= seconds <= MAX_DURATION:
        raise ValueError(
            f"{shown(value)} is not a duration between 0 and 10 years{_in_short(value)}"
        )
    return seconds


def parse_duration_or_off(value: object) -> float | None:
    """Return seconds; None for `off`."""
    if value is False or (isinstance(value, str) and value.strip().lower() in _OFF):
        return None
    return parse_duration(value)


def _in_short(value: object) -> str:
    """Return how to write `2 hours` or `2:00:00`."""
    text = value.strip().lower() if isinstance(value, str) else ""
    if len(text) > 64:
        return ""
    if clock := _CLOCK.fullmatch(text):
        numbers = [int(one) for one in clock.groups(default="0")]
        short = "".join(
            f"{number}{unit}" for number, unit in zip(numbers, "hms", strict=True) if number
        )
        return f": write {short}" if short else ""
    short = _WORDS.sub(lambda match: match[1][0], text).replace(" ", "").replace("and", "")
    return f": write {short}" if short != text and _DURATION.fullmatch(short) else ""


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
        raise ValueError(
            f"{shown(value)} is not a number of CPU cores{_in_cores(amount)}{as_range(amount)}"
        )
    if not 0 < cores <= MAX_CPU:
        raise ValueError(f"{shown(value)} is not more than 0 and at most {MAX_CPU:g}")
    return cores


def _in_cores(value: object) -> str:
    """Return how to write `500m` or `4 cores`."""
    match = _CORES.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return ""
    cores = float(match[1]) / (1000 if match[2] == "m" else 1)
    return f": write {cores:g}"


def parse_count(value: object) -> int:
    """Return a whole number, at least 0; for a range its lower end."""
    number = parse_number(lower_end(value))
    if number is None or not number.is_integer():
        raise ValueError(f"{shown(value)} is not a whole number{as_range(value)}")
    if not 0 <= number <= MAX_CPU:
        raise ValueError(f"{shown(value)} is not between 0 and {MAX_CPU:g}")
    return int(number)


def as_range(value: object) -> str:
    """Return how to write `1-4`."""
    match = _HYPHEN.fullmatch(value.strip()) if isinstance(value, str) else None
    return f": write {match[1]}..{match[2]}" if match else ""


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
