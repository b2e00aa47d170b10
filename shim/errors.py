"""The one way in which the shim refuses, and the errors of starting it and of its engines.

Every refusal that a caller may see is a `Refused`: a stable code, a sentence for the person who
must act, and the wrong field. The app turns it into the project's one error shape.
"""

from __future__ import annotations

from fairlead.wire.errors import Refused
from fairlead.wire.shim import RefusalCode, TaskReason


def invalid(message: str, field: str) -> Refused:
    return Refused(400, "invalid", message, field)


def not_found(message: str) -> Refused:
    return Refused(404, RefusalCode.NOT_FOUND, message)


def conflict(message: str, field: str | None = None) -> Refused:
    return Refused(409, "conflict", message, field)


class StartError(Exception):
    """The shim cannot start; the message says why and what to do."""


class EngineError(Exception):
    """The engine refused; the message is for the user. `reason`: the task's reason if it ends
    because of this."""

    reason = TaskReason.CREATING_CONTAINER_ERROR


class VolumeError(EngineError):
    """The volume cannot be used; the message names it and what to do."""

    reason = TaskReason.VOLUME_ERROR
