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


def there(changes: Mapping[str, T | None]) -> dict[str, T]:
    return {key: value for key, value in changes.items() if value is not None}


def gone(changes: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(key for key, value in changes.items() if value is None)
