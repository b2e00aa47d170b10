"""The files of an attempt's log: segments of whole frames, named by the offset of their first byte.

The runner writes them in the task's folder, the shim sends them as they are, and the controller
keeps its own. A job may put any other file beside them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_NAME = re.compile(r"(\d{20})\.seg", re.ASCII)


def name(start: int) -> str:
    return f"{start:020d}.seg"


def path(folder: Path, start: int) -> Path:
    return folder / name(start)


def starts(names: Iterable[str]) -> list[int]:
    """Return the offsets at which the segments among these files begin, in order."""
    return sorted(int(found[1]) for one in names if (found := _NAME.fullmatch(one)))


def starts_in(folder: Path) -> list[int]:
    """Return the offsets at which the folder's segments begin, in order; a missing folder has
    none."""
    try:
        return starts(entry.name for entry in folder.iterdir())
    # The folder lies below that of a job, which may have put a file in its place.
    except (FileNotFoundError, NotADirectoryError):
        return []
