"""The one way in which the shim says no.

Every refusal that a caller may see is a `ShimProblem`: a stable code, a sentence for the person who
must fix it, and the field that is wrong. The app turns it into the project's one error shape.
"""

from __future__ import annotations


class ShimProblem(Exception):
    """A refusal with its HTTP status. `code` is part of the API; `message` is not."""

    def __init__(self, status: int, code: str, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.field = field


def invalid(message: str, field: str) -> ShimProblem:
    return ShimProblem(400, "invalid", message, field)


def not_found(message: str) -> ShimProblem:
    return ShimProblem(404, "not_found", message)


def conflict(message: str, field: str | None = None) -> ShimProblem:
    return ShimProblem(409, "conflict", message, field)


class StartError(Exception):
    """The shim cannot start; the text says why and what to do."""
