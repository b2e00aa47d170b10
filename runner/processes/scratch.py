"""A private folder of the job in memory, for data that must not touch a disk: secrets, keys.

It is in a tmpfs that every engine gives a container (`/dev/shm`, also where the image's root is
read-only). Only the job's user can read it, and it ends with the runner.
"""

from __future__ import annotations

import os
from pathlib import Path

from runner.errors import CannotStart
from runner.processes.identity import Identity

FOLDERS = (Path("/dev/shm"), Path("/run"), Path("/tmp"))
GIVEN = "FAIRLEAD_MEMORY_FOLDER"
"""The folder of a task without a container. The program that started the runner removes it, also if
the runner could not."""
_SECRET = 0o600


def memory_mounts(table: str) -> frozenset[str]:
    """Return the mount points in `table` (as in /proc/mounts) whose files are in memory."""
    rows = (line.split(" ") for line in table.splitlines())
    return frozenset(row[1] for row in rows if len(row) > 2 and row[2] in ("tmpfs", "ramfs"))


def usable_folders() -> tuple[Path, ...]:
    """Return folders in memory, the best first."""
    mounted = memory_mounts(Path("/proc/mounts").read_text("utf-8", "replace"))
    given = Path(os.environ.get(GIVEN, "/"))
    if given.is_dir() and any(str(parent) in mounted for parent in given.parents):
        return (given,)
    return tuple(parent for parent in FOLDERS if str(parent) in mounted)


class Scratch:
    """The folder, made when first needed. Blocking; raises CannotStart when no place in memory
    exists."""

    def __init__(
        self, name: str, owner: Identity | None, folders: tuple[Path, ...] | None = None
    ) -> None:
        self._name = f"fairlead-{name}"
        self._owner = owner
        self._folders = folders
        self._folder: Path | None = None

    @property
    def folder(self) -> Path:
        if self._folder is None:
            self._folder = self._make()
        return self._folder

    def secret_file(self, name: str, content: str) -> Path:
        """Write a secret file; it replaces one with the same name."""
        return self.file(name, content, _SECRET)

    def file(self, name: str, content: str, mode: int) -> Path:
        path = self.folder / name
        path.unlink(missing_ok=True)
        # A new file each time: a link that the job put there must lead nowhere (open(2)).
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(path, flags, _SECRET), "w", encoding="utf-8", newline="") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
            self._give(file.fileno())
        return path

    def subfolder(self, name: str) -> Path:
        path = self.folder / name
        path.mkdir(mode=0o700, exist_ok=True)
        if self._owner is not None:
            os.chown(path, self._owner.uid, self._owner.gid)
        return path

    def remove(self) -> None:
        if self._folder is not None:
            _remove(self._folder)
            self._folder = None

    def _make(self) -> Path:
        for parent in usable_folders() if self._folders is None else self._folders:
            folder = parent / self._name
            try:
                folder.mkdir(mode=0o700)
            except FileExistsError:
                # An earlier runner's, or made by another user: it is not used as it is.
                _remove(folder)
                folder.mkdir(mode=0o700)
            # This folder is read-only or full, or holds what another user put there: the next
            # place.
            except OSError:
                continue
            if self._owner is not None:
                os.chown(folder, self._owner.uid, self._owner.gid)
            return folder
        raise CannotStart(
            "the job has secrets, but no folder in memory for them: "
            + ", ".join(map(str, FOLDERS))
            + " are no writable tmpfs"
        )

    def _give(self, fd: int) -> None:
        if self._owner is not None:
            os.fchown(fd, self._owner.uid, self._owner.gid)


def _remove(folder: Path) -> None:
    import shutil  # a job's start does not wait for it

    shutil.rmtree(folder, ignore_errors=True)
