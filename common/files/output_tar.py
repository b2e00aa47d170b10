"""The tar of what a job left in its output folder: what goes into it, and its headers.

The job made the tree and may be hostile. A `Tree` opens it through no link; only plain files,
folders and links that stay within the folder are sent.
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator
from typing import Protocol

import msgspec

from fairlead.wire.sizes import OutputsAbout

MAX_ENTRIES = 100_000
"""Files and folders that are sent."""
_MAX_SEEN = 2 * MAX_ENTRIES
"""Entries that are looked at: what lies beyond is left out, and counted as one."""
_MAX_NAME = 1024
"""Bytes of a path below the output folder."""
_BLOCK = tarfile.BLOCKSIZE
END = bytes(2 * _BLOCK)


class Entry(msgspec.Struct, frozen=True):
    name: str
    mode: int
    mtime: int
    size: int | None
    """None: a folder, or a link."""
    link: str | None = None


class Plan(msgspec.Struct, frozen=True):
    entries: tuple[Entry, ...]
    about: OutputsAbout


class Tree(Protocol):
    """The output folder, whose names are paths below it; "" is the folder. Each method raises
    OSError for what is not there, is of another kind, or lies behind a link."""

    def open_folder(self, name: str) -> int: ...
    def open_file(self, name: str) -> int: ...
    def read_link(self, name: str) -> str: ...


def plan(tree: Tree, limit: int, *, links: bool = False) -> Plan:
    """Return what is sent: whole files in the order of their names, as long as all of them have at
    most `limit` bytes; links that lead out of the output folder never are. Blocking."""
    walk = _Walk(tree, limit, links)
    walk.run()
    length = sum(len(header(entry)) + padded(entry.size or 0) for entry in walk.entries)
    about = OutputsAbout(
        files=walk.files,
        size=walk.size,
        left_out=walk.left_out,
        left_out_size=walk.left_out_size,
        length=length + len(END),
    )
    return Plan(tuple(walk.entries), about)


class _Walk:
    def __init__(self, tree: Tree, limit: int, links: bool) -> None:
        self.entries: list[Entry] = []
        self.files = self.size = self.left_out = self.left_out_size = 0
        self._tree = tree
        self._limit = limit
        self._links = links
        self._seen = 0

    def run(self) -> None:
        folders = [""]
        while folders:
            below = []
            for name, found in self._listed(folders.pop()):
                self._seen += 1
                if self._seen > _MAX_SEEN:
                    self.left_out += 1
                    return
                if self._take(name, found):
                    below.append(name)
            folders.extend(reversed(below))

    def _listed(self, folder: str) -> list[tuple[str, os.stat_result]]:
        try:
            fd = self._tree.open_folder(folder)
        except OSError:
            # A job that still ends may have removed it, or put a link in its place.
            self.left_out += 1
            return []
        try:
            with os.scandir(fd) as entries:
                return sorted(_looked_at(entries, folder, _MAX_SEEN - self._seen + 1))
        finally:
            os.close(fd)

    def _take(self, name: str, found: os.stat_result) -> bool:
        """Note the entry; return whether it is a folder to look into."""
        if self._links and stat.S_ISLNK(found.st_mode):
            self._take_link(name, found)
            return False
        is_folder = stat.S_ISDIR(found.st_mode)
        size = None if is_folder else found.st_size
        is_plain = is_folder or (stat.S_ISREG(found.st_mode) and self._opens(name))
        fits = self.size + (size or 0) <= self._limit and len(self.entries) < MAX_ENTRIES
        if not (is_plain and fits and _can_be_named(name)):
            self.left_out += 1
            self.left_out_size += found.st_size if stat.S_ISREG(found.st_mode) else 0
            return False
        mode = stat.S_IMODE(found.st_mode) & 0o777
        self.entries.append(Entry(name, mode, max(0, int(found.st_mtime)), size))
        if not is_folder:
            self.files += 1
            self.size += found.st_size
        return is_folder

    def _take_link(self, name: str, found: os.stat_result) -> None:
        try:
            target = self._tree.read_link(name)
        except OSError:
            # readlink(2) of what was replaced since it was listed fails with EINVAL.
            target = ""
        fits = len(self.entries) < MAX_ENTRIES and _can_be_named(name)
        if not (fits and _can_be_named(target) and _stays_within(name, target)):
            self.left_out += 1
            return
        self.entries.append(Entry(name, 0o777, max(0, int(found.st_mtime)), None, target))

    def _opens(self, name: str) -> bool:
        try:
            os.close(self._tree.open_file(name))
        except OSError:
            return False
        return True


def _looked_at(
    entries: Iterator[os.DirEntry[str]], folder: str, most: int
) -> Iterator[tuple[str, os.stat_result]]:
    for entry in entries:
        if most <= 0:
            return
        most -= 1
        try:
            found = entry.stat(follow_symlinks=False)
        except OSError:
            # Removed since the folder was read: a left-over process of the job may still write.
            continue
        yield f"{folder}/{entry.name}" if folder else entry.name, found


def _can_be_named(name: str) -> bool:
    try:
        # The kernel takes any bytes as a name; the headers of pax are UTF-8.
        return len(name.encode()) <= _MAX_NAME
    except UnicodeEncodeError:
        return False


def _stays_within(name: str, target: str) -> bool:
    """Return whether a link leads to a place within the output folder, whatever lies on its way: it
    goes up first, and not further than the folder."""
    if not target or target.startswith("/"):
        return False
    steps = [step for step in target.split("/") if step not in ("", ".")]
    ups = next((at for at, step in enumerate(steps) if step != ".."), len(steps))
    return ups <= name.count("/") and ".." not in steps[ups:]


def header(entry: Entry) -> bytes:
    info = tarfile.TarInfo(entry.name)
    info.mode, info.mtime, info.size = entry.mode, entry.mtime, entry.size or 0
    info.type = tarfile.DIRTYPE if entry.size is None else tarfile.REGTYPE
    if entry.link is not None:
        info.type, info.linkname = tarfile.SYMTYPE, entry.link
    return info.tobuf(tarfile.PAX_FORMAT)


def padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK
