"""What can go wrong in a way that somebody must be told."""

from __future__ import annotations


class CannotStart(Exception):
    """The commands cannot be started; the text is for the user (exit record, executor_error)."""
