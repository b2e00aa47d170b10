"""What a job finds around itself in a container that is used again, and whether it left it so.

It sees mounts, and the entries of the temporary folders and of the working folder. A file that was
changed in place elsewhere is not seen: all jobs of a container belong to one run of one user.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import msgspec

from runner.processes import scratch

TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")
_MOST = 10_000
"""Entries of a folder that are looked at; a job with more is not worth a look after each."""
_OURS = "fairlead-"
"""The runner's own folders in memory begin so (see `scratch` and `session_environment`)."""

Entry = tuple[str, int, int, int, int]
"""Name, inode, mode and size, and the time of the last change, which no job can set."""
Entries = frozenset[Entry] | None
"""None: too many to look at."""


class Surroundings(msgspec.Struct, frozen=True):
    mounts: bytes
    folders: dict[str, Entries]


def look(working_dir: str, *, alone: bool) -> Surroundings:
    """Return what is there now. `alone`: mounts and temporary folders are the container's own, so
    that nobody else changes them. Blocking."""
    if not alone:
        return Surroundings(b"", {working_dir: _entries(working_dir)})
    folders = (*TEMPORARY, working_dir)
    return Surroundings(_mounts(), {folder: _entries(folder) for folder in folders})


def difference(before: Surroundings, after: Surroundings) -> str | None:
    """Return what a job changed, as a sentence's part; None: nothing that can be seen."""
    if before.mounts != after.mounts:
        return "the mounts changed"
    for folder, entries in after.folders.items():
        if entries is None:
            return f"{folder} has more than {_MOST} entries"
        if entries != before.folders.get(folder):
            return f"{folder} changed"
    return None


def _mounts() -> bytes:
    try:
        with open("/proc/self/mountinfo", "rb") as table:
            return table.read()
    except OSError:
        return b""


def _entries(folder: str) -> Entries:
    # In the job's own folder, a name of ours is the job's.
    ours = (_OURS,) if Path(folder) in scratch.PLACES else ()
    try:
        with os.scandir(folder) as found:
            some = list(islice(found, _MOST + 1))
            return None if len(some) > _MOST else frozenset(_of(some, ours))
    except OSError:
        return frozenset()


def _of(found: Iterable[os.DirEntry[str]], ours: tuple[str, ...]) -> Iterable[Entry]:
    for entry in found:
        if entry.name.startswith(ours):
            continue
        try:
            about = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        yield entry.name, about.st_ino, about.st_mode, about.st_size, about.st_ctime_ns
