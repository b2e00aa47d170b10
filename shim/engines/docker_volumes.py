"""Named Docker volumes: a task's `data` is the engine's `fairlead-data`.

So a user reaches no volume that other software of the node made, and an operator offers one (with
any driver) by giving it such a name. They are never removed here: their content is the users'.
"""

from __future__ import annotations

from typing import Any

from shim.engines.base import EngineError, EngineUnavailable, NodeFault
from shim.engines.docker_errors import NotFound, Refused
from shim.volumes.errors import VolumeError

_PREFIX = "fairlead-"


async def ensure_volume(call: Any, api: Any, name: str) -> str:
    """Raises VolumeError."""
    full = _PREFIX + name
    try:
        try:
            await call(lambda: api.inspect_volume(full))
        except NotFound:
            await call(lambda: api.create_volume(full))
    except EngineUnavailable:
        raise
    except Refused as error:
        if error.status >= 500:
            raise NodeFault(f"volume {name}: {error}") from None
        raise VolumeError(f"volume {name}: {error}") from None
    except EngineError as error:
        raise VolumeError(f"volume {name}: {error}") from None
    return full
