"""What the Docker engine answers when it will not, told apart as far as our parts need it."""

from __future__ import annotations

from shim.engines.base import EngineError


class NotFound(EngineError):
    pass


class Conflict(EngineError):
    pass
