"""Mounters for tests: one that only notes what it would mount, and one whose disk refuses."""

from __future__ import annotations

import errno
from pathlib import Path

from fairlead.wire.shim import TaskStatus
from shim.tasks.task import TaskState


class MemoryMounter:
    """`there` are the node's paths; `mounted` maps a place to what is mounted there."""

    def __init__(self, *there: str) -> None:
        self.there = set(there)
        self.mounted: dict[Path, str] = {}

    def bind(self, allowed: Path, relative: str, target: Path) -> bool:
        return self._mount(str(allowed / relative), target)

    def device(self, path: Path, target: Path) -> bool:
        return self._mount(str(path), target)

    def release(self, folder: Path) -> None:
        for place in [each for each in self.mounted if each.is_relative_to(folder)]:
            del self.mounted[place]

    def _mount(self, source: str, target: Path) -> bool:
        if source in self.there:
            self.mounted[target] = source
        return source in self.there


class FailingMounter(MemoryMounter):
    """Can neither mount nor unmount."""

    def release(self, folder: Path) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy", str(folder))

    def _mount(self, source: str, target: Path) -> bool:
        raise OSError(errno.EIO, "Input/output error", source)


class FullMounter(MemoryMounter):
    """On a node whose disk is full."""

    def bind(self, allowed: Path, relative: str, target: Path) -> bool:
        raise OSError(28, "No space left on device", str(target))


class WatchedMounter(MemoryMounter):
    """Notes in which state its task was when it let go."""

    def __init__(self, *there: str, fails: bool = False) -> None:
        super().__init__(*there)
        self.fails = fails
        self.task: TaskState | None = None
        self.released_in: list[TaskStatus] = []

    def release(self, folder: Path) -> None:
        assert self.task is not None
        self.released_in.append(self.task.info.status)
        if self.fails:
            raise OSError(16, "Device or resource busy", str(folder))
        super().release(folder)
