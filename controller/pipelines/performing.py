"""What the performers of all stages share."""

from __future__ import annotations


class TryAgain(Exception):
    """The node could not do it now; the text says why."""
