"""What can go wrong in a way that somebody must be told."""

from __future__ import annotations


class Refused(Exception):
    """A request that cannot be answered as asked; becomes the one JSON error shape."""

    def __init__(self, status: int, code: str, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.field = field


class CannotStart(Exception):
    """The commands cannot be started; the text is for the user (exit record, executor_error)."""
