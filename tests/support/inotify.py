"""Hears of every file that is renamed into, or removed from, a few folders."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

_MOVED_TO, _DELETE = 0x80, 0x200
_CLOEXEC = 0o2000000
_HEAD = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)


class Watch:
    """`next` blocks for the next change and names the file; closing it ends a `next`."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._fd = int(_libc.inotify_init1(_CLOEXEC))
        self._folders: dict[int, Path] = {}
        self._pending: list[Path] = []
        for folder in folders:
            self.add(folder)

    def add(self, folder: Path) -> None:
        number = _libc.inotify_add_watch(self._fd, os.fsencode(folder), _MOVED_TO | _DELETE)
        if number < 0:
            raise OSError(ctypes.get_errno(), "inotify_add_watch", str(folder))
        self._folders[number] = folder

    def next(self) -> Path:
        while not self._pending:
            data = os.read(self._fd, 1 << 16)
            while data:
                number, _, _, length = _HEAD.unpack_from(data)
                # The kernel pads names with NUL (inotify(7)).
                name = data[_HEAD.size : _HEAD.size + length].rstrip(b"\0")
                self._pending.append(self._folders[number] / os.fsdecode(name))
                data = data[_HEAD.size + length :]
        return self._pending.pop(0)

    def close(self) -> None:
        os.close(self._fd)
