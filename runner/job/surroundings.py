"""What a job finds around itself in a container that is used again, and whether it left it so.

It sees mounts, the entries of the temporary folders and of the working folder, and all files of the
code that was brought. A file that was changed in place elsewhere is not seen: all jobs of a
container belong to one run of one user. Folders of compiled Python are no change: Python compares
what is in them with its source.
"""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import msgspec

from runner.processes import scratch

TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue")
_SHARED = ("shm", "sem", "msg")
"""What System V's calls make, which outlives its processes (sysvipc(7))."""
_MAX_ENTRIES = 10_000
"""Entries of a folder, or below a folder of code, that are looked at; a job with more is not worth
a look after each."""
_LIMITS = 16
"""How many limits Linux has (getrlimit(2)); `resource` has no name for the number."""
_COMPILED = "__pycache__"
_OURS = "fairlead-"
"""The runner's own folders in memory begin so (see `scratch` and `session_environment`)."""

Entry = tuple[str, int, int, int, int]
"""Name, inode, mode and size, and the time of the last change, which no job can set; of a folder
that is looked into its owner and group."""
Entries = frozenset[Entry] | None
"""None: too many to look at."""


class Surroundings(msgspec.Struct, frozen=True):
    mounts: bytes
    folders: dict[str, Entries]
    shared: frozenset[str] = frozenset()
    limits: tuple[tuple[int, int], ...] = ()
    """This process's own, which the next job inherits."""


def look(working_dir: str, code: Iterable[str] = (), *, alone: bool) -> Surroundings:
    """Return what is there now. `code`: the folders of the job's code. `alone`: mounts and
    temporary folders are the container's own, so that nobody else changes them. Blocking."""
    brought = frozenset(code)
    folders = {folder: _tree(folder) for folder in brought}
    shallow = (*TEMPORARY, working_dir) if alone else (working_dir,)
    for folder in shallow:
        if folder not in brought:
            folders[folder] = _entries(folder, brought)
    if not alone:
        return Surroundings(b"", folders, limits=_limits())
    return Surroundings(_mounts(), folders, _shared_memory(), _limits())


def difference(before: Surroundings, after: Surroundings) -> str | None:
    """Return what a job changed, as a sentence's part; None: nothing that can be seen."""
    if before.mounts != after.mounts:
        return "the mounts changed"
    if before.shared != after.shared:
        return "the shared memory, semaphores or message queues changed"
    if before.limits != after.limits:
        return "the limits of the runner's process changed"
    for folder, entries in after.folders.items():
        if entries is None:
            return f"{folder} has more than {_MAX_ENTRIES} entries"
        if entries != before.folders.get(folder):
            return f"{folder} changed"
    return None


def _mounts() -> bytes:
    try:
        with open("/proc/self/mountinfo", "rb") as table:
            return table.read()
    except OSError:
        return b""


def _shared_memory() -> frozenset[str]:
    found: set[str] = set()
    for kind in _SHARED:
        with suppress(OSError), open(f"/proc/sysvipc/{kind}") as table:
            # Key and id: the other columns have times, and who uses it now.
            found.update(
                " ".join((kind, *line.split()[:2])) for line in islice(table, 1, _MAX_ENTRIES)
            )
    return frozenset(found)


def _limits() -> tuple[tuple[int, int], ...]:
    return tuple(resource.getrlimit(one) for one in range(_LIMITS))


def _entries(folder: str, brought: frozenset[str]) -> Entries:
    # In the job's own folder, a name of ours is the job's.
    ours = (_OURS,) if Path(folder) in scratch.FOLDERS else ()
    try:
        with os.scandir(folder) as found:
            some = [one for one in islice(found, _MAX_ENTRIES + 1) if not one.name.startswith(ours)]
        itself = _itself(".", os.stat(folder))
    except OSError:
        return frozenset()
    return None if len(some) > _MAX_ENTRIES else frozenset((itself, *_of(some, brought)))


def _itself(name: str, about: os.stat_result) -> Entry:
    """Return a folder as such: its times tell of entries, which are looked at by themselves."""
    return name, about.st_ino, about.st_mode, about.st_uid, about.st_gid


def _of(found: Iterable[os.DirEntry[str]], brought: frozenset[str]) -> Iterator[Entry]:
    for entry in found:
        # What is below a folder of code is looked at by itself.
        if entry.name == _COMPILED or entry.path in brought:
            continue
        with suppress(OSError):
            # It was removed since the folder was listed.
            yield _entry(entry.name, entry.stat(follow_symlinks=False))


def _entry(name: str, about: os.stat_result) -> Entry:
    return name, about.st_ino, about.st_mode, about.st_size, about.st_ctime_ns


def _tree(root: str) -> Entries:
    """Return all that is below the folder, without the times of folders: their entries tell."""
    seen: set[Entry] = set()
    left = [root]
    while left:
        folder = left.pop()
        try:
            with os.scandir(folder) as found:
                for entry in found:
                    if entry.name == _COMPILED:
                        continue
                    if len(seen) >= _MAX_ENTRIES:
                        return None
                    about = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(about.st_mode):
                        left.append(entry.path)
                        seen.add(_itself(entry.path, about))
                    else:
                        seen.add(_entry(entry.path, about))
        # It was removed since it was listed.
        except OSError:
            continue
    return frozenset(seen)
