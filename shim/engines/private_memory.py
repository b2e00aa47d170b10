"""A folder in memory for each task that is a plain process, for what its runner must not write to
a disk: secrets, keys. A container's memory goes with it; here somebody has to remove it, however
the runner came to its end.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path

log = logging.getLogger(__name__)

VARIABLE = "FAIRLEAD_MEMORY_FOLDER"
"""Names the folder to the runner, which uses it if it is in memory indeed."""
_PLACE = Path("/dev/shm")
_PASSED_THROUGH = 0o711
"""A job that runs as another user reaches what is its own."""


class PrivateMemory:
    """Blocking. All of it may be repeated."""

    def __init__(self, install_id: str, place: Path = _PLACE) -> None:
        self._prefix = f"fairlead-{install_id}-"
        self._place = place

    def make(self, task_id: str) -> Path | None:
        """None where that cannot be: the runner then looks for a place by itself."""
        folder = self._folder(task_id)
        try:
            folder.mkdir(exist_ok=True)
            about = folder.lstat()
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
                raise FileExistsError(f"{folder} is somebody else's")
            folder.chmod(_PASSED_THROUGH)
        except OSError as error:
            log.warning("task %s has no memory of its own: %s", task_id, error)
            return None
        return folder

    def remove(self, task_id: str) -> None:
        shutil.rmtree(self._folder(task_id), ignore_errors=True)

    def remove_strays(self, known: Iterable[str]) -> None:
        wanted = {self._folder(task_id) for task_id in known}
        for folder in self._place.glob(f"{self._prefix}*"):
            if folder not in wanted:
                log.warning("%s belongs to no task: removed", folder)
                shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, task_id: str) -> Path:
        return self._place / f"{self._prefix}{task_id}"
