"""Changes an attempt by the names of its fields, whichever of its parts has them."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import fields, replace

from controller.lifecycle.model import (
    Attempt,
    Inactivity,
    Interruption,
    LimitPause,
    Pull,
    Seen,
    Serving,
    TaskDetails,
)

_PARTS: dict[str, type[Struct]] = {
    "limit_pause": LimitPause,
    "pull": Pull,
    "task": TaskDetails,
    "seen": Seen,
    "serving": Serving,
    "inactivity": Inactivity,
    "interruption": Interruption,
}
_PART_OF = {field.encode_name: part for part, type_ in _PARTS.items() for field in fields(type_)}


def attempt_with(attempt: Attempt, **changes: Any) -> Attempt:
    """Return the attempt with these fields; those of its parts have the names of the stored row."""
    for key in [key for key in changes if key in _PART_OF]:
        part, content = _PART_OF[key], changes.pop(key)
        known = getattr(attempt, part)
        type_ = _PARTS[part]
        name = next(field.name for field in fields(type_) if field.encode_name == key)
        changed = type_(**{name: content}) if known is None else replace(known, **{name: content})
        attempt = replace(attempt, **{part: changed})
    return replace(attempt, **changes)
