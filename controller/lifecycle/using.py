"""What a place that somebody holds counts in the scheduler's fair turns."""

from __future__ import annotations

from controller.lifecycle.model import Allocation, Use


def use_of(place: Allocation, user: str) -> Use:
    """A nominated place counts for nobody yet: do not ask for it."""
    return Use(
        user=user,
        gpus=len(place.gpus),
        cpu=place.resources.cpu,
        start=place.created_at,
        end=place.released_at,
    )
