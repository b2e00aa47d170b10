"""Folders of copies, of which each controller has its own: several may share a data folder.

An owner holds a lock beside the folder while it runs, which only owners share. A folder whose lock
nobody holds has no owner any more, for example because its controller has another URL now.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger(__name__)

UNUSED_SECONDS = 600.0
"""A controller of an earlier version has no lock: its folder stays if something in it changed since
then, as it does while an upload or a log comes."""
_LOCK = ".lock"
_NAME = re.compile(r"[0-9a-f]{16}", re.ASCII)


class OwnFolders:
    """The folders of the controller with this URL. `close` gives them up."""

    def __init__(self, data: Path, url: str) -> None:
        self._data = data
        self._own = hashlib.sha256(url.encode()).hexdigest()[:16]
        self._locks: list[int] = []

    def take(self, kind: str) -> Path:
        """Return the folder for copies of this kind, which may not be there yet. Remove those of
        controllers that are gone. Blocking."""
        parent = self._data / kind
        try:
            parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Another one with this URL may be about to end (docs/rules.md 14.16), and shares it.
            own = _locked(parent / f"{self._own}{_LOCK}", fcntl.LOCK_SH)
            if own is not None:
                self._locks.append(own)
            names = {one.name.removesuffix(_LOCK) for one in parent.iterdir()}
            for name in sorted(names - {self._own}):
                if _NAME.fullmatch(name):
                    _remove_unless_owned(parent / name)
        except OSError as error:
            # The writers of these folders say what is wrong.
            log.warning("old copies in %s can't be removed: %s", parent, error)
        return parent / self._own

    def close(self) -> None:
        while self._locks:
            os.close(self._locks.pop())


def _remove_unless_owned(folder: Path) -> None:
    """Raises OSError."""
    lock = folder.with_name(folder.name + _LOCK)
    if not lock.exists() and time.time() - _changed_at(folder) < UNUSED_SECONDS:
        return
    fd = _locked(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if fd is None:
        return
    try:
        shutil.rmtree(folder, ignore_errors=True)
        # Last: a controller of this URL may begin, and would take it meanwhile.
        lock.unlink(missing_ok=True)
    finally:
        os.close(fd)


def _locked(path: Path, how: int) -> int | None:
    """Return the file with its lock; None: other processes have it. Raises OSError."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, how)
            # Another controller may have removed it before this one had the lock.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), path.stat()):
                    return fd
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError:
            os.close(fd)
            raise
        os.close(fd)


def _changed_at(folder: Path) -> float:
    """Return the Unix time of the last change in it."""

    def times() -> Iterator[float]:
        # A log's files are in folders of their own.
        for path in (folder, *folder.rglob("*")):
            with contextlib.suppress(OSError):
                yield path.lstat().st_mtime

    return max(times(), default=0.0)
