"""How long a job may take to end when its container is being stopped, by the word of who stops it.

The job may be root and put anything in the file's place: it is read without waiting and capped. All
that it could win is less time for itself; the container's end comes when it comes.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import msgspec

from runner.schemas import STOP_ORDER_NAME, StopOrder

_MOST_BYTES = 1 << 10
_log = logging.getLogger(__name__)


def grace_left(task: Path, now: float) -> float | None:
    """Seconds; None when nobody said. Blocking, but never for long."""
    try:
        order = msgspec.json.decode(_read(task / STOP_ORDER_NAME), type=StopOrder)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        _log.error("how long the job may take to end cannot be read: %s", error)
        return None
    return max(0.0, order.kill_at - now)


def _read(path: Path) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path.name} is no regular file")
        return file.read(_MOST_BYTES)
