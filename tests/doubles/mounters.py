"""Mounters for tests: one that only notes what it would mount, and one whose disk refuses."""

from __future__ import annotations

import errno
from pathlib import Path


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
