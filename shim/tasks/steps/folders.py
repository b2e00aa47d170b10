"""The folders that job and shim share: one for logs and records, one for the runner's socket."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from pathlib import Path

from shim.tasks.steps.base import StepContext

_SHARED = 0o2770
_LISTED = 0o2750
# A job that is root can put a link in the place of a folder.
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_DEPTH = 16
_MAX_ENTRIES = 100
"""Levels, and entries of one folder, up to which the shim removes a task's folder itself."""


class Folders:
    async def do(self, ctx: StepContext) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(ctx.executor, _make, ctx)

    async def undo(self, ctx: StepContext) -> None:
        task_id = ctx.task.info.id
        _remove_socket(ctx)
        loop = asyncio.get_running_loop()
        for folder in (ctx.settings.socket_folder(task_id), ctx.settings.task_folder(task_id)):
            if not await loop.run_in_executor(ctx.executor, _removed_quickly, folder):
                await _remove_tree(folder)


def _remove_socket(ctx: StepContext) -> None:
    link = Path(ctx.task.info.runner_socket)
    if link.parent == ctx.settings.sockets_folder:
        link.unlink(missing_ok=True)


def _make(ctx: StepContext) -> None:
    settings, task_id = ctx.settings, ctx.task.info.id
    settings.task_folder(task_id).mkdir(parents=True, exist_ok=True, mode=0o700)
    make_shared(settings.run_folder, settings.gid, _LISTED)
    make_shared(settings.sockets_folder, settings.gid, _LISTED)
    make_shared(settings.job_folder(task_id), settings.gid, _SHARED)
    make_shared(settings.socket_folder(task_id), settings.gid, _SHARED)


def make_shared(folder: Path, gid: int, mode: int) -> None:
    """Make the folder. The mode is set after the owner, because a change of group clears the setgid
    bit."""
    folder.mkdir(parents=True, exist_ok=True)
    # Without root, a folder goes only to a group that its owner is in (chown(2)).
    with contextlib.suppress(PermissionError):
        os.chown(folder, -1, gid)
    os.chmod(folder, mode)


def _removed_quickly(folder: Path) -> bool:
    """Remove a folder with few entries, as nearly every task leaves it, without a program. Return
    whether it is gone. Blocking."""
    try:
        fd = os.open(folder, _FOLDER)
    except FileNotFoundError:
        return True
    except OSError:
        # A link or a file is in its place: O_NOFOLLOW and O_DIRECTORY refuse both (open(2)).
        return False
    try:
        if not _is_emptied(fd, os.fstat(fd).st_dev, _MAX_DEPTH):
            return False
        # A process that is still ending may have made a file meanwhile (rmdir(2): ENOTEMPTY).
        os.rmdir(folder)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _is_emptied(fd: int, device: int, depth: int) -> bool:
    """Empty a folder of this device; False: it has too much in it, or something is mounted."""
    with os.scandir(fd) as entries:
        found = list(itertools.islice(entries, _MAX_ENTRIES + 1))
    if len(found) > _MAX_ENTRIES or depth == 0:
        return False
    for entry in found:
        if not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.name, dir_fd=fd)
            continue
        below = os.open(entry.name, _FOLDER, dir_fd=fd)
        try:
            # A volume that is still mounted below must lose nothing.
            if os.fstat(below).st_dev != device or not _is_emptied(below, device, depth - 1):
                return False
        finally:
            os.close(below)
        os.rmdir(entry.name, dir_fd=fd)
    return True


async def _remove_tree(folder: Path) -> None:
    """Remove the folder with `rm`: a job may nest folders deeper than Python's recursion allows."""
    process = await asyncio.create_subprocess_exec(
        # A volume that is still mounted below must lose nothing.
        *("rm", "-rf", "--one-file-system", "--", str(folder)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    if process.returncode != 0:
        lines = errors.decode(errors="replace").strip().splitlines() or ["rm failed"]
        raise OSError(f"cannot remove {folder}: {lines[-1]}")
