"""What a run's decision must know of the world beside the run's own state."""

from __future__ import annotations

from typing import Final

import msgspec


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    unusable_nodes: frozenset[str] = frozenset()
    """Not connected, draining, cordoned, unfit or unknown: no place there outlives its attempt."""
    draining_nodes: frozenset[str] = frozenset()
    """Those of the unusable nodes that are to become empty: a place there is kept for nobody."""
    undecided_nodes: frozenset[str] = frozenset()
    """Nodes of this run's places to which a link is just being made: nobody knows yet whether they
    are usable."""
    broken_places: frozenset[str] = frozenset()
    """Allocations of this run of which a GPU is broken."""
    nominated: frozenset[str] = frozenset()
    """Allocations of this run on whose place another run's nomination lies."""
    next_trigger: float | None = None
    """When a cron expression of the run fires next after now; None: it has none, or never."""


NOTHING_ELSE: Final = Surroundings()
