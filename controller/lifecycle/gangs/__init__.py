"""Gangs: jobs that are placed together and restart together, in incarnations (docs/rules.md 5).

Other packages ask `queries`. Each other module holds one rule of that section: `incarnation` its
begin and its phases, `switching` the switch, `membership` ranks and surviving allocations, `freed`
what a switch keeps for its run.
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
    ranked_attempts,
    ranked_hold_allocations,
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
    "ranked_attempts",
    "ranked_hold_allocations",
    "waiting_ranked",
    "waiting_reserved",
]
