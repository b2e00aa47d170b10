"""What a job may need its node's engine and agents to do; not every node can."""

from __future__ import annotations

from enum import StrEnum


class EngineAbility(StrEnum):
    """The values go between controller and shim, and stay as they are."""

    IMAGES = "images"
    """A task runs in the image that it names."""
    VOLUMES = "volumes"
    OPTIONS = "container options"
    """A task gets the capabilities, limits and the like that it asks for, and may install software
    without changing its node."""
    SIGNAL = "signal"
    """A task gets its `signal` before a foreseeable end. It depends on the version of the agents,
    not on the engine."""


KNOWN_TO_ALL = frozenset({EngineAbility.IMAGES, EngineAbility.VOLUMES, EngineAbility.OPTIONS})
"""The abilities that each shim knows. One that does not name a later ability does not have it."""
