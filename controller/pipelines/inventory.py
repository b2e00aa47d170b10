"""Changes of nodes and fleets on their way into the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from controller.lifecycle.model import Fleet, Node

T = TypeVar("T")


class Inventory(msgspec.Struct):
    """Nodes and fleets that were changed or (None) removed and are not committed yet."""

    nodes: dict[str, Node | None] = {}
    fleets: dict[str, Fleet | None] = {}
    stored_nodes: dict[str, Node | None] = {}
    stored_fleets: dict[str, Fleet | None] = {}
    """What the store has of these."""

    def over(self, older: Inventory) -> Inventory:
        """Both, of which `older` could not be committed."""
        return Inventory(
            nodes={**older.nodes, **self.nodes},
            fleets={**older.fleets, **self.fleets},
            stored_nodes={**self.stored_nodes, **older.stored_nodes},
            stored_fleets={**self.stored_fleets, **older.stored_fleets},
        )


def there(changes: Mapping[str, T | None]) -> dict[str, T]:
    return {key: value for key, value in changes.items() if value is not None}


def gone(changes: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(key for key, value in changes.items() if value is None)
