"""What the Docker engine answers when it will not, told apart as far as our parts need it."""

from __future__ import annotations

import re

from shim.engines.base import EngineError, EngineUnavailable

_SYSTEMS_WORDS = re.compile(r"Error\(\d+, '([^']+)'\)|\[Errno \d+\] ([^\"')]+)")
"""How requests quotes what the system said, somewhere within its own words."""
_DENIED = "Permission denied"


class Refused(EngineError):
    """`status` is that of the engine's answer."""

    def __init__(self, message: str, status: int = 500) -> None:
        super().__init__(message)
        self.status = status


class NotFound(Refused):
    def __init__(self, message: str) -> None:
        super().__init__(message, 404)


class Conflict(Refused):
    def __init__(self, message: str) -> None:
        super().__init__(message, 409)


def unreachable(url: str, error: Exception) -> EngineUnavailable:
    """Nobody answers at `url`, for a person who must do something about it."""
    found = _SYSTEMS_WORDS.search(str(error))
    why = (found[1] or found[2]) if found else str(error)[:200]
    what_to_do = (
        "the shim needs root, or the group of this socket"
        if why == _DENIED
        else "is Docker installed and running there? (DOCKER_HOST says where it is)"
    )
    return EngineUnavailable(f"the Docker engine at {url} does not answer: {why}; {what_to_do}")
