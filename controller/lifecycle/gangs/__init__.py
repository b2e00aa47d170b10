"""Gangs: jobs that live and die together, in incarnations (docs/rules.md 5).

`reading` is what everybody else asks; the other modules hold one rule of the section each.
"""

from controller.lifecycle.gangs.queries import (
    anchors,
    current_attempts,
    in_gang_group,
    is_current,
    is_gang_run,
    is_reserved,
    is_there,
    is_whole,
    kept,
    ranked_attempts,
    ranked_hold_places,
    waiting_ranked,
    waiting_reserved,
)

__all__ = [
    "anchors",
    "current_attempts",
    "in_gang_group",
    "is_current",
    "is_gang_run",
    "is_reserved",
    "is_there",
    "is_whole",
    "kept",
    "ranked_attempts",
    "ranked_hold_places",
    "waiting_ranked",
    "waiting_reserved",
]
