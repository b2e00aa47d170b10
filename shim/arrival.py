"""Waits until a file has come into a folder, told by the kernel."""

from __future__ import annotations

import asyncio
import ctypes
import os
from pathlib import Path

_CREATE, _MOVED_TO = 0x100, 0x80
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)


async def arrival(folder: Path, name: str) -> None:
    """Returns once `folder/name` is there, whatever it is. Raises OSError without the folder."""
    fd = _watch(folder)
    try:
        while not _is_there(folder / name):
            await _readable(fd)
            os.read(fd, 1 << 16)
    finally:
        os.close(fd)


def _is_there(path: Path) -> bool:
    return os.path.lexists(path)


def _watch(folder: Path) -> int:
    fd = int(_libc.inotify_init1(_NONBLOCK_CLOEXEC))
    if fd < 0:
        raise OSError(ctypes.get_errno(), "no inotify")
    if _libc.inotify_add_watch(fd, os.fsencode(folder), _CREATE | _MOVED_TO) < 0:
        code = ctypes.get_errno()
        os.close(fd)
        raise OSError(code, os.strerror(code), str(folder))
    return fd


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    came = asyncio.Event()
    loop.add_reader(fd, came.set)
    try:
        await came.wait()
    finally:
        loop.remove_reader(fd)
