"""A file of dstack while it is translated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TAGS = "tags"
"""Of dstack too, but a word that others would write: it makes no file one of dstack."""
DEV_ENVIRONMENT = "dev-environment"


class Work:
    """The configuration as it becomes ours, and the notes for its user."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = dict(data)
        self.notes: list[str] = []
        self.silently = False
        """A form of dstack was translated that needs no note."""

    def note(self, phrase: str) -> None:
        if phrase not in self.notes:
            self.notes.append(phrase)


def mappings_of(value: object) -> list[dict[str, Any]]:
    """Return the mappings in a list; nothing for any other value."""
    return (
        [one for one in value if isinstance(one, dict)] if isinstance(value, list | tuple) else []
    )
