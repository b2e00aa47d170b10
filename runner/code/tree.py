"""The tree writer puts an archive's entries below one folder, never through a link. Blocking.

Every step opens one name relative to an open folder with O_NOFOLLOW. So nothing that was there
before, or that the archive itself brought, can lead outside.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

from common.files.durable import write_all
from runner.code.archive import Entry, Kind, Parts, TarReader, shown, unpacked
from runner.code.errors import ArchiveLimits, BadArchive

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# With O_DIRECTORY, Linux says ENOTDIR of a link; open(2) documents ELOOP.
_NOT_A_FOLDER = frozenset({errno.ELOOP, errno.ENOTDIR})


class TreeWriter:
    """Writes entries. `owner`: uid and gid of everything it makes; None: this process's.

    With `replace`, existing files and links of the same name are replaced, folders are not. Raises
    BadArchive, OSError.
    """

    def __init__(
        self, root: int, *, owner: tuple[int, int] | None = None, replace: bool = False
    ) -> None:
        self._root = root
        self._owner = owner
        self._replace = replace
        self._open: list[tuple[bytes, int]] = []
        self._seen: dict[Parts, Kind] = {}
        self._made: set[Parts] = set()

    @property
    def names(self) -> frozenset[Parts]:
        """What was written, without folders."""
        return frozenset(parts for parts, kind in self._seen.items() if kind is not Kind.FOLDER)

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop()[1])

    def write(self, entry: Entry, content: Iterable[bytes]) -> None:
        self._note(entry)
        if entry.kind is Kind.FOLDER:
            folder = self._enter(entry.parts)
            if entry.parts in self._made:
                # What is in it comes after it, and needs the rights of its owner.
                os.fchmod(folder, entry.mode | stat.S_IRWXU)
            return
        folder = self._enter(entry.parts[:-1])
        try:
            self._put(entry, folder, content)
        except FileExistsError:
            if not self._replace:
                self._exists(entry.name)
            self._clear(entry, folder)
            self._put(entry, folder, content)

    def _note(self, entry: Entry) -> None:
        """Remember an entry. Only a folder may come twice; any other repetition is suspicious."""
        before = self._seen.get(entry.parts)
        if before is not None and (before is not Kind.FOLDER or entry.kind is not Kind.FOLDER):
            raise BadArchive(f"{entry.name} is in the archive twice")
        self._seen[entry.parts] = entry.kind

    def _put(self, entry: Entry, folder: int, content: Iterable[bytes]) -> None:
        name = entry.parts[-1]
        if entry.kind is Kind.SYMLINK:
            os.symlink(entry.target, name, dir_fd=folder)
            if self._owner is not None:
                # Of the link, not of what it leads to: that may be a file of the image.
                os.chown(name, *self._owner, dir_fd=folder, follow_symlinks=False)
        elif entry.kind is Kind.HARDLINK:
            self._link(entry)
        else:
            self._file(entry, folder, content)

    def _file(self, entry: Entry, folder: int, content: Iterable[bytes]) -> None:
        fd = os.open(entry.parts[-1], _NEW_FILE, 0o600, dir_fd=folder)
        try:
            for piece in content:
                write_all(fd, piece)
            if self._owner is not None:
                os.fchown(fd, *self._owner)
            # After fchown, which may clear bits of the mode (chown(2)).
            os.fchmod(fd, entry.mode | stat.S_IRUSR | stat.S_IWUSR)
            os.utime(fd, (entry.mtime, entry.mtime))
        finally:
            os.close(fd)

    def _link(self, entry: Entry) -> None:
        is_file = self._seen.get(entry.source) in (Kind.FILE, Kind.HARDLINK)
        if not is_file or entry.source == entry.parts:
            raise BadArchive(f"{entry.name} is a link to a file that did not come before it")
        # A copy, because the next `_enter` may close this folder.
        source = os.dup(self._enter(entry.source[:-1]))
        try:
            os.link(
                entry.source[-1],
                entry.parts[-1],
                src_dir_fd=source,
                dst_dir_fd=self._enter(entry.parts[:-1]),
                follow_symlinks=False,
            )
        finally:
            os.close(source)

    def _clear(self, entry: Entry, folder: int) -> None:
        try:
            os.unlink(entry.parts[-1], dir_fd=folder)
        except (IsADirectoryError, PermissionError):
            # unlink(2) of a folder is EISDIR on Linux, and EPERM by POSIX.
            raise BadArchive(f"{entry.name} is already a folder there") from None

    def _exists(self, name: str) -> NoReturn:
        raise BadArchive(f"{name} already exists (or differs from another name only by case)")

    def _enter(self, parts: Parts) -> int:
        """Return a descriptor of the folder, which this writer owns; missing folders are made."""
        shared = 0
        while shared < min(len(parts), len(self._open)) and self._open[shared][0] == parts[shared]:
            shared += 1
        while len(self._open) > shared:
            os.close(self._open.pop()[1])
        for depth in range(shared, len(parts)):
            parent = self._open[-1][1] if self._open else self._root
            self._open.append((parts[depth], self._step(parent, parts[: depth + 1])))
        return self._open[-1][1] if self._open else self._root

    def _step(self, parent: int, parts: Parts) -> int:
        name = parts[-1]
        made = False
        try:
            os.mkdir(name, 0o755, dir_fd=parent)
            made = True
        except FileExistsError:
            # It may be a link: opening it decides, which follows none.
            pass
        try:
            fd = os.open(name, _FOLDER, dir_fd=parent)
        except OSError as error:
            if error.errno in _NOT_A_FOLDER:
                where = shown(b"/".join(parts))
                raise BadArchive(f"{where} is a link or file, not a folder") from None
            raise
        if made:
            self._made.add(parts)
            self._seen.setdefault(parts, Kind.FOLDER)
            # The umask has cut the mode of mkdir(2).
            os.fchmod(fd, 0o755)
            if self._owner is not None:
                os.fchown(fd, *self._owner)
        return fd


def unpack(
    blob: Path,
    target: Path,
    *,
    owner: tuple[int, int] | None = None,
    replace: bool = False,
    limits: ArchiveLimits | None = None,
    check: Callable[[], None] = lambda: None,
) -> frozenset[Parts]:
    """Unpack a blob; return the names of what was written, without folders. What was written before
    a refusal stays. Raises BadArchive, OSError. Blocking.

    `check` is called often and may raise to end it.
    """
    with blob.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        reader = TarReader(unpacked(file), size, limits or ArchiveLimits())
        root = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        writer = TreeWriter(root, owner=owner, replace=replace)
        try:
            for entry in reader:
                check()
                writer.write(entry, reader.pieces())
        finally:
            writer.close()
            os.close(root)
    return writer.names


def remove(target: Path, names: Iterable[Parts]) -> None:
    """Remove what was unpacked below `target`, and the folders that are empty then. What is gone,
    or has become a folder, stays as it is. Raises OSError. Blocking."""
    root = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    folders: set[Parts] = set()
    try:
        for parts in names:
            _remove_one(root, parts, os.unlink)
            folders.update(parts[:depth] for depth in range(1, len(parts)))
        for parts in sorted(folders, key=len, reverse=True):
            _remove_one(root, parts, os.rmdir)
    finally:
        os.close(root)


_STAYS = frozenset(
    {
        *(errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR),
        # rmdir(2): it is not empty. unlink(2) of a folder is EPERM by POSIX.
        *(errno.ENOTEMPTY, errno.EEXIST, errno.EPERM),
    }
)


def _remove_one(root: int, parts: Parts, unlink: Callable[..., None]) -> None:
    """Remove one entry, never through a link: the job may have put one there."""
    folder = os.dup(root)
    try:
        for name in parts[:-1]:
            below = os.open(name, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = below
        unlink(parts[-1], dir_fd=folder)
    except OSError as error:
        if error.errno not in _STAYS:
            raise
    finally:
        os.close(folder)
