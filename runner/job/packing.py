"""The outputs of a carried job, packed into one tar before the next job begins.

Its container goes on, so what another job of it could change is copied at once, and the output
folder is removed. Its processes are gone; the tree may still be hostile, so it is opened folder by
folder, through no link.
"""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from common.files import output_tar
from fairlead.wire.sizes import OutputsAbout

ARCHIVE_NAME = "outputs.tar"
_PIECE = 1 << 20


class _Folder:
    """The tree below an open folder. A kernel or a sandbox may lack openat2(2) in a container, so
    each part of a path is opened by itself."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def open_folder(self, name: str) -> int:
        at = os.dup(self._fd)
        for part in name.split("/") if name else ():
            try:
                below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | _SAFELY, dir_fd=at)
            finally:
                os.close(at)
            at = below
        return at

    def open_file(self, name: str) -> int:
        folder, _, last = name.rpartition("/")
        above = self.open_folder(folder)
        try:
            fd = os.open(last, os.O_RDONLY | _SAFELY, dir_fd=above)
        finally:
            os.close(above)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(f"{name} is not a regular file")
        return fd

    def read_link(self, name: str) -> str:
        folder, _, last = name.rpartition("/")
        above = self.open_folder(folder)
        try:
            return os.readlink(last, dir_fd=above)
        finally:
            os.close(above)


# Without O_NONBLOCK, the open of a FIFO waits for its other end (fifo(7)).
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def pack(folder: Path, archive: Path, limit: int) -> OutputsAbout:
    """Pack `folder`, at most `limit` bytes of content, and remove it. Raises OSError. Blocking."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | _SAFELY)
        try:
            return _write(_Folder(fd), archive, limit)
        finally:
            os.close(fd)
    except OSError:
        with suppress(OSError):
            archive.unlink(missing_ok=True)
        # On a full disk (ENOSPC) the archive must go: it takes the room of all that follows.
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(tree: _Folder, archive: Path, limit: int) -> OutputsAbout:
    plan = output_tar.plan(tree, limit, links=True)
    # A job that is root may have put a link there: an old name is never opened.
    archive.unlink(missing_ok=True)
    with open(archive, "xb") as packed:
        os.fchmod(packed.fileno(), 0o600)
        for entry in plan.entries:
            packed.write(output_tar.header(entry))
            if entry.size is None:
                continue
            with os.fdopen(tree.open_file(entry.name), "rb") as file:
                left = entry.size
                while left:
                    piece = file.read(min(_PIECE, left))
                    if not piece:
                        raise OSError(f"{entry.name} became shorter while it was packed")
                    packed.write(piece)
                    left -= len(piece)
            packed.write(bytes(output_tar.padded(entry.size) - entry.size))
        packed.write(output_tar.END)
    return plan.about


def piece_of(archive: Path, offset: int, most: int) -> bytes:
    """Return at most so many bytes of the tar. Raises OSError. Blocking."""
    fd = os.open(archive, os.O_RDONLY | _SAFELY)
    try:
        return os.pread(fd, most, offset)
    finally:
        os.close(fd)
