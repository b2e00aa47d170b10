"""What a job may need its node's engine to do; not every engine can."""

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
