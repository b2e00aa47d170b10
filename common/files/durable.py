"""Writes that survive a power cut: file and folder are synced, and a reader sees the old or the new
content.

Everything here blocks; call it in a thread.
"""

from __future__ import annotations

import os
from pathlib import Path


def write_durably(path: Path, data: bytes, mode: int = 0o660) -> None:
    """Replace `path` by `data` atomically. Raises OSError."""
    os.replace(write_beside(path, data, mode), path)
    # A rename is on the disk only once its folder is (fsync(2)).
    sync_folder(path.parent)


def write_quickly(path: Path, data: bytes, mode: int = 0o660) -> None:
    """Replace `path` by `data` atomically, without fsync: a power cut may leave nothing of it.
    Raises OSError."""
    os.replace(write_beside(path, data, mode, synced=False), path)


def write_beside(path: Path, data: bytes, mode: int, *, synced: bool = True) -> Path:
    """Write `data` next to `path` and sync it; return the file, which the caller renames over
    `path`. Raises OSError."""
    unfinished = path.with_name(f".{path.name}.new")
    # A job may write in the folder: a link that it put here must not lead the write elsewhere.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(unfinished, flags, mode)
    try:
        write_all(fd, data)
        if synced:
            # Before the rename: after a power cut the new name could lead to an empty file.
            os.fsync(fd)
    finally:
        os.close(fd)
    return unfinished


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes with `os.write`. Raises OSError; some bytes may be written then."""
    # write(2) may take a part only: a disk that fills up fails the next call with ENOSPC.
    written = os.write(fd, data)
    while written < len(data):
        written += os.write(fd, memoryview(data)[written:])


def sync_folder(folder: Path) -> None:
    """Sync the folder's new, renamed and removed entries. Raises OSError."""
    # A file that is synced can be lost with its name: that is the folder's (fsync(2)).
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_and_close(fd: int) -> None:
    """Sync the file and close it, also if the sync fails. Raises OSError."""
    try:
        # No second try: after a failed one Linux takes the pages for written, and says that all is
        # well (https://wiki.postgresql.org/wiki/Fsync_Errors).
        os.fsync(fd)
    finally:
        os.close(fd)
