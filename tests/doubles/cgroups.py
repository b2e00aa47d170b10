"""Cgroups in plain folders: a process is in one while its `cgroup.procs` names a pid."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from shim.node.cgroups import Place

_FILES = ("cgroup.procs", "tasks", "cgroup.kill", "memory.events", "memory.oom_control")


class FolderTree:
    """`root`: where every process is, as the kernel would say of both versions."""

    def __init__(self, root: Path, versions: tuple[int, ...] = (2, 1)) -> None:
        self.root = root
        self.found = tuple(Place(version, str(root / f"v{version}")) for version in versions)
        for place in self.found:
            self.make(Path(place.folder))

    def places(self, pid: int) -> tuple[Place, ...]:
        return self.found

    def why_none(self, places: tuple[Place, ...]) -> str | None:
        return None if places else "no cgroup file system can be written here"

    def make(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True, parents=True)
        for name in _FILES:
            (folder / name).touch()

    def remove(self, folder: Path) -> bool:
        if not folder.exists():
            return True
        if any(pid != "0" for pid in (folder / "cgroup.procs").read_text().split()):
            return False
        shutil.rmtree(folder)
        return True

    def names(self, folder: Path) -> tuple[str, ...]:
        return tuple(os.listdir(folder)) if folder.exists() else ()

    def open(self, folder: Path, name: str, flags: int) -> int | None:
        try:
            return os.open(folder / name, flags | os.O_CLOEXEC)
        except FileNotFoundError:
            return None

    def leaves(self) -> set[str]:
        """Return the names of all leaves."""
        folders = [Path(place.folder) for place in self.found]
        return {name for folder in folders for name in self.names(folder) if name not in _FILES}


class FullTree(FolderTree):
    """One in which the kernel makes no more cgroups."""

    def make(self, folder: Path) -> None:
        if "fairlead-" in folder.name:
            raise OSError(28, os.strerror(28), str(folder))
        super().make(folder)
