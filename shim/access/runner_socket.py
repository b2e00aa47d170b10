"""The one path by which callers reach a task's runner, which the job cannot change.

The runner makes its socket in a folder that it shares with the shim. A job that is root can replace
that socket by its own, or by a link to another task's. So callers get a hard link in a folder of
the shim. The shim makes the link when the socket first appears, before it can be told to start the
job, and never again.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import stat
from collections.abc import Iterable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

from common.files.task_folder import RUNNER_SOCKET_NAME
from fairlead.wire.shim import TaskInfo
from shim.settings import Settings

# IN_CREATE and IN_MOVED_TO of inotify(7): a socket is bound in place, or renamed to its name.
_CREATE, _MOVED_TO = 0x100, 0x80
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)
log = logging.getLogger(__name__)


async def open_socket(settings: Settings, info: TaskInfo, executor: Executor) -> bool:
    """Return True once the task's runner can be reached, or False if it never can."""
    link = Path(info.runner_socket)
    folder = settings.socket_folder(info.id)
    in_thread = partial(asyncio.get_running_loop().run_in_executor, executor)
    if link.parent != settings.sockets_folder or await in_thread(link.exists):
        return True
    try:
        await arrival(folder, RUNNER_SOCKET_NAME)
        await in_thread(_link, folder, link)
    # The folder is the job's as well: it may have removed the socket, or have put a link in its
    # place.
    except OSError as error:
        log.error("task %s: its runner cannot be reached: %s", info.id, error)
        return False
    return True


async def is_open(info: TaskInfo, executor: Executor) -> bool:
    """Return whether the task's runner can be reached now."""
    link = Path(info.runner_socket)
    return await asyncio.get_running_loop().run_in_executor(executor, link.exists)


async def until_it_listens(settings: Settings, info: TaskInfo) -> None:
    """Return once the task's runner has its socket. Raises OSError."""
    await arrival(settings.socket_folder(info.id), RUNNER_SOCKET_NAME)


def _link(folder: Path, link: Path) -> None:
    # The job can change the name at any time: what was looked at is what is linked.
    fd = os.open(folder / RUNNER_SOCKET_NAME, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            raise OSError(f"{folder / RUNNER_SOCKET_NAME} is not a socket")
        with contextlib.suppress(FileExistsError):
            # Only with a folder's descriptor, here unused, does it follow to what `fd` is.
            os.link(f"/proc/self/fd/{fd}", link, src_dir_fd=fd, follow_symlinks=True)
    finally:
        os.close(fd)


def remove_strays(folder: Path, known: Iterable[str]) -> None:
    """Remove links of tasks that are gone, after a crash. Blocking."""
    wanted = {f"{task_id}.sock" for task_id in known}
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name not in wanted:
            path.unlink()


async def arrival(folder: Path, name: str) -> None:
    """Return once `folder/name` is there, whatever it is. Raises OSError without the folder."""
    # The watch comes before the look: else a socket that appears in between is missed.
    fd = _watch(folder)
    try:
        while not _is_there(folder / name):
            await _readable(fd)
            # Only to empty it: other files of the folder wake this, too, so it looks again.
            os.read(fd, 1 << 16)
    finally:
        # The kernel frees what was watched after a grace period of its own, 14 ms and more, and
        # close(2) waits for it: here, every task of this node would, and this one's start.
        _close_elsewhere(fd)


def _close_elsewhere(fd: int) -> None:
    left = [fd]

    def close() -> None:
        # Once: what no thread could be started for stays in the queue of the next one, and another
        # file may have the number by then.
        with contextlib.suppress(IndexError):
            os.close(left.pop())

    try:
        asyncio.get_running_loop().run_in_executor(None, close)
    except RuntimeError:  # no thread can be started, or this process ends
        close()


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
