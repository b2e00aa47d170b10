"""A sweep's parameter sets, and how many of them may run at once (docs/rules.md 11)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

Value = str | int | float | bool
Parameters = Mapping[str, Value]
"""One set: the values by their names."""
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[Value]).decode


class SetStatus(StrEnum):
    """What became of a set so far."""

    WAITING = "waiting"
    """It has not begun, or waits to begin again."""
    ACTIVE = "active"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


class ParameterSets(msgspec.Struct, frozen=True, kw_only=True):
    """The sets of a sweep, by their numbers from 0.

    A set that waits has to cost little, so its values are kept as the bytes of a JSON list, in the
    order of `names`: some 70 bytes for three short values, where a dict takes 500.
    """

    names: tuple[str, ...]
    rows: tuple[bytes, ...]

    @classmethod
    def of(cls, names: Sequence[str], rows: Iterable[Sequence[Value]]) -> ParameterSets:
        """`rows`: the values of each set, in the order of `names`."""
        return cls(names=tuple(names), rows=tuple(_encode(row) for row in rows))

    def __len__(self) -> int:
        return len(self.rows)

    def at(self, number: int) -> dict[str, Value]:
        """Return the set with this number. Raises IndexError."""
        return dict(zip(self.names, _decode(self.rows[number]), strict=True))

    def text(self) -> str:
        """Return all sets as lines of JSON, the names first: the form in which they are stored."""
        return b"\n".join((_encode(self.names), *self.rows)).decode()

    @classmethod
    def read(cls, text: str) -> ParameterSets:
        """Return the sets of such a text."""
        names, *rows = text.encode().split(b"\n")
        return cls(names=msgspec.json.decode(names, type=tuple[str, ...]), rows=tuple(rows))


class SweepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep as its configuration asks for it."""

    sets: ParameterSets
    max_parallel: int | None = None
    """None: as many as there is room for."""
    stop_after_failures: int | None = None
    """The number of failed sets that ends the run; None: no number does."""
    reuse_container: bool = False
    """Jobs run one after another in one container."""


def as_text(value: Value) -> str:
    """Return the value as it stands in a variable or a command: numbers as in JSON."""
    return value if isinstance(value, str) else _encode(value).decode()


def is_meant(value: Value, text: str) -> bool:
    """Return whether a user who writes so means this value: 1e-3 and 0.001 are one number."""
    if as_text(value) == text:
        return True
    if isinstance(value, str | bool):
        return False
    try:
        return float(text) == value
    except ValueError:
        return False
