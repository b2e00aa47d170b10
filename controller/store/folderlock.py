"""An OS lock on the data folder: it vanishes with its holder, so who has it knows that whoever had
it before is dead.

That proves something only on one machine, and since it was started: on a shared folder another
machine may be given the same lock. So the holder notes which boot of which machine it is, and which
life of which database it began.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import msgspec

LOCK_NAME = "controller.lock"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """`token`: of the lease, in the database with this installation's id."""

    installation_id: str
    token: int


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    holder: str
    boot_id: str | None = None
    life: Life | None = None


class FolderLock:
    def __init__(self, folder: Path, boot_id_file: Path = BOOT_ID) -> None:
        self._file = folder / LOCK_NAME
        self._boot_id_file = boot_id_file
        self._fd: int | None = None
        self._holder = ""
        self.past_life: Life | None = None
        """What the last holder began, if it was on this machine since its start: it is dead."""

    def take(self, holder: str) -> str | None:
        """None, or who has it. Raises OSError."""
        fd = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = _read(fd)
            os.close(fd)
            return other.holder or "unknown"
        except OSError:
            os.close(fd)
            raise
        before = _read(fd)
        if before.boot_id is not None and before.boot_id == self._boot_id():
            self.past_life = before.life
        self._fd, self._holder = fd, holder
        self._write(msgspec.structs.replace(before, holder=holder))
        return None

    def note(self, life: Life) -> None:
        """This life has begun: committed. Does nothing without the lock."""
        self._write(_Note(holder=self._holder, boot_id=self._boot_id(), life=life))

    def leave(self) -> None:
        """May be called twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _write(self, note: _Note) -> None:
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, msgspec.json.encode(note), 0)

    def _boot_id(self) -> str | None:
        try:
            return self._boot_id_file.read_text().strip() or None
        except OSError:
            return None


def _read(fd: int) -> _Note:
    """What is damaged, or of an earlier version, proves nothing."""
    try:
        return msgspec.json.decode(os.pread(fd, 4096, 0), type=_Note)
    except msgspec.MsgspecError:
        return _Note(holder=os.pread(fd, 256, 0).decode("utf-8", "replace").strip())
