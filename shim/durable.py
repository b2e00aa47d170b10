"""Files that survive a `kill -9` or a power cut at any point.

A file is written beside its place, synced, renamed over it, and the folder is synced, so that a
reader finds the old content or the new one and never a mix. A checksum in front tells a file that
the disk (or a person) has damaged or put under another name: such a file is reported, never
trusted, and never an exception that stops the shim.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

_MAGIC = b"fairlead1 "


class DamagedFile(ValueError):
    """The content is not what was written."""


def write_file(path: Path, body: bytes) -> None:
    """Blocks for two fsyncs. Raises OSError (disk full, read-only)."""
    temporary = path.with_name(f".{path.name}.new")
    data = _MAGIC + _checksum(path, body) + b"\n" + body
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.closing(os.fdopen(fd, "wb", closefd=False)) as file:
            file.write(data)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, path)
    sync_folder(path.parent)


def read_file(path: Path) -> bytes:
    """Raises DamagedFile, and FileNotFoundError when there is none."""
    head, newline, body = path.read_bytes().partition(b"\n")
    if not newline or head != _MAGIC + _checksum(path, body):
        raise DamagedFile(f"{path} is damaged: its checksum does not match")
    return body


def _checksum(path: Path, body: bytes) -> bytes:
    """The name is part of it: a file that was renamed or copied is somebody else's record."""
    return hashlib.sha256(path.name.encode() + b"\0" + body).hexdigest().encode()


def remove_file(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
