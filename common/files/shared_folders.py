"""Folders that others change at the same time: what they hold now, and their removal.

Between a listing and the next call, a file may be replaced and a folder removed. All functions
block.
"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

_TRIES = 8
# Another process of the node made or removed an entry between our look and our call.
_CHANGED_MEANWHILE = (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST)


def entries(folder: Path) -> list[Path]:
    """Return what the folder has now; a missing folder has nothing. Raises OSError."""
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def entries_below(folder: Path) -> list[Path]:
    """Return what the folders in this folder have now. Raises OSError."""
    return [entry for part in entries(folder) for entry in entries(part)]


def written_at(path: Path) -> float | None:
    """Return the Unix time of its last change; None when it is gone. Raises OSError."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None


def remove(folder: Path) -> bool:
    """Remove the folder; return False when others fill it faster than that. Raises OSError."""
    for _ in range(_TRIES):
        try:
            shutil.rmtree(folder)
        except OSError as error:
            # rmtree gives up at the first file that another has removed, or put there.
            if error.errno not in _CHANGED_MEANWHILE:
                raise
        if not folder.exists():
            return True
    return False
