"""Why a task does not get its volumes."""

from __future__ import annotations

from shim.engines.base import EngineError


class VolumeError(EngineError):
    """The volume cannot be had; the text names it and what to do."""

    reason = "volume_error"
